package console

import (
	"bytes"
	"context"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"log/slog"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge"
	"mtagd/edge/refused"
	"mtagd/partnerapi"
	"mtagd/store"
	"mtagd/store/local"
)

// service is the console in front of the partner API, over a real engine. The test controls its clock.
type service struct {
	t      *testing.T
	engine store.Engine
	serve  fasthttp.RequestHandler
	now    atomic.Int64 // ns since 1970; the engine asks in the background, too
	log    bytes.Buffer
	system System
	from   string // address of the client
}

func (s *service) time() time.Time { return time.Unix(0, s.now.Load()).UTC() }

func (s *service) setNow(t time.Time) { s.now.Store(t.UnixNano()) }

func newService(t *testing.T, change ...func(cfg *Config)) *service {
	t.Helper()
	s := &service{t: t, from: "192.0.2.1"}
	s.setNow(time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC))
	engine, err := local.Open(t.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler), Now: s.time})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	s.engine = engine
	cfg := Config{
		Engine:   engine,
		BaseURL:  "https://api.example.net",
		OwnHosts: []string{"api.example.net", "tags.example.net"},
		System:   func() System { return s.system },
		Log:      slog.New(slog.NewTextHandler(&s.log, nil)),
		Now:      s.time,
	}
	for _, c := range change {
		c(&cfg)
	}
	cfg.API = partnerapi.New(partnerapi.Config{
		Engine: engine, BaseURL: cfg.BaseURL, ClientTagHost: "tags.example.net", CNAMETarget: "cname.example.net",
		TagURL: func(host string) string { return "https://" + host }, Log: cfg.Log, Now: cfg.Now,
		Context: edge.ClientContext, Waiting: edge.WaitContext, Refused: refused.New(cfg.Now),
	})
	s.serve = New(cfg).Serve
	return s
}

func limited(cfg *Config) { cfg.Limits = true }

type answer struct {
	t      *testing.T
	status int
	header *fasthttp.ResponseHeader
	body   string
	caller string // as partnerapi.PartnerOf
}

// request sends a request. headers are pairs of name and value.
func (s *service) request(method, uri, body string, headers ...string) answer {
	s.t.Helper()
	var r fasthttp.RequestCtx
	r.Init(&fasthttp.Request{}, &net.TCPAddr{IP: net.ParseIP(s.from), Port: 1234}, nil)
	r.Request.Header.SetMethod(method)
	r.Request.SetRequestURI(uri)
	r.Request.SetHost("api.example.net")
	r.Request.SetBodyString(body)
	for pair := range slices.Chunk(headers, 2) {
		r.Request.Header.Add(pair[0], pair[1])
	}
	s.serve(&r)
	return answer{s.t, r.Response.StatusCode(), &r.Response.Header, string(r.Response.Body()), partnerapi.PartnerOf(&r)}
}

func (a answer) is(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("got %d %s, want %d", a.status, a.body, status)
	}
	return a
}

// fails expects the standard error body of the partner API.
func (a answer) fails(status int, code string) answer {
	a.t.Helper()
	var body struct {
		Message, Code string
		StatusCode    int
	}
	if err := json.Unmarshal([]byte(a.is(status).body), &body); err != nil || body.Code != code || body.StatusCode != status || body.Message == "" {
		a.t.Errorf("got %s, %v; want %s", a.body, err, code)
	}
	return a
}

func (a answer) says(text string) answer {
	a.t.Helper()
	if !strings.Contains(a.body, text) {
		a.t.Errorf("got %s, want %s in it", a.body, text)
	}
	return a
}

// cookie returns the cookie that an answer has set, as the browser sends it back.
func (a answer) cookie() string {
	a.t.Helper()
	set := string(a.header.Peek("Set-Cookie"))
	pair, _, _ := strings.Cut(set, ";")
	if pair == "" {
		a.t.Fatalf("no cookie was set: %d %s", a.status, a.body)
	}
	return pair
}

