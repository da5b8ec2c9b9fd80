package partnerapi

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const ours = "links.agency.com" // a partner's tracking domain

// enablePreverified gives a partner preverified access at ours.
func (p *partner) enablePreverified() {
	p.t.Helper()
	if _, err := p.engine.EnablePreverified(p.t.Context(), p.ID, ours); err != nil {
		p.t.Fatal(err)
	}
}

func TestGenerate(t *testing.T) {
	p := newService(t).partner("Agency")
	p.enablePreverified()
	label := regexp.MustCompile(`^mtag-[a-z0-9]{4}$`)
	for _, c := range []struct {
		is, uri, tagType, domain string
		shown                    string
		status                   string
		record                   bool
	}{
		{"a client-side tag is active and needs no record", generate, "client-side", "", "client-side", "active", false},
		{"a client-side tag ignores the domain", generate, "client-side", "not a domain", "client-side", "active", false},
		{"a server-side tag waits for its record", generate, "server-side", "a-shop.com", "server-side", "inactive", true},
		{"an underscore stands for the hyphen", generate, "server_side", "b-shop.com", "server-side", "inactive", true},
		{"a domain is folded to lower case", generate, "server-side", "C-Shop.Co.UK", "server-side", "inactive", true},
		{"a preverified tag is active and shows its record", generate, "preverified", "", "preverified", "active", true},
		{"the operation has a shorter name", tracktag, "client-side", "", "client-side", "active", false},
	} {
		t.Run(c.is, func(t *testing.T) {
			id := p.merchant("Shop")
			body := fmt.Sprintf(`{"merchantId":%q,"type":%q,"domain":%q}`, strings.ToUpper(id), c.tagType, c.domain)
			a := p.post(c.uri, body).in(t)
			a.is(200).has("type", c.shown).has("status", c.status).has("message", "New tag created successfully")
			if c.record {
				a.keys("", "tagId", "type", "status", "message", "record").
					keys("record", "type", "name", "value", "ttl").
					has("record.type", "CNAME").has("record.value", "cname.example.net").has("record.ttl", 300)
				if name := a.str("record.name"); !label.MatchString(name) {
					t.Errorf("record.name is %q", name)
				}
			} else {
				a.keys("", "tagId", "type", "status", "message")
			}

			again := p.post(c.uri, body).in(t)
			want := strings.Replace(a.body, "New tag created successfully", "Existing tag retrieved", 1)
			if again.is(200).body != want {
				t.Errorf("the second request: got %s\nwant %s", again.body, want)
			}
		})
	}
}

func TestGenerateKeepsTheTagWhateverDomainIsSent(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	id := p.merchant("Shop")
	first := p.generate(id, "server-side", "example.com")
	p.generate(p.merchant("Rival"), "server-side", "taken.com")
	existing := strings.Replace(first.body, "New tag created successfully", "Existing tag retrieved", 1)

	for _, domain := range []string{"example.com", "example.org", "taken.com", "not a domain", "https://example.com", "www.example.com", "co.uk", ""} {
		if got := p.generate(id, "server-side", domain).body; got != existing {
			t.Errorf("%q: got %s\nwant %s", domain, got, existing)
		}
	}
	for _, rest := range []string{``, `,"domain":null`} {
		if got := p.post(generate, `{"merchantId":"`+id+`","type":"server_side"`+rest+`}`).is(200).body; got != existing {
			t.Errorf("%q: got %s\nwant %s", rest, got, existing)
		}
	}
	p.get(merchants+"/"+id).has("tracktags.server-side.subdomain", first.str("record.name")+".example.com")

	// A domain that is not a string, and another partner's merchant, are still refused.
	p.postf(generate, `{"merchantId":%q,"type":"server-side","domain":7}`, id).invalid("domain", "must be a string")
	other.postf(generate, `{"merchantId":%q,"type":"server-side","domain":"example.com"}`, id).fails(403, "FORBIDDEN", denied)
}

// A wrong domain is answered before existence and ownership: the answer says nothing about either.
func TestGenerateRefusesAWrongDomainWhateverTheMerchant(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	fresh, clientOnly := p.merchant("Shop"), p.merchant("Client-side only")
	p.generate(clientOnly, "client-side", "")
	theirs, tagged := other.merchant("Theirs"), other.merchant("Theirs, with a tag")
	other.generate(tagged, "server-side", "theirs.com")
	for _, merchant := range []string{fresh, clientOnly, nobody, theirs, tagged} {
		p.postf(generate, `{"merchantId":%q,"type":"server-side","domain":"bad"}`, merchant).
			invalid("domain", "must be a domain name such as example.com")
		p.postf(generate, `{"merchantId":%q,"type":"server-side"}`, merchant).invalid("domain", "is required")
	}
}

