package dns

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	miekg "github.com/miekg/dns"

	"mtagd/store"
	"mtagd/tlsmgr/dnstest"
)

// whatPartnersSee returns the finding of a verifier with a resolver that knows some records, and the log.
func whatPartnersSee(t *testing.T, zone string, reply func(question, answer *miekg.Msg, overTCP bool) *miekg.Msg) (store.DNSFinding, string) {
	t.Helper()
	s := &server{reply: reply, chases: strings.Contains(t.Name(), "whole_chain")}
	parser := miekg.NewZoneParser(strings.NewReader("$TTL 60\nedge.example.com. A 192.0.2.1\n"+zone), ".", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		s.records = append(s.records, rr)
	}
	if err := parser.Err(); err != nil {
		t.Fatal(err)
	}
	s.address = dnstest.Run(t, miekg.HandlerFunc(s.serveDNS)).Address
	v := newVerifier(t, s.address)
	v.hidesPrivate = true
	var log bytes.Buffer
	v.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return v.Verify(t.Context(), testHost), log.String()
}

// A partner points a host at a name in the operator's network. The finding is the same whatever the operator's
// resolver says about that name.
func TestAFindingDoesNotTellWhatOnlyAResolverKnows(t *testing.T) {
	for _, form := range []string{"one record in an answer", "the whole chain in one answer"} {
		for name, behind := range map[string]string{
			"it does not exist":                      "",
			"it has a private address":               "db.corp.example.net. A 10.1.2.3",
			"it has a public address":                "db.corp.example.net. A 8.8.8.8",
			"it has no address":                      "db.corp.example.net. TXT x",
			"it is an alias":                         "db.corp.example.net. CNAME secret.corp.example.net.",
			"it is an alias of a name with address":  "db.corp.example.net. CNAME secret.corp.example.net.\nsecret.corp.example.net. A 10.1.2.3",
			"it is in a loop":                        "db.corp.example.net. CNAME secret.corp.example.net.\nsecret.corp.example.net. CNAME db.corp.example.net.",
			"it has several aliases":                 "db.corp.example.net. CNAME secret.corp.example.net.\ndb.corp.example.net. CNAME secret2.corp.example.net.",
			"it is an alias in an internal zone":     "db.corp.example.net. CNAME secret.corp.internal.",
			"its alias is a name of a delivery zone": "db.corp.example.net. CNAME secret.cloudfront.net.",
		} {
			t.Run(form+", "+name, func(t *testing.T) {
				found, log := whatPartnersSee(t, testHost+". CNAME db.corp.example.net.\n"+behind, nil)
				expect(t, found, store.DNSWrong, "wrong_target")
				const want = "mtag-ab12.shop.com points to db.corp.example.net; point it to edge.example.com"
				if found.Detail != want {
					t.Errorf("got  %q\nwant %q", found.Detail, want)
				}
				if strings.Contains(behind, "secret") && !strings.Contains(log, "secret") {
					t.Errorf("the log does not have the detail: %s", log)
				}
			})
		}
	}
	t.Run("it fails", func(t *testing.T) {
		for _, rcode := range []int{miekg.RcodeServerFailure, miekg.RcodeFormatError} {
			found, _ := whatPartnersSee(t, testHost+". CNAME db.corp.example.net.\n", func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
				if strings.HasPrefix(question.Question[0].Name, "db.") {
					return new(miekg.Msg).SetRcode(question, rcode)
				}
				return answer
			})
			expect(t, found, store.DNSPending, "timeout", "points to db.corp.example.net, but where that leads is not known at the moment; try again")
		}
	})
	t.Run("it leads to the target", func(t *testing.T) {
		found, _ := whatPartnersSee(t, testHost+". CNAME a.example.net.\na.example.net. CNAME edge.example.com.", nil)
		expect(t, found, store.DNSCorrect, "ok")
	})
}

// The host itself may be one that a resolver answers only in the operator's network.
func TestAFindingDoesNotShowPrivateAddressesOrInternalNames(t *testing.T) {
	for name, tt := range map[string]struct{ record, code, detail string }{
		"a private address": {"A 10.1.2.3", "wrong_address", "has addresses that are not those of edge.example.com"},
		"a public address beside a private one": {"A 8.8.8.8\n" + testHost + ". A 192.168.1.1", "wrong_address",
			"has addresses that are not those of edge.example.com"},
		"a loopback address": {"AAAA ::1", "wrong_address", "has addresses that are not those of edge.example.com"},
		"a local address":    {"AAAA fd00::1", "wrong_address", "has addresses that are not those of edge.example.com"},
		"a link-local one":   {"A 169.254.169.254", "wrong_address", "has addresses that are not those of edge.example.com"},
		"an internal name":   {"CNAME db.corp.internal.", "wrong_target", "does not lead to edge.example.com"},
		"a name without dot": {"CNAME router.", "wrong_target", "does not lead to edge.example.com"},
		"a public address":   {"A 8.8.8.8", "wrong_address", "8.8.8.8"},
	} {
		t.Run(name, func(t *testing.T) {
			found, log := whatPartnersSee(t, testHost+". "+tt.record, nil)
			expect(t, found, store.DNSWrong, tt.code, testHost+" ", tt.detail)
			secret := strings.Fields(tt.record)[1]
			if secret != "8.8.8.8" && strings.Contains(found.Detail, strings.TrimSuffix(secret, ".")) {
				t.Errorf("the finding shows %s: %s", secret, found.Detail)
			}
			if !strings.Contains(log, strings.TrimSuffix(secret, ".")) {
				t.Errorf("the log does not show %s: %s", secret, log)
			}
		})
	}
}

// While the target's addresses are not known, the host's own may be right: private or not, the finding is the same.
func TestHidingKeepsPending(t *testing.T) {
	for _, address := range []string{"10.0.0.5", "8.8.8.8"} {
		found, _ := whatPartnersSee(t, testHost+". A "+address, func(question, answer *miekg.Msg, _ bool) *miekg.Msg {
			if question.Question[0].Name == testTarget+"." {
				return new(miekg.Msg).SetRcode(question, miekg.RcodeServerFailure)
			}
			return answer
		})
		expect(t, found, store.DNSPending, "target_unknown", "has addresses, but those of "+testTarget+" are not known")
	}
}

// Only public name servers say that a name does not exist. If findings told it, they would tell that the resolvers have no
// internal zone for the name.
func TestAFindingDoesNotTellWhetherANameBehindTheHostExists(t *testing.T) {
	w := readWorld(t, "target_misspelt.txtar")
	w.start(t)
	v := w.verifier(t)
	v.hidesPrivate = true
	var log bytes.Buffer
	v.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	found := v.Verify(t.Context(), testHost)
	expect(t, found, store.DNSWrong, "wrong_target")
	const want = "according to shop.com's name servers, mtag-ab12.shop.com points to egde.example.com; point it to edge.example.com"
	if found.Detail != want {
		t.Errorf("got  %q\nwant %q", found.Detail, want)
	}
	if !strings.Contains(log.String(), "egde.example.com, which does not exist") {
		t.Errorf("the log does not have the detail: %s", log.String())
	}
}
