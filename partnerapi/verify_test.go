package partnerapi

import (
	"fmt"
	"strings"
	"testing"

	"mtagd/store"
)

// finds sets the verdict of the DNS checks from now on.
func (s *service) finds(verdict store.DNSVerdict) {
	s.dns.found = store.DNSFinding{Verdict: verdict, Code: "some_code", Detail: "what was seen in DNS", CheckedAt: s.now()}
}

func TestVerify(t *testing.T) {
	const pending = `{"success":false,"error":{"code":"VALIDATION_ERROR",` +
		`"message":"DNS verification pending. Please allow time for DNS propagation and try again",` +
		`"statusCode":422,"timestamp":"2026-11-20T08:30:00Z","path":"/v1/partners/tracktag/verify","method":"POST"}}`
	const misconfigured = `{"message":"Tag verification failed. Please check your DNS configuration","code":"VALIDATION_ERROR","statusCode":400}`
	const failed = `{"message":"Unable to process request","code":"SERVICE_ERROR","statusCode":500}`

	for _, c := range []struct {
		verdict  store.DNSVerdict
		status   int
		body     string
		tag      string
		verified bool
		stage    string
	}{
		{store.DNSCorrect, 200, `{"verified":true}`, "active", true, "waiting_for_events"},
		{store.DNSPending, 422, pending, "inactive", false, "waiting_for_dns"},
		{store.DNSWrong, 400, misconfigured, "inactive", false, "waiting_for_dns"},
		{store.DNSUnreachable, 500, failed, "inactive", false, "waiting_for_dns"},
	} {
		t.Run(string(c.verdict), func(t *testing.T) {
			s := newService(t)
			certs := &certificates{}
			s.certificates = certs
			s.serve(s.engine, &s.dns)
			p := s.partner("Agency")
			id := p.merchant("Shop")
			tag := p.generate(id, "server-side", "example.com")
			host := tag.str("record.name") + ".example.com"

			s.finds(c.verdict)
			a := p.postf(verify, `{"merchantId":%q,"subdomain":%q}`, id, strings.ToUpper(host))
			if a.is(c.status).body != c.body {
				t.Errorf("got %s\nwant %s", a.body, c.body)
			}
			if got := fmt.Sprint(s.dns.asked); got != "["+host+"]" {
				t.Errorf("DNS was asked for %s, want %s", got, host)
			}
			if ordered := len(certs.ordered) == 1 && certs.ordered[0] == host; ordered != c.verified {
				t.Errorf("ordered certificates for %q, want one for %s: %v", certs.ordered, host, c.verified)
			}
			p.get(tracktag+"/"+tag.str("tagId")).is(200).
				has("status", c.tag).has("isVerified", c.verified).has("isConnected", c.verified).has("lifecycle", c.stage).
				keys("dns", "verdict", "code", "detail", "checkedAt").
				has("dns.verdict", string(c.verdict)).has("dns.code", "some_code").
				has("dns.detail", "what was seen in DNS").has("dns.checkedAt", "2026-11-20T08:30:00Z")
			p.get(merchants+"/"+id).has("tracktags.server-side.status", c.tag)
			for _, want := range []string{string(c.verdict), "some_code", "what was seen in DNS", host} {
				if !strings.Contains(s.log.String(), want) {
					t.Errorf("no %q in the log: %s", want, s.log.String())
				}
			}
		})
	}
}

func TestAVerifiedTagIsCheckedAgain(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	tag := p.generate(p.merchant("Shop"), "server-side", "example.com")
	body := fmt.Sprintf(`{"tagId":%q,"subdomain":"%s.example.com"}`, tag.str("tagId"), tag.str("record.name"))

	s.finds(store.DNSCorrect)
	p.post(verify, body).is(200)
	p.post(verify, body).is(200)
	s.finds(store.DNSWrong)
	p.post(verify, body).is(400)
	p.get(tracktag+"/"+tag.str("tagId")).has("status", "active").has("dns.verdict", "wrong").
		has("isVerified", true).has("isConnected", false)
	s.finds(store.DNSPending)
	p.post(verify, body).is(422)
	p.get(tracktag+"/"+tag.str("tagId")).has("dns.verdict", "pending").has("isConnected", false)
	s.finds(store.DNSCorrect)
	p.post(verify, body).is(200)
	p.get(tracktag+"/"+tag.str("tagId")).has("isConnected", true)
}