func TestGenerateRefusesParameters(t *testing.T) {
	const types = "must be one of client-side, server-side, preverified"
	const name = "must be a domain name such as example.com"
	p := newService(t).partner("Agency")
	id := p.merchant("Shop")
	for _, c := range []struct{ is, body, field, why string }{
		{"nothing at all", `{}`, "merchantId", "is required"},
		{"no merchantId", `{"type":"client-side"}`, "merchantId", "is required"},
		{"an empty merchantId", `{"merchantId":"","type":"client-side"}`, "merchantId", "is required"},
		{"null for merchantId", `{"merchantId":null,"type":"client-side"}`, "merchantId", "is required"},
		{"a merchantId of another form", `{"merchantId":"shop-1","type":"client-side"}`, "merchantId", "must be a UUID"},
		{"a UUID in braces", `{"merchantId":"{` + id + `}","type":"client-side"}`, "merchantId", "must be a UUID"},
		{"a number for merchantId", `{"merchantId":1,"type":"client-side"}`, "merchantId", "must be a string"},
		{"no type", `{"merchantId":"` + id + `"}`, "type", "is required"},
		{"an unknown type", `{"merchantId":"` + id + `","type":"browser"}`, "type", types},
		{"a type in another case", `{"merchantId":"` + id + `","type":"Client-Side"}`, "type", types},
		{"a list for type", `{"merchantId":"` + id + `","type":["client-side"]}`, "type", "must be a string"},
		{"a number for domain", `{"merchantId":"` + id + `","type":"client-side","domain":7}`, "domain", "must be a string"},
		{"no domain", `{"merchantId":"` + id + `","type":"server-side"}`, "domain", "is required"},
		{"an empty domain", `{"merchantId":"` + id + `","type":"server-side","domain":""}`, "domain", "is required"},
		{"a protocol", `{"merchantId":"` + id + `","type":"server-side","domain":"https://example.com"}`, "domain", "must not have a protocol: send example.com, not https://example.com"},
		{"www", `{"merchantId":"` + id + `","type":"server-side","domain":"www.example.com"}`, "domain", "must not start with www.: send the root domain"},
		{"a subdomain", `{"merchantId":"` + id + `","type":"server-side","domain":"shop.example.co.uk"}`, "domain", "must be the root domain example.co.uk, without a subdomain"},
		{"a public suffix", `{"merchantId":"` + id + `","type":"server-side","domain":"co.uk"}`, "domain", "must be a root domain such as example.com, not a public suffix"},
		{"one label", `{"merchantId":"` + id + `","type":"server-side","domain":"localhost"}`, "domain", name},
		{"an address", `{"merchantId":"` + id + `","type":"server-side","domain":"127.0.0.1"}`, "domain", name},
		{"a port", `{"merchantId":"` + id + `","type":"server-side","domain":"example.com:443"}`, "domain", name},
		{"a path", `{"merchantId":"` + id + `","type":"server-side","domain":"example.com/"}`, "domain", name},
		{"a final dot", `{"merchantId":"` + id + `","type":"server-side","domain":"example.com."}`, "domain", name},
		{"a line break", `{"merchantId":"` + id + `","type":"server-side","domain":"example.com\n"}`, "domain", name},
		{"an underscore", `{"merchantId":"` + id + `","type":"server-side","domain":"ex_ample.com"}`, "domain", name},
		{"a label that starts with a hyphen", `{"merchantId":"` + id + `","type":"server-side","domain":"-example.com"}`, "domain", name},
		{"parameters come before existence", `{"merchantId":"` + nobody + `","type":"server-side","domain":"bad"}`, "domain", name},
		{"preverified without access", `{"merchantId":"` + id + `","type":"preverified"}`, "type", ""},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.post(generate, c.body).in(t)
			if c.why == "" { // the engine chooses the words
				a.is(400).has("code", "VALIDATION_ERROR")
				if !strings.HasPrefix(a.str("message"), "Invalid request parameters: "+c.field+" ") {
					t.Errorf("the message does not name %s: %s", c.field, a.body)
				}
				return
			}
			a.invalid(c.field, c.why)
		})
	}
	p.get(merchants + "/" + id).keys("tracktags")
}

func TestGenerateChecksTheMerchantAndTheDomain(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	other.enablePreverified()
	id, theirs := p.merchant("Shop"), other.merchant("Theirs")
	other.generate(theirs, "server-side", "theirs.com")

	server := func(merchant, domain string) string {
		return fmt.Sprintf(`{"merchantId":%q,"type":"server-side","domain":%q}`, merchant, domain)
	}
	p.post(generate, server(nobody, "example.com")).fails(404, "NOT_FOUND", missing)
	p.post(generate, server(theirs, "example.com")).fails(403, "FORBIDDEN", denied)
	p.postf(generate, `{"merchantId":%q,"type":"preverified"}`, theirs).fails(403, "FORBIDDEN", denied)
	p.post(generate, server(id, "theirs.com")).fails(409, "VALIDATION_ERROR", "Domain already registered")
	p.post(generate, server(id, "THEIRS.com")).fails(409, "VALIDATION_ERROR", "Domain already registered")
	other.post(generate, server(other.merchant("Theirs too"), "theirs.com")).fails(409, "VALIDATION_ERROR", "Domain already registered")

	onPartnerDomain := p.post(generate, server(id, "agency.com")).is(400).has("code", "VALIDATION_ERROR")
	if !strings.HasPrefix(onPartnerDomain.str("message"), "Invalid request parameters: domain ") {
		t.Errorf("the message does not name the domain: %s", onPartnerDomain.body)
	}
	p.post(generate, server(id, "example.com")).is(200)
}

func TestConcurrentCallsMakeOneTag(t *testing.T) {
	p := newService(t).partner("Agency")
	id := p.merchant("Shop")
	bodies := make([]string, 16)
	var all sync.WaitGroup
	for i := range bodies {
		all.Go(func() {
			bodies[i] = p.postf(generate, `{"merchantId":%q,"type":"server-side","domain":"example.com"}`, id).body
		})
	}
	all.Wait()
	created := 0
	tags := map[string]bool{}
	for _, body := range bodies {
		a := answer{t: t, body: body}
		tags[a.str("tagId")] = true
		if a.str("message") == "New tag created successfully" {
			created++
		}
	}
	if created != 1 || len(tags) != 1 {
		t.Errorf("%d calls created a tag, and %d tags were returned; want one of each", created, len(tags))
	}
}
