package dns

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

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

func TestTheCAsIdentitiesComeFromItsDirectory(t *testing.T) {
	asked, status := 0, http.StatusOK
	directory := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(status)
		fmt.Fprint(w, `{"newNonce":"https://ca.example/nonce","meta":{"caaIdentities":["ca.example","ca.test"]}}`)
	}))
	t.Cleanup(directory.Close)
	now := testTime
	newDirectoryVerifier := func(t *testing.T) *ca {
		v := newVerifier(t, "127.0.0.1:53")
		v.ca.directory, v.ca.client = directory.URL, directory.Client()
		v.ca.now = func() time.Time { return now }
		return v.ca
	}
	want := []string{"ca.example", "ca.test"}

	t.Run("they are read once", func(t *testing.T) {
		c := newDirectoryVerifier(t)
		asked = 0
		for range 3 {
			if got := c.identities(t.Context()); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if asked != 1 {
			t.Errorf("the directory was read %d times", asked)
		}
	})
	t.Run("a directory that cannot be read is read again later", func(t *testing.T) {
		c := newDirectoryVerifier(t)
		status = http.StatusBadGateway
		if got := c.identities(t.Context()); got != nil {
			t.Errorf("got %q", got)
		}
		status = http.StatusOK
		if got := c.identities(t.Context()); got != nil {
			t.Errorf("got %q before directoryRetry has passed", got)
		}
		now = now.Add(directoryRetry)
		if got := c.identities(t.Context()); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a call does not wait for the directory when its context has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c := newDirectoryVerifier(t)
		c.identities(ctx)
		if got := c.identities(t.Context()); !slices.Equal(got, want) { // the read goes on for other calls
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("without a directory there are none", func(t *testing.T) {
		if got := newVerifier(t, "127.0.0.1:53").ca.identities(t.Context()); got != nil {
			t.Errorf("got %q", got)
		}
	})
}
