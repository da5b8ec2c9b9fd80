package partnerapi

import (
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// signedIn is a partner whose requests come from the web console.
type signedIn struct {
	*partner
	session store.Session
	cookie  string
}

// signIn begins a session with the partner's key, or with another one.
func (p *partner) signIn(key store.KeyID) signedIn {
	p.t.Helper()
	if key == "" {
		var err error
		if key, err = store.APIKey(p.key).ID(); err != nil {
			p.t.Fatal(err)
		}
	}
	s, text, err := p.engine.BeginSession(p.t.Context(), key)
	if err != nil {
		p.t.Fatal(err)
	}
	return signedIn{p, s, "__Host-mtagd_session=" + string(text)}
}

// useLink begins a session with a link.
func (p *partner) useLink() signedIn {
	p.t.Helper()
	_, link, err := p.engine.AddLink(p.t.Context(), p.ID)
	if err != nil {
		p.t.Fatal(err)
	}
	s, text, err := p.engine.UseLink(p.t.Context(), link)
	if err != nil {
		p.t.Fatal(err)
	}
	return signedIn{p, s, "__Host-mtagd_session=" + string(text)}
}

// send sends a request as the console does. More headers may follow.
func (c signedIn) send(method, uri, body string, headers ...string) answer {
	c.t.Helper()
	return c.request(method, uri, body, append([]string{"Host", "api.example.net", "Cookie", c.cookie, "X-Console", "1"}, headers...)...)
}

func TestASessionStandsForItsKey(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	c := p.signIn("")
	a := c.send("GET", config, "").is(200).has("partnerId", string(p.ID))
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
		"Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
		"Access-Control-Allow-Origin": "", "Set-Cookie": ""} {
		if got := string(a.header.Peek(name)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	c.send("POST", merchants, `{"name":"Shop"}`).is(201)
	if keys := c.send("GET", "/v1/partners/key", "").is(200); !strings.Contains(keys.body, `"current":true`) {
		t.Errorf("no key is the current one: %s", keys.body)
	}
	entries, err := s.engine.Audit(t.Context(), store.AuditQuery{Limit: 1})
	if err != nil || entries[0].Actor.Kind != store.ByKey || entries[0].Actor.Name != string(c.session.Key) {
		t.Errorf("%+v, %v", entries, err)
	}

	other := s.partner("Other")
	c.send("GET", config, "", "Authorization", "Bearer "+other.key).is(200).has("partnerId", string(other.ID))
	c.send("GET", config, "", "Authorization", "Bearer x").unauthenticated()
	c.send("GET", config, "", "Authorization", "").unauthenticated()
}

func TestASessionOfALinkIsItsPartners(t *testing.T) {
	s := newService(t)
	c := s.partner("Agency").useLink()
	c.send("POST", merchants, `{"name":"Shop"}`).is(201)
	entries, err := s.engine.Audit(t.Context(), store.AuditQuery{Limit: 1})
	if err != nil || entries[0].Actor.Kind != store.ByLink || entries[0].Actor.Name != string(c.session.Link) {
		t.Errorf("%+v, %v", entries, err)
	}
	if keys := c.send("GET", "/v1/partners/key", "").is(200); strings.Contains(keys.body, `"current":true`) {
		t.Errorf("a key is the current one: %s", keys.body)
	}
}

func TestAnOperatorsSessionIsNoPartners(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	p.ID = ""
	p.useLink().send("GET", config, "").unauthenticated()
}

func TestASessionOfAReadOnlyKeyChangesNothing(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	key, _, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	c := p.signIn(key.ID)
	c.send("GET", config, "").is(200)
	c.send("POST", merchants, `{"name":"Shop"}`).is(403)
}

// Other sites make a visitor's browser send requests with the cookie.
func TestOnlyTheConsoleMayUseASession(t *testing.T) {
	s := newService(t)
	c := s.partner("Agency").signIn("")
	const own = "https://api.example.net"
	for _, r := range []struct {
		is      string
		method  string
		headers []string
		may     bool
	}{
		{"the console", "POST", []string{"X-Console", "1", "Sec-Fetch-Site", "same-origin", "Origin", own}, true},
		{"the console with a policy of no-referrer", "POST", []string{"X-Console", "1", "Sec-Fetch-Site", "same-origin", "Origin", "null"}, true},
		{"an old browser", "POST", []string{"X-Console", "1", "Origin", own}, true},
		{"a program", "POST", []string{"X-Console", "1"}, true},
		{"a download", "GET", []string{"Sec-Fetch-Site", "same-origin"}, true},
		{"a look at a download", "HEAD", []string{"Sec-Fetch-Site", "same-origin"}, true},

		{"a form of the same origin", "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", own}, false},
		{"no header", "POST", nil, false},
		{"an image of another site in an old browser", "GET", nil, false},
		{"an image of another site", "GET", []string{"Sec-Fetch-Site", "cross-site"}, false},
		{"a page of the same site", "GET", []string{"Sec-Fetch-Site", "same-site"}, false},
		{"an address that was typed", "GET", []string{"Sec-Fetch-Site", "none"}, false},
		{"another value of X-Console", "POST", []string{"X-Console", "true", "Sec-Fetch-Site", "same-origin"}, false},
		{"another site", "POST", []string{"X-Console", "1", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, false},
		{"the same site", "POST", []string{"X-Console", "1", "Sec-Fetch-Site", "same-site", "Origin", "https://tags.example.net"}, false},
		{"a page of the same site with the header", "GET", []string{"X-Console", "1", "Sec-Fetch-Site", "same-site"}, false},
		{"another site in an old browser", "POST", []string{"X-Console", "1", "Origin", "https://evil.example"}, false},
		{"plain HTTP", "POST", []string{"X-Console", "1", "Origin", "http://api.example.net"}, false},
		{"another port", "POST", []string{"X-Console", "1", "Origin", own + ":8443"}, false},
		{"a sandbox", "POST", []string{"X-Console", "1", "Origin", "null"}, false},
	} {
		t.Run(r.is, func(t *testing.T) {
			uri, body := config, ""
			if r.method == "POST" {
				uri, body = merchants, `{"name":"Shop"}`
			}
			a := s.request(r.method, uri, body, append([]string{"Host", "api.example.net", "Cookie", c.cookie}, r.headers...)...).in(t)
			if r.may != (a.status < 300) {
				t.Errorf("got %d %s, want that it may: %v", a.status, a.body, r.may)
			}
			if !r.may {
				a.unauthenticated()
			}
			a = s.request("OPTIONS", uri, "", "Host", "api.example.net", "Origin", "https://evil.example", "Access-Control-Request-Headers", "x-console").in(t)
			if got := a.is(405).header.Peek("Access-Control-Allow-Origin"); len(got) > 0 {
				t.Errorf("a preflight is allowed for %s", got)
			}
		})
	}
}

func TestASessionEndsWhen(t *testing.T) {
	for _, e := range []struct {
		is     string
		happen func(c signedIn) error
	}{
		{"its key is revoked", func(c signedIn) error {
			_, err := c.engine.RevokeKey(t.Context(), c.session.Key, true)
			return err
		}},
		{"it is ended", func(c signedIn) error { return c.engine.EndSession(t.Context(), c.session.ID) }},
		{"its partner is deleted", func(c signedIn) error {
			_, err := c.engine.DeletePartner(t.Context(), c.ID, true)
			return err
		}},
		{"its time is over", func(c signedIn) error {
			c.advance(store.SessionLife)
			return nil
		}},
	} {
		t.Run(e.is, func(t *testing.T) {
			s := newService(t)
			s.api.heartbeat = 10 * time.Millisecond
			p := s.shops(1)
			c := p.partner.signIn("")
			stream := newStreamClient(t, s)
			_, next := stream.open(p.partner, "?after=latest", "Authorization", "", "Cookie", c.cookie, "Sec-Fetch-Site", "same-origin") // as an EventSource
			p.send(0, "A")
			if _, data := next(); !strings.Contains(data, `"A"`) {
				t.Fatalf("the first event is %q", data)
			}
			c.send("GET", config, "").is(200)
			if err := e.happen(c); err != nil {
				t.Fatal(err)
			}
			c.send("GET", config, "").unauthenticated()
			if e.is != "its partner is deleted" { // its tags are gone too
				p.send(0, "B")
			}
			if _, data := next(); data != "" {
				t.Errorf("then the stream has %s", data)
			}
		})
	}
}

func TestTwoCookiesAreNone(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	c, other := p.signIn(""), s.partner("Other").signIn("")
	c.send("GET", config, "", "Cookie", other.cookie).unauthenticated()
	c.cookie += "; _muid=x"
	c.send("GET", config, "").is(200)
}

// The front door reads a large body only for a request that may have one.
func TestASessionMayHaveALargeBody(t *testing.T) {
	s := newService(t)
	c := s.partner("Agency").signIn("")
	needs := NeedsBody(s.engine.Directory(), "https://api.example.net", s.now)
	for _, test := range []struct {
		header string
		want   bool
	}{{"X-Console", true}, {"X-Other", false}} {
		var r fasthttp.RequestCtx
		r.Request.Header.SetMethod("POST")
		r.Request.SetHost("api.example.net")
		r.Request.Header.Set("Cookie", c.cookie)
		r.Request.Header.Set(test.header, "1")
		if got := needs(&r); got != test.want {
			t.Errorf("with %s: %v, want %v", test.header, got, test.want)
		}
	}
}
