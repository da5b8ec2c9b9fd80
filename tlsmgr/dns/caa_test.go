package dns

import (
	"fmt"
	"testing"

	miekg "github.com/miekg/dns"
)

func TestMayIssue(t *testing.T) {
	cases := []struct {
		sentence string
		records  []string
		want     bool
	}{
		{"the CA is named", []string{`0 issue "letsencrypt.org"`}, true},
		{"names compare without regard to case and space", []string{`0 Issue " LetsEncrypt.org "`}, true},
		{"another CA is named", []string{`0 issue "other.example"`}, false},
		{"the CA is one of several", []string{`0 issue "other.example"`, `0 issue "letsencrypt.org"`}, true},
		{"no CA is named", []string{`0 issue ";"`}, false},
		{"the CA is named for wildcards only", []string{`0 issue ";"`, `0 issuewild "letsencrypt.org"`}, false},
		{"only wildcards are restricted", []string{`0 issuewild "other.example"`}, true},
		{"there is only an address for reports", []string{`128 iodef "mailto:ca@shop.com"`}, true},
		{"an unknown property is critical", []string{`0 issue "letsencrypt.org"`, `128 future "x"`}, false},
		{"an unknown property is not critical", []string{`0 future "x"`}, true},
		{"a challenge of ours is allowed", []string{`0 issue "letsencrypt.org; validationmethods=dns-01,tls-alpn-01"`}, true},
		{"only other challenges are allowed", []string{`0 issue "letsencrypt.org;validationmethods=dns-01"`}, false},
		{"only an account is allowed", []string{`0 issue "letsencrypt.org; accounturi=https://ca.example/1"`}, false},
		{"one record allows an account, another one all accounts", []string{`0 issue "letsencrypt.org; AccountURI=https://ca.example/1"`, `0 issue "letsencrypt.org"`}, true},
		{"another parameter is set", []string{`0 issue "letsencrypt.org; cansignhttpexchanges=yes"`}, true},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s: %v", c.sentence, c.want), func(t *testing.T) {
			var records []*miekg.CAA
			for _, text := range c.records {
				records = append(records, rr("shop.com. CAA "+text).(*miekg.CAA))
			}
			if got := mayIssue(records, []string{"letsencrypt.org", "le.example"}); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
