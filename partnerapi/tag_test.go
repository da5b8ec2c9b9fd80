package partnerapi

import (
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

func TestReadTag(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	p.enablePreverified()
	id := p.merchant("Shop")
	common := []string{"tagId", "type", "status", "merchantId", "host", "createdAt", "isConnected", "isVerified", "domainLost",
		"lifecycle", "lastEventAt", "snippet", "dns", "certificate"}

	client := p.generate(id, "client-side", "").str("tagId")
	p.get(tracktag+"/"+client).is(200).keys("", common...).
		has("tagId", client).has("type", "client-side").has("status", "active").has("merchantId", id).
		has("host", "tags.example.net").has("createdAt", "2026-11-20T08:30:00Z").
		has("isConnected", true).has("isVerified", true).has("lifecycle", "waiting_for_events").
		has("lastEventAt", nil).has("dns", nil).has("certificate", nil)

	server := p.generate(id, "server-side", "example.com")
	p.get(tracktag+"/"+server.str("tagId")).is(200).keys("", append(common, "record")...).
		has("status", "inactive").has("lifecycle", "waiting_for_dns").
		has("isConnected", false).has("isVerified", false).
		has("host", server.str("record.name")+".example.com").has("record.name", server.str("record.name"))

	preverified := p.generate(id, "preverified", "").str("tagId")
	p.get(tracktag+"/"+preverified).is(200).keys("", append(common, "record")...).
		has("status", "active").has("host", ours)

	s.record(id, client, event{at: "2026-11-20T08:29:59.5Z", name: "Purchase"})
	p.get(tracktag+"/"+client).is(200).has("lifecycle", "receiving").has("lastEventAt", "2026-11-20T08:29:59Z")
}

// certificates notes which hosts were ordered, and returns one state for every host.
type certificates struct {
	ordered []string
	state   store.Certificate
}

func (c *certificates) Order(host string) { c.ordered = append(c.ordered, host) }

func (c *certificates) Certificate(string) store.Certificate {
	if c.state.Status == "" {
		return store.Certificate{Status: store.CertificateNone}
	}
	return c.state
}

func TestReadTagShowsItsCertificate(t *testing.T) {
	s := newService(t)
	certs := &certificates{}
	s.certificates = certs
	s.serve(s.engine, &s.dns)
	p := s.partner("Agency")
	tag := p.generate(p.merchant("Shop"), "server-side", "example.com").str("tagId")

	certs.state = store.Certificate{Status: store.CertificateNone}
	p.get(tracktag+"/"+tag).is(200).keys("certificate", "status", "detail", "notAfter", "nextTry").
		has("certificate.status", "none").has("certificate.detail", "").
		has("certificate.notAfter", nil).has("certificate.nextTry", nil)
	certs.state = store.Certificate{Status: store.CertificateFailed, Detail: "why", NextTry: s.now()}
	p.get(tracktag+"/"+tag).is(200).
		has("certificate.status", "failed").has("certificate.detail", "why").has("certificate.nextTry", "2026-11-20T08:30:00Z")
	certs.state = store.Certificate{Status: store.CertificateValid, NotAfter: s.now()}
	p.get(tracktag+"/"+tag).is(200).has("certificate.status", "valid").has("certificate.notAfter", "2026-11-20T08:30:00Z")
}

func TestReadTagOfAnotherPartner(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	theirs := other.generate(other.merchant("Theirs"), "client-side", "").str("tagId")
	other.get(tracktag + "/" + theirs).is(200)
	for _, unknown := range []string{theirs, "cs_unknown", strings.ToUpper(theirs), "x", "%00", strings.Repeat("a", 5000)} {
		p.get(tracktag+"/"+unknown).fails(404, "NOT_FOUND", missing)
	}
}

func TestSnippet(t *testing.T) {
	const want = `<script>
  window.mtrem = window.mtrem || []; window.mtag = window.mtag || function () { mtrem.push(arguments); };
  mtag('init', 'https://tags.example.net?tagId=cs_a-b_C', { consent: false }); /* true when this visitor has agreed */
</script>
<script async src="https://tags.example.net/script"></script>
`
	if got := Snippet("https://tags.example.net", "cs_a-b_C"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	// With a long name of the shop.
	long := Snippet("https://mtag-ab12.a-shop-with-a-rather-long-name.example.co.uk", store.NewTagID(store.ClientSide))
	if lines := strings.Count(long, "\n"); lines > 5 || len(long) > 400 {
		t.Errorf("%d lines, %d bytes; want at most 5 and 400:\n%s", lines, len(long), long)
	}
	hostile := Snippet(`https://x'"</script>\`, `'</script>&`)
	if got := strings.Count(hostile, "</script>"); got != 2 {
		t.Errorf("a value closes a script element:\n%s", hostile)
	}
	for _, want := range []string{`'https://x\'"\x3C/script>\\?tagId=%27%3C%2Fscript%3E%26'`, `"https://x&#39;&#34;&lt;/script&gt;\/script"`} {
		if !strings.Contains(hostile, want) {
			t.Errorf("no %s in:\n%s", want, hostile)
		}
	}
}

// event is an event that a test records.
type event struct{ at, name, muid, raw string }

// record records events of a tag.
func (s *service) record(merchant, tag string, list ...event) {
	s.t.Helper()
	marks := make([]store.Mark, len(list))
	for i, e := range list {
		at, err := time.Parse(time.RFC3339, e.at)
		if err != nil {
			s.t.Fatal(err)
		}
		if e.muid == "" {
			e.muid = "visitor"
		}
		if e.raw == "" {
			e.raw = `{}`
		}
		marks[i] = store.Mark{Merchant: store.MerchantID(merchant), Tag: store.TagID(tag), Name: e.name, Time: at,
			Identity: store.Identity{MUID: store.MUID(e.muid)}, Raw: []byte(e.raw)}
	}
	if err := s.engine.Record(s.t.Context(), marks); err != nil {
		s.t.Fatal(err)
	}
}
