package dns

import (
	"context"
	"net/netip"
	"testing"

	miekg "github.com/miekg/dns"
)

// FuzzAnswer passes messages to all code that reads the answers of strangers' servers. No message may cause a panic or
// an endless chain, or delegate to a zone outside the server's own.
func FuzzAnswer(f *testing.F) {
	for _, records := range [][]string{
		{"mtag-ab12.shop.com. CNAME edge.example.com."},
		{"mtag-ab12.shop.com. CNAME mtag-ab12.shop.com."},
		{"mtag-ab12.shop.com. A 192.0.2.1", "mtag-ab12.shop.com. AAAA 2001:db8::1"},
		{"mtag-ab12.shop.com. CNAME .", `a\.b.shop.com. CNAME \000.`},
		{`shop.com. CAA 0 issue "letsencrypt.org; validationmethods"`},
		nil,
	} {
		answer := new(miekg.Msg).SetReply(new(miekg.Msg).SetQuestion("mtag-ab12.shop.com.", miekg.TypeCNAME))
		for _, text := range records {
			answer.Answer = append(answer.Answer, rr(text))
		}
		f.Add(packed(f, answer))
		answer.Answer = nil
		answer.Ns = []miekg.RR{rr("mtag-ab12.shop.com. NS ns.mtag-ab12.shop.com.")}
		answer.Extra = []miekg.RR{rr("ns.mtag-ab12.shop.com. A 127.0.0.1")}
		f.Add(packed(f, answer))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		m := new(miekg.Msg)
		if m.Unpack(message) != nil || len(m.Question) != 1 {
			return
		}
		own := nameServer{name: "ns1.shop.com", zone: "shop.com."}
		if own.isLame(m) {
			return
		}
		seen := newView(own)
		seen.read(m, testHost+".")
		if d := seen.delegated; d != nil && (d.zone == own.zone || !miekg.IsSubDomain(own.zone, d.zone)) {
			t.Errorf("a server of %s delegated %s", own.zone, d.zone)
		}
		c := chain{
			lookup: &lookup{
				Verifier: &Verifier{target: testTarget + "."}, host: testHost + ".",
				targetAddresses: func() (map[netip.Addr]bool, error) { return map[netip.Addr]bool{}, nil },
			},
			chained: map[string]string{}, ask: func(context.Context, string) []view { return []view{seen} },
		}
		c.followPath(cancelled(t), []string{c.host})
		for _, alias := range seen.aliases {
			above(alias)
		}
		for _, record := range m.Answer {
			if caa, ok := record.(*miekg.CAA); ok {
				mayIssue([]*miekg.CAA{caa}, []string{"letsencrypt.org"})
			}
		}
	})
}

func packed(f *testing.F, m *miekg.Msg) []byte {
	b, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// cancelled returns a context that has ended, so that no server is asked.
func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