func TestVerifyFindsTheTag(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	p.enablePreverified()
	s.finds(store.DNSCorrect)

	id := p.merchant("Shop")
	server := p.generate(id, "server-side", "example.com")
	serverTag, host := server.str("tagId"), server.str("record.name")+".example.com"
	preverifiedTag := p.generate(id, "preverified", "").str("tagId")
	clientTag := p.generate(id, "client-side", "").str("tagId")
	bare := p.merchant("No tags")
	second := p.merchant("Only a client-side tag")
	p.generate(second, "client-side", "")
	theirs := other.merchant("Theirs")
	theirTag := other.generate(theirs, "server-side", "theirs.com").str("tagId")

	hosts := "must be the tag's host: " + host + " or " + ours
	for _, c := range []struct {
		is, merchant, tag, subdomain string
		status                       int
		code, message                string
	}{
		{"by its merchant", id, "", host, 200, "", ""},
		{"by its merchant in upper case", strings.ToUpper(id), "", host, 200, "", ""},
		{"by its id", "", serverTag, host, 200, "", ""},
		{"by both", id, serverTag, host, 200, "", ""},
		{"the preverified tag by its host", id, "", ours, 200, "", ""},
		{"the preverified tag by its id", "", preverifiedTag, ours, 200, "", ""},
		{"not without a merchant or tag", "", "", host, 400, "VALIDATION_ERROR", "Invalid request parameters: merchantId is required"},
		{"not without a subdomain", id, "", "", 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain is required"},
		{"not with a protocol", id, "", "https://" + host, 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain must be a full host name without protocol, such as mtag-ab12.example.com"},
		{"not with one label", id, "", "localhost", 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain must be a full host name without protocol, such as mtag-ab12.example.com"},
		{"the subdomain is checked before the merchant", nobody, "", "bad", 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain must be a full host name without protocol, such as mtag-ab12.example.com"},
		{"not by another host", id, "", "mtag-zzzz.example.org", 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain " + hosts},
		{"not by the root domain", id, "", "example.com", 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain " + hosts},
		{"not by the host of the merchant's other tag", "", serverTag, ours, 400, "VALIDATION_ERROR", "Invalid request parameters: subdomain must be the tag's host: " + host},
		{"not when merchant and tag disagree", bare, serverTag, host, 400, "VALIDATION_ERROR", "Invalid request parameters: tagId must be a tag of the merchant in merchantId"},
		{"not for an unknown merchant", nobody, "", host, 404, "NOT_FOUND", missing},
		{"not for a merchant id of another form", "shop-1", "", host, 404, "NOT_FOUND", missing},
		{"not for an unknown tag", "", "ss_unknown", host, 404, "NOT_FOUND", missing},
		{"not for a tag id in another case", "", strings.ToUpper(serverTag), host, 404, "NOT_FOUND", missing},
		{"not for a merchant without tags", bare, "", host, 404, "NOT_FOUND", missing},
		{"not for a merchant with only a client-side tag", second, "", host, 404, "NOT_FOUND", missing},
		{"not for a client-side tag", "", clientTag, "tags.example.net", 404, "NOT_FOUND", missing},
		{"not for another partner's merchant", theirs, "", host, 403, "FORBIDDEN", denied},
		{"not for another partner's tag", "", theirTag, host, 403, "FORBIDDEN", denied},
		{"not for another partner's tag under one's own merchant", id, theirTag, host, 403, "FORBIDDEN", denied},
	} {
		t.Run(c.is, func(t *testing.T) {
			s.dns.asked = nil
			a := p.postf(verify, `{"merchantId":%q,"tagId":%q,"subdomain":%q}`, c.merchant, c.tag, c.subdomain).in(t)
			if c.status == 200 {
				a.is(200).has("verified", true)
				return
			}
			a.fails(c.status, c.code, c.message)
			if s.dns.asked != nil {
				t.Errorf("DNS was asked for %s, want no check", s.dns.asked)
			}
		})
	}
	for field, body := range map[string]string{
		"merchantId": `{"merchantId":1,"subdomain":"a.example.com"}`,
		"tagId":      `{"tagId":{},"subdomain":"a.example.com"}`,
		"subdomain":  `{"tagId":"x","subdomain":["a.example.com"]}`,
	} {
		p.post(verify, body).invalid(field, "must be a string")
	}
}
