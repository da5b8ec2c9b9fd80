package partnerapi

import (
	"strings"
	"testing"

	"mtagd/store"
)

// FuzzRequest checks that the answer to any request is JSON, and never a 5xx.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][3]string{
		{"GET", merchants + "?page=2&limit=100", ""},
		{"POST", merchants, `{"name":"Shop","domain":"example.com"}`},
		{"GET", merchants + "/" + nobody, ""},
		{"GET", merchants + "/%2e%2e/%zz", ""},
		{"PATCH", merchants + "/ID", `{"identityRequiresSecret":true}`},
		{"POST", merchants + "/ID/secret", ""},
		{"DELETE", merchants + "/ID/secret/x", ""},
		{"POST", generate, `{"merchantId":"` + nobody + `","type":"server-side","domain":"example.com"}`},
		{"POST", tracktag, `{"merchantId":"ID","type":"preverified"}`},
		{"POST", tracktag, `{"merchantId":"ID","type":"server_side","domain":"xn--e1afmkfd.com"}`},
		{"POST", verify, `{"merchantId":"ID","tagId":"ss_x","subdomain":"mtag-ab12.example.com"}`},
		{"GET", tracktag + "/cs_\xff", ""},
		{"GET", events + "?merchantId=ID&events=A,B&startDate=2026-11-20&endDate=2026-11-20T08:30:00+02:00&tagId=cs_x", ""},
		{"GET", events + "?merchantId=ID&sortBy=event_name&sortOrder=asc&page=92233720368547758&limit=100", ""},
		{"GET", debugRefused + "?merchantId=ID&tagId=TAG&limit=1000", ""},
		{"POST", debugMark + "?tagId=TAG&withSecret=true", `[{"muid":"m","event":"Purchse","products":[{"id":7}]},{"event":"\ud83d","curency":"é"},7]`},
		{"OPTIONS", "*", ""},
		{"BREW", "//a/../b;c?d#e", "\x00"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	s := newService(f)
	s.finds(store.DNSPending)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag := p.generate(id, "client-side", "").str("tagId")
	s.record(id, tag, event{at: "2026-11-20T08:00:00Z", name: "A"}, event{at: "2026-11-20T08:00:01Z", name: "B"})
	ids := strings.NewReplacer("ID", id, "TAG", tag)
	f.Fuzz(func(t *testing.T, method, uri, body string) {
		s.t = t
		a := p.request(method, ids.Replace(uri), ids.Replace(body), "Authorization", "Bearer "+p.key)
		if a.status >= 500 {
			t.Errorf("%d %s: %s", a.status, a.body, s.log.String())
		}
		a.is(a.status)
	})
}