func (s *service) partner(name string) (store.Partner, store.Key, store.APIKey) {
	s.t.Helper()
	p, err := s.engine.AddPartner(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	key, text, err := s.engine.IssueKey(s.t.Context(), p.ID, store.KeyOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return p, key, text
}

func (s *service) link(p store.PartnerID) store.SessionText {
	s.t.Helper()
	_, text, err := s.engine.AddLink(s.t.Context(), p)
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

const sessionPath = "/console/session"

func (s *service) signIn(key store.APIKey) answer {
	s.t.Helper()
	return s.request("POST", sessionPath, `{"apiKey":"`+string(key)+`"}`)
}

func (s *service) useLink(link store.SessionText) answer {
	s.t.Helper()
	return s.request("POST", sessionPath, `{"link":"`+string(link)+`"}`)
}

func (s *service) operator() (cookie string) {
	s.t.Helper()
	return s.useLink(s.link("")).is(200).cookie()
}

func TestSignInWithAKey(t *testing.T) {
	s := newService(t)
	p, key, text := s.partner("Agency")
	want := `{"role":"partner","partner":{"id":"` + string(p.ID) + `","name":"Agency"},"scope":"full","expiresAt":"2026-11-20T20:30:00Z"}`
	a := s.signIn(text).is(200)
	if a.body != want {
		t.Errorf("got  %s\nwant %s", a.body, want)
	}
	set := string(a.header.Peek("Set-Cookie"))
	for _, part := range []string{"__Host-mtagd_session=mtc_", "; path=/;", "; HttpOnly", "; secure", "; SameSite=Strict", "max-age=43200"} {
		if !strings.Contains(set, part) {
			t.Errorf("the cookie is without %q", part)
		}
	}
	if strings.Contains(strings.ToLower(set), "domain") {
		t.Error("the cookie has a domain")
	}
	cookie := a.cookie()
	if got := s.request("GET", sessionPath, "", "Cookie", cookie).is(200).body; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.request("GET", "/v1/partners/config", "", "Cookie", cookie, "X-Console", "1").is(200).says(string(p.ID))
	s.request("GET", "/v1/partners/config", "", "Cookie", cookie).is(401)

	s.request("DELETE", sessionPath, "", "Cookie", cookie, "Sec-Fetch-Site", "cross-site").fails(403, "FORBIDDEN")
	a = s.request("DELETE", sessionPath, "", "Cookie", cookie).is(204)
	if set := string(a.header.Peek("Set-Cookie")); !strings.Contains(set, "__Host-mtagd_session=;") || !strings.Contains(set, "expires=Tue, 10 Nov 2009") {
		t.Errorf("signing out sets %q", set)
	}
	s.request("GET", sessionPath, "", "Cookie", cookie).fails(401, "AUTHENTICATION_ERROR")
	s.request("GET", "/v1/partners/config", "", "Cookie", cookie, "X-Console", "1").is(401)
	s.request("DELETE", sessionPath, "", "Cookie", cookie).is(204)

	entries, err := s.engine.Audit(t.Context(), store.AuditQuery{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	for i, action := range []store.AuditAction{store.SessionEnded, store.SessionBegun} {
		if e := entries[i]; e.Action != action || e.Actor.Kind != store.ByKey || e.Actor.Name != string(key.ID) || e.Partner != p.ID {
			t.Errorf("%+v, want %s", e, action)
		}
	}
	for _, secret := range []string{string(text), strings.TrimPrefix(cookie, "__Host-mtagd_session=")} {
		if strings.Contains(s.log.String(), secret) {
			t.Error("the log has a secret")
		}
	}
}

func TestSignInWithAReadOnlyKey(t *testing.T) {
	s := newService(t)
	p, _, _ := s.partner("Agency")
	_, text, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly, ExpiresIn: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	a := s.signIn(text).is(200).says(`"scope":"read-only"`).says(`"expiresAt":"2026-11-20T09:30:00Z"`)
	s.request("POST", "/v1/partners/merchant", `{"name":"Shop"}`, "Cookie", a.cookie(), "X-Console", "1").fails(403, "FORBIDDEN")
	s.setNow(s.time().Add(time.Hour))
	s.request("GET", sessionPath, "", "Cookie", a.cookie()).is(401)
}

func TestSignInWithALink(t *testing.T) {
	s := newService(t)
	p, _, _ := s.partner("Agency")
	link := s.link(p.ID)
	a := s.useLink(link).is(200).says(`"role":"partner"`).says(`"scope":"full"`)
	s.request("POST", "/v1/partners/merchant", `{"name":"Shop"}`, "Cookie", a.cookie(), "X-Console", "1").is(201)
	s.useLink(link).fails(401, "AUTHENTICATION_ERROR")
	late := s.link(p.ID)
	s.setNow(s.time().Add(store.LinkLife))
	s.useLink(late).fails(401, "AUTHENTICATION_ERROR")
	if strings.Contains(s.log.String(), string(link)) {
		t.Error("the log has the link")
	}
	session := strings.TrimPrefix(a.cookie(), "__Host-mtagd_session=")
	s.useLink(store.SessionText(session)).is(401)
	s.request("GET", sessionPath, "", "Cookie", "__Host-mtagd_session="+string(s.link(p.ID))).is(401)
}

func TestWhoIsSuspendedCanSignInAndRead(t *testing.T) {
	s := newService(t)
	p, _, text := s.partner("Agency")
	if _, err := s.engine.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.Suspended = true; return p }); err != nil {
		t.Fatal(err)
	}
	cookie := s.signIn(text).is(200).cookie()
	s.request("GET", "/v1/partners/merchant", "", "Cookie", cookie, "X-Console", "1").is(200)
	s.request("POST", "/v1/partners/merchant", `{"name":"Shop"}`, "Cookie", cookie, "X-Console", "1").is(403)
}

func TestSignInRefusesWhatIsWrong(t *testing.T) {
	s := newService(t)
	_, _, text := s.partner("Agency")
	valid := `{"apiKey":"` + string(text) + `"}`
	for _, c := range []struct {
		is, body string
		headers  []string
		status   int
		code     string
		says     string
	}{
		{"nothing", "", nil, 400, "VALIDATION_ERROR", "body"},
		{"no object", `"x"`, nil, 400, "VALIDATION_ERROR", "body"},
		{"a number", `{"apiKey":1}`, nil, 400, "VALIDATION_ERROR", "body"},
		{"an object without either", `{}`, nil, 400, "VALIDATION_ERROR", "apiKey"},
		{"both", `{"apiKey":"a","link":"b"}`, nil, 400, "VALIDATION_ERROR", "link"},
		{"a large body", `{"apiKey":"` + strings.Repeat("a", 5000) + `"}`, nil, 413, "VALIDATION_ERROR", ""},
		{"a wrong key", `{"apiKey":"mtp_x"}`, nil, 401, "AUTHENTICATION_ERROR", "Authentication required"},
		{"a key in the place of a link", `{"link":"` + string(text) + `"}`, nil, 401, "AUTHENTICATION_ERROR", ""},
		{"another site", valid, []string{"Sec-Fetch-Site", "cross-site"}, 403, "FORBIDDEN", ""},
		{"another site in an old browser", valid, []string{"Origin", "https://evil.example"}, 403, "FORBIDDEN", ""},
		{"a sandbox", valid, []string{"Origin", "null"}, 403, "FORBIDDEN", ""},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := s.request("POST", sessionPath, c.body, c.headers...)
			a.t = t
			a.fails(c.status, c.code).says(c.says)
			if set := a.header.Peek("Set-Cookie"); len(set) > 0 {
				t.Error("a cookie was set")
			}
		})
	}
	s.request("POST", sessionPath, valid, "Origin", "https://api.example.net", "Sec-Fetch-Site", "same-origin").is(200)
	a := s.request("PUT", sessionPath, valid).fails(405, "VALIDATION_ERROR")
	if got := string(a.header.Peek("Allow")); got != "DELETE, GET, HEAD, POST" {
		t.Errorf("Allow: %s", got)
	}
}

// The front door does not read a chunked body that has no key before it.
func TestSignInWithoutALength(t *testing.T) {
	s := newService(t)
	var r fasthttp.RequestCtx
	r.Request.Header.SetMethod("POST")
	r.Request.SetRequestURI(sessionPath)
	r.Request.Header.SetContentLength(-1)
	s.serve(&r)
	answer{t, r.Response.StatusCode(), &r.Response.Header, string(r.Response.Body()), ""}.fails(411, "VALIDATION_ERROR").says("Content-Length")
}

func TestInDevelopmentTheCookieNeedsNoTLS(t *testing.T) {
	s := newService(t, func(cfg *Config) { cfg.BaseURL = "http://127.0.0.1:8080" })
	_, _, text := s.partner("Agency")
	a := s.signIn(text).is(200)
	if set := string(a.header.Peek("Set-Cookie")); !strings.HasPrefix(set, "mtagd_session=mtc_") || strings.Contains(set, "secure") {
		t.Errorf("it is set with %q", strings.Split(set, ";")[1:])
	}
	if hsts := a.header.Peek("Strict-Transport-Security"); len(hsts) > 0 {
		t.Errorf("Strict-Transport-Security: %s", hsts)
	}
	s.request("GET", "/v1/partners/config", "", "Cookie", a.cookie(), "X-Console", "1").is(200)
}

func TestWhoGuessesTooOftenMustWait(t *testing.T) {
	s := newService(t, limited)
	_, key, text := s.partner("Agency")
	wrong := withChecksum("mtp_" + string(key.ID) + strings.Repeat("a", 32))
	status := func(n int) (last answer) {
		for range n {
			last = s.signIn("mtp_x")
		}
		return last
	}
	status(int(addressRate.Burst)).is(401)
	a := status(1).fails(429, "SERVICE_ERROR")
	if got := string(a.header.Peek("Retry-After")); got == "" || got == "0" {
		t.Errorf("Retry-After: %q", got)
	}
	s.useLink("mtl_x").is(429)
	s.signIn(text).is(200) // somebody else with this address
	s.from = "192.0.2.2"
	status(1).is(401)
	s.setNow(s.time().Add(time.Minute))
	s.from = "192.0.2.1"
	status(1).is(401)

	// One key from many addresses.
	for i := range int(keyRate.Burst) + 1 {
		s.from = "198.51.100." + strconv.Itoa(i)
		want := 401
		if i == int(keyRate.Burst) {
			want = 429
		}
		s.signIn(wrong).is(want)
	}
	s.signIn(text).is(200)
}

// lookups is an engine that counts the links it was asked for.
type lookups struct {
	store.Engine
	links int
}

func (e *lookups) UseLink(ctx context.Context, text store.SessionText) (store.Session, store.SessionText, error) {
	e.links++
	return e.Engine.UseLink(ctx, text)
}

func (e *lookups) Link(ctx context.Context, text store.SessionText) (store.Session, error) {
	e.links++
	return e.Engine.Link(ctx, text)
}

// Links of an address that has sent too many are not looked up, neither to show them nor to use them.
func TestWrongLinksAreRefusedBeforeTheEngine(t *testing.T) {
	var engine lookups
	s := newService(t, limited, func(cfg *Config) {
		engine.Engine = cfg.Engine
		cfg.Engine = &engine
	})
	for n := range 3 * int(addressRate.Burst) {
		_, text := store.NewLink("", s.time())
		want := 401
		if n >= int(addressRate.Burst) {
			want = 429
		}
		if n%2 == 0 {
			s.useLink(text).is(want)
		} else {
			s.request("POST", linkPath, `{"link":"`+string(text)+`"}`).is(want)
		}
	}
	if engine.links > int(addressRate.Burst) {
		t.Errorf("the engine was asked for %d links", engine.links)
	}
}

// Who has one key of a partner cannot keep those with another one from signing in.
func TestAKeyBeginsSoManySessions(t *testing.T) {
	s := newService(t, limited)
	p, _, text := s.partner("Agency")
	_, other, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range int(beginRate.Burst) {
		s.signIn(text).is(200)
	}
	s.signIn(text).fails(429, "SERVICE_ERROR")
	s.signIn(other).is(200)
	s.setNow(s.time().Add(time.Minute))
	s.signIn(text).is(200)
}

func TestPage(t *testing.T) {
	s := newService(t)
	for _, path := range []string{"/console/", "/console/merchants/1?tab=events", "/console/operator", "/console/session/x", "/console/index.html"} {
		a := s.request("GET", path, "", "Accept-Encoding", "gzip").is(200)
		for name, want := range map[string]string{
			"Content-Type":                 "text/html; charset=utf-8",
			"Content-Encoding":             "gzip",
			"Cache-Control":                "no-cache",
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
				"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		} {
			if got := string(a.header.Peek(name)); got != want {
				t.Errorf("%s: %s: %q, want %q", path, name, got, want)
			}
		}
		if len(a.header.Peek("Permissions-Policy")) == 0 {
			t.Errorf("%s: no Permissions-Policy", path)
		}
		s.request("GET", path, "", "Accept-Encoding", "gzip", "If-None-Match", string(a.header.Peek("ETag"))).is(304)
	}
	a := s.request("GET", "/console", "").is(308)
	if got := string(a.header.Peek("Location")); got != "/console/" {
		t.Errorf("Location: %s", got)
	}
	a = s.request("POST", "/console/", "").fails(405, "VALIDATION_ERROR")
	if got := string(a.header.Peek("Allow")); got != "GET, HEAD" {
		t.Errorf("Allow: %s", got)
	}
	s.request("GET", "/consoles", "").fails(404, "NOT_FOUND")
	s.request("GET", "/v1/partners/config", "").is(401)
}

func TestAssets(t *testing.T) {
	s := newService(t)
	page := string(s.request("GET", "/console/", "").is(200).body)
	for name := range pageFiles() {
		if name == "index.html" {
			continue
		}
		a := s.request("GET", "/console/assets/"+name, "", "Accept-Encoding", "br").is(200)
		if got := string(a.header.ContentType()); got != contentTypes[path.Ext(name)] || got == "" || string(a.header.Peek("Content-Encoding")) != "br" {
			t.Errorf("%s: %s", name, got)
		}
		if len(a.header.Peek("ETag")) == 0 || len(a.header.Peek("Content-Security-Policy")) == 0 || string(a.header.Peek("Cache-Control")) != "no-cache" {
			t.Errorf("%s: %s", name, a.header)
		}
		s.request("GET", "/console/assets/"+name, "", "Accept-Encoding", "br", "If-None-Match", string(a.header.Peek("ETag"))).is(304)
		if name != "chart.js" && !strings.Contains(page, `"/console/assets/`+name+`"`) {
			t.Errorf("the page does not load %s", name)
		}
	}
	for _, name := range []string{"", "none.js"} {
		s.request("GET", "/console/assets/"+name, "").is(404)
	}
}

// withChecksum appends the checksum to the prefix, id and secret of an API key.
func withChecksum(key string) store.APIKey {
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(strings.TrimPrefix(key, "mtp_"))))
	return store.APIKey(key + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum)))
}

// Signing in ends the session that the browser had: nobody could end it any more.
func TestASessionThatIsReplaced(t *testing.T) {
	s := newService(t)
	_, _, text := s.partner("Agency")
	_, _, other := s.partner("Other")
	old := s.signIn(text).is(200)
	replaced := s.request("POST", "/console/session", `{"apiKey":"`+string(other)+`"}`, "Cookie", old.cookie()).is(200)
	s.request("GET", "/console/session", "", "Cookie", old.cookie()).is(401)
	s.request("GET", "/console/session", "", "Cookie", replaced.cookie()).is(200)
}
