package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/tag/tagtest"
	"mtagd/partnerapi"
	"mtagd/store"
)

func TestTheHostDecidesTheProtocol(t *testing.T) {
	w := newWorld(t)
	client := string(w.Client.ID)
	for _, tt := range []struct {
		name, host, path string
		status           int
		part             string
	}{
		{"the client tag host", clientHost, "/mark/" + client, 201, "Event accepted"},
		{"a host in capitals with a port", strings.ToUpper(clientHost) + ":8080", "/mark/" + client, 201, ""},
		{"a port that is none", clientHost + ":99999", "/mark/" + client, 400, "host and an optional port"},
		{"an empty port", clientHost + ":", "/mark/" + client, 201, ""},
		{"a host with a trailing dot", clientHost + ".", "/mark/" + client, 201, ""},
		{"the host of a tag", w.ServerSide.Host, "/mark", 201, ""},
		{"a percent-encoded tag id", clientHost, "/mark/" + strings.Replace(client, "_", "%5F", 1), 201, ""},
		{"a tag in a longer query", clientHost, "/mark?x=http://y&tagId=" + strings.Replace(client, "_", "%5F", 1) + "&z=1", 201, ""},
		{"two slashes", clientHost, "//mark/" + client, 404, "Not found"},
		{"dots in the path", clientHost, "/x/../mark/" + client, 404, "Not found"},
		{"the base host is the partner API's", baseHost, "/mark/" + client, 200, `{"partner":"/mark/`},
		{"a foreign host", "evil.test", "/mark/" + client, 421, `{"success":false,"message":`},
		{"a partner path on a foreign host", "evil.test", "/v1/partners/merchant", 421, `"statusCode":421`},
		{"a host behind a user name", "x@" + clientHost, "/mark/" + client, 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) { w.do("POST", tt.host, tt.path, event).Want(t, tt.status, tt.part) })
	}
}

func TestA413NamesTheLimitThatApplies(t *testing.T) {
	w := newWorld(t)
	mark := "/mark/" + string(w.Client.ID)
	const single = `{"success":false,"message":"one event must be at most 64 KiB"}`
	const either = `{"success":false,"message":"one event must be at most 64 KiB, and a batch at most 1 MiB"}`
	for _, tt := range []struct {
		name, host, path, body, want string
	}{
		{"an event", clientHost, mark, `{"x":"` + strings.Repeat("a", 64<<10) + `"}`, single},
		{"an event beyond the limit of any body", clientHost, mark, `{"x":"` + strings.Repeat("a", 3<<20) + `"}`, either},
		{"a batch", clientHost, mark, "[" + strings.Repeat(" ", 1<<20) + event + "]", either},
		{"a body for the partner API", baseHost, "/v1/partners/merchant", strings.Repeat(" ", 2<<20), "larger than 64 KiB"},
	} {
		t.Run(tt.name, func(t *testing.T) { w.do("POST", tt.host, tt.path, tt.body).Want(t, 413, tt.want) })
	}
}

// fasthttp empties a request whose chunked body it cannot read. The answer must be the one to the request all the same.
func TestAnUnreadableChunkedBodyIsAnsweredInTheFormOfItsHost(t *testing.T) {
	w := newWorld(t)
	const tooLarge, broken = "200000\r\n", "x\r\n"
	for _, tt := range []struct {
		name, host, path, body string
		wants                  []string
	}{
		{"too large for the partner API", baseHost, "/v1/partners/merchant", tooLarge,
			[]string{"HTTP/1.1 413 ", `"statusCode":413`, "larger than 64 KiB"}},
		{"too large for a tag host", clientHost, "/mark", tooLarge,
			[]string{"HTTP/1.1 413 ", "one event must be at most 64 KiB", "Access-Control-Allow-Origin: https://shop.test"}},
		{"broken, to the partner API", baseHost, "/v1/partners/merchant", broken,
			[]string{"HTTP/1.1 400 ", `"statusCode":400`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := w.raw("POST "+tt.path+" HTTP/1.1\r\nHost: "+tt.host+"\r\nOrigin: https://shop.test\r\n"+
				"X-Request-Id: of-chunks\r\nTransfer-Encoding: chunked\r\n\r\n"+tt.body, true)
			for _, want := range append(tt.wants, "X-Request-Id: of-chunks") {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in %q", want, got)
				}
			}
		})
	}
	t.Run("the head of an earlier request is forgotten", func(t *testing.T) {
		c := w.dial()
		defer c.Close()
		fmt.Fprintf(c, "POST /v1/x HTTP/1.1\r\nHost: %s\r\nX-Request-Id: first\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", baseHost)
		replies := bufio.NewReader(c)
		first := readReply(t, replies)
		if _, err := io.WriteString(c, "nonsense\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		second := readReply(t, replies)
		if id := second.Header.Get("X-Request-Id"); first.Header.Get("X-Request-Id") != "first" || id == "first" || id == "" {
			t.Errorf("the answers have the ids %q and %q, want first and another one", first.Header.Get("X-Request-Id"), id)
		}
	})
}

// HEAD gets the headers of GET and no body.
func TestHeadOfAGetRoute(t *testing.T) {
	w := newWorld(t)
	for _, path := range []string{"/health", "/script"} {
		get, head := w.do("GET", clientHost, path, ""), w.do("HEAD", clientHost, path, "")
		if head.Status != 200 || head.Body != "" || get.Body == "" || head.Header.Get("Content-Length") != strconv.Itoa(len(get.Body)) {
			t.Errorf("HEAD %s: %d %q %v", path, head.Status, head.Body, head.Header)
		}
		raw := w.raw("HEAD "+path+" HTTP/1.1\r\nHost: "+clientHost+"\r\nConnection: close\r\n\r\n", false)
		if !strings.HasSuffix(raw, "\r\n\r\n") || strings.Count(raw, "\r\n\r\n") != 1 {
			t.Errorf("HEAD %s has a body: %q", path, raw)
		}
	}
}

func TestEveryAnswerHasARequestID(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	mark := "/mark/" + string(w.Client.ID)
	seen := map[string]bool{}
	fresh := func(name, id string) {
		t.Helper()
		if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(id) || seen[id] {
			t.Errorf("%s: request id %q, want 16 new hexadecimal digits", name, id)
		}
		seen[id] = true
	}
	for _, tt := range []struct{ name, method, host, path, body string }{
		{"an event", "POST", clientHost, mark, event},
		{"the same event again", "POST", clientHost, mark, event},
		{"a refused event", "POST", clientHost, mark, "{}"},
		{"a large body", "POST", clientHost, mark, strings.Repeat(" ", 2<<20)},
		{"a script", "GET", clientHost, "/script", ""},
		{"the partner API", "GET", baseHost, "/v1/x", ""},
		{"a panic of the partner API", "GET", baseHost, "/v1/panic", ""},
		{"a foreign host", "GET", "evil.test", "/", ""},
	} {
		fresh(tt.name, w.do(tt.method, tt.host, tt.path, tt.body).Header.Get("X-Request-Id"))
	}
	for _, request := range []string{"noise\r\n\r\n", "GET / HTTP/1.1\r\nHost: " + clientHost + "\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n"} {
		_, rest, _ := strings.Cut(w.raw(request, true), "\r\nX-Request-Id: ")
		id, _, _ := strings.Cut(rest, "\r\n")
		fresh("a request that cannot be read", id)
	}

	longest := strings.Repeat("aZ09._-", 9) + "x"
	for _, sent := range []string{"a", longest} {
		if got := w.do("POST", clientHost, mark, event, "X-Request-Id", sent).Header.Get("X-Request-Id"); got != sent {
			t.Errorf("sent %q, got %q", sent, got)
		}
		if got := w.do("GET", baseHost, "/v1/panic", "", "X-Request-Id", sent).Header.Get("X-Request-Id"); got != sent {
			t.Errorf("after a panic: sent %q, got %q", sent, got)
		}
	}
	for _, sent := range []string{"", longest + "x", "a b", "a/b", "\"", "\u00e9"} {
		fresh("a malformed id", w.do("POST", clientHost, mark, event, "X-Request-Id", sent).Header.Get("X-Request-Id"))
	}
}

func TestTheRequestIDIsInTheLogOfAnError(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	f.OnRecord = func([]store.Mark) error { return tagtest.ErrOnPurpose }
	w.do("POST", clientHost, "/mark/"+string(w.Client.ID), event, "X-Request-Id", "of-event").Want(t, 500, "")
	w.do("GET", baseHost, "/v1/panic", "", "X-Request-Id", "of-panic").Want(t, 500, "")
	w.shutdown()
	for _, want := range []string{`msg="engine failed" operation=record error="on purpose" request_id=of-event`, "request_id=of-panic"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("no %s in %s", want, w.log)
		}
	}
}

func TestARequestIsLoggedInOneLineAtDebug(t *testing.T) {
	log := new(bytes.Buffer)
	w := newWorld(t, func(cfg *Config) {
		cfg.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		cfg.PartnerAPI = func(ctx *fasthttp.RequestCtx) {
			if string(ctx.Path()) == "/v1/x" {
				partnerapi.SetPartner(ctx, "the-partner")
			}
			ctx.SetStatusCode(500)
		}
	})
	// Both requests use one connection: the partner of the first must not appear in the line of the second.
	c := w.dial()
	ask(t, c, "GET", baseHost, "/v1/x", "")
	ask(t, c, "PUT", baseHost, "/v1/y", "")
	c.Close()
	w.shutdown()
	type line struct {
		Level, Msg, Surface, Endpoint, Method string
		Status                                int
		Took                                  *float64 `json:"took_ms"`
		ID                                    string   `json:"request_id"`
		Partner                               string
	}
	var lines []line
	for text := range strings.Lines(log.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if l.Msg == "request" {
			lines = append(lines, l)
		}
	}
	if len(lines) != 2 {
		t.Fatalf("%d request lines, want 2: %s", len(lines), log)
	}
	for i, l := range lines {
		if l.Took == nil || *l.Took < 0 || *l.Took > 60_000 || len(l.ID) != 16 {
			t.Errorf("took_ms or request_id of line %+v", l)
		}
		want := []line{
			{Level: "DEBUG", Msg: "request", Surface: "partner", Endpoint: "other", Method: "GET", Status: 500, Partner: "the-partner"},
			{Level: "DEBUG", Msg: "request", Surface: "partner", Endpoint: "other", Method: "PUT", Status: 500},
		}[i]
		want.Took, want.ID = l.Took, l.ID
		if l != want {
			t.Errorf("line %+v, want %+v", l, want)
		}
	}
}

func TestOneHostForBothSurfaces(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.ClientTagHost = baseHost })
	w.do("POST", baseHost, "/mark/"+string(w.Client.ID), event, "Origin", "https://shop.test").Want(t, 201, "")
	w.do("GET", baseHost, "/health", "").Want(t, 200, "ok")
	for _, path := range []string{"/", "/v1/partners/merchant", "/marks", "/demo/"} {
		r := w.do("GET", baseHost, path, "", "Origin", "https://shop.test")
		r.Want(t, 200, `{"partner":"`+path)
		if r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: the partner API answered with CORS", path)
		}
	}
}

// A page can read every answer of a tag host, and can tell it from the answer of a proxy or captive portal.
func TestEveryAnswerOfATagHostIsForThePage(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	check := func(name string, r tagtest.Reply, status int) {
		t.Helper()
		h := r.Header
		if r.Status != status || h.Get("Access-Control-Allow-Origin") != "https://shop.test" ||
			h.Get("Access-Control-Allow-Credentials") != "true" || !strings.Contains(strings.Join(h.Values("Vary"), ","), "Origin") ||
			h.Get("Access-Control-Expose-Headers") != "Date, Mtag, Retry-After, X-Request-Id" || h.Get("Date") == "" ||
			h.Get("Mtag") != "1" || h.Get("Cross-Origin-Resource-Policy") != "cross-origin" {
			t.Errorf("%s: %d %v", name, r.Status, h)
		}
	}
	origin := []string{"Origin", "https://shop.test"}
	mark := "/mark/" + string(w.Client.ID)
	check("accepted", w.do("POST", clientHost, mark, event, origin...), 201)
	check("refused", w.do("POST", clientHost, mark, `{}`, origin...), 400)
	check("too large", w.do("POST", clientHost, mark, strings.Repeat("x", 2<<20), origin...), 413)
	check("unknown tag", w.do("POST", clientHost, "/mark/x", event, origin...), 404)
	check("unknown path", w.do("GET", clientHost, "/nothing", "", origin...), 404)
	check("script", w.do("GET", clientHost, "/script", "", origin...), 200)
	f.NotReady = errors.New("not ready")
	check("not ready", w.do("GET", w.ServerSide.Host, "/health", "", origin...), 503)
	f.OnRecord = func([]store.Mark) error { panic("on purpose") }
	check("panic", w.do("POST", clientHost, mark, event, origin...), 500)

	r := w.do("OPTIONS", clientHost, mark, "", append(origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type, x-y")...)
	check("preflight", r, 204)
	if r.Header.Get("Access-Control-Allow-Headers") != "content-type, x-y" || r.Header.Get("Access-Control-Max-Age") != "86400" ||
		!strings.Contains(r.Header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("preflight: %v", r.Header)
	}
	if r := w.do("POST", "evil.test", mark, event, origin...); r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a foreign host answered with CORS")
	}
	if r := w.do("POST", clientHost, mark, event); len(r.Header.Values("Access-Control-Allow-Origin")) != 0 {
		t.Errorf("CORS without an Origin")
	}
}

func TestLogsHoldNothingOfAVisitor(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	f.OnRecord = func([]store.Mark) error { return tagtest.ErrOnPurpose }
	path := "/mark/" + string(w.Client.ID)
	w.do("POST", clientHost, path, `{"muid":"SECRET","email":"SECRET","event":"A"}`, "Cookie", "_muid=SECRET", "Authorization", "Bearer SECRET")
	w.raw("POST "+path+" HTTP/1.1\r\nHost: "+clientHost+"\r\nCookie: SECRET\r\nAuthorization: SECRET\x01\r\n\r\n", true)
	w.raw("POST "+path+" HTTP/1.1\r\nHost: "+clientHost+"\r\nSECRET\r\n\r\n", true)
	w.shutdown()
	if log := w.log.String(); strings.Contains(log, "SECRET") || strings.Contains(log, "127.0.0.1") || !strings.Contains(log, "on purpose") {
		t.Errorf("log: %s", log)
	}
}

// A client that ignores Retry-After must wait for its refusals: they would take as much of the processor as events.
func TestARefusedClientWaitsForItsAnswer(t *testing.T) {
	w := newWorld(t, func(cfg *Config) {
		now := time.Now()
		cfg.Limits, cfg.AddressEvents, cfg.Now = true, 1, func() time.Time { return now }
	})
	for range 30 { // thirty seconds' worth
		w.mark(event).Want(t, 201, "")
	}
	began := time.Now()
	r := w.mark(strings.Repeat(" ", smallBody) + event)
	r.Want(t, 429, `{"success":false,"message":"Too many requests from this address, please retry"}`)
	if took := time.Since(began); took < refusalDelay || r.Header.Get("Retry-After") != "1" {
		t.Errorf("refused after %v with Retry-After %q, want at least %v and 1", took, r.Header.Get("Retry-After"), refusalDelay)
	}
	if r.Header.Get("Mtag") != "1" {
		t.Error("the browser tag cannot know that the service has refused the event")
	}
	if r.Closes {
		t.Error("the connection is closed: a new one costs more than a refusal")
	}
}

// Wrong requests cost as much as events: none may be free, wherever it is refused.
func TestARequestThatIsRefusedTakesATokenOfItsAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		is, host, path string
		status         int
		surface        string
	}{
		{"an unknown host", "unknown.test", "/", 421, `{"success":false,`},
		{"an unknown host of the partner API", "unknown.test", "/v1/x", 421, `{"message":`},
		{"the partner API without a key", baseHost, "/v1/x", 200, `{"message":`},
		{"a path that a tag host does not have", clientHost, "/x", 404, `{"success":false,`},
	} {
		t.Run(c.is, func(t *testing.T) {
			now := time.Now()
			w := newWorld(t, func(cfg *Config) {
				cfg.Limits, cfg.AddressEvents, cfg.Now = true, 1, func() time.Time { return now }
			})
			for range 30 { // thirty seconds' worth
				w.do("GET", c.host, c.path, "").Want(t, c.status, "")
			}
			r := w.do("GET", c.host, c.path, "")
			r.Want(t, 429, "")
			if r.Header.Get("Retry-After") != "1" || !strings.HasPrefix(string(r.Body), c.surface) ||
				!strings.Contains(string(r.Body), limit.TooManyFromAddress) {
				t.Errorf("answered %s with Retry-After %q", r.Body, r.Header.Get("Retry-After"))
			}
			w.do("GET", clientHost, "/health", "").Want(t, 200, "")
			w.mark(event).Want(t, 429, "") // all surfaces share the tokens
		})
	}
}

// A partner has its own limit, and other clients may have its address.
func TestAPartnerTakesNoTokenOfItsAddress(t *testing.T) {
	now := time.Now()
	w := newWorld(t, func(cfg *Config) {
		cfg.Limits, cfg.AddressEvents, cfg.Now = true, 1, func() time.Time { return now }
		cfg.PartnerAPI = func(ctx *fasthttp.RequestCtx) { partnerapi.SetPartner(ctx, "p") }
	})
	for range 100 {
		w.do("GET", baseHost, "/v1/x", "").Want(t, 200, "")
	}
	w.mark(event).Want(t, 201, "")
}

func TestPlainHTTPTakesTokensToo(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/health", challengePath + "x"} {
		w := newWorld(t, func(cfg *Config) {
			now := time.Now()
			cfg.Limits, cfg.AddressEvents, cfg.Now = true, 1, func() time.Time { return now }
			cfg.Challenge = func(context.Context, string, string) (string, bool) { return "", false }
		})
		plain := world{T: t, addr: w.listen(w.server.ServePlain)}
		for range 30 {
			if got := plain.do("GET", clientHost, path, "").Status; got == 429 || got == 500 {
				t.Fatalf("%s: status %d too early", path, got)
			}
		}
		plain.do("GET", clientHost, path, "").Want(t, 429, "")
	}
}

func TestUnservableRequestsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.do("GET", "elsewhere.example.com", "/", "").Want(t, 421, "")
	w.raw("GET / HTTP/1.1\r\nHost: "+clientHost+"\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n", true)
	w.raw("GET / HTTP/1.1\r\nHost: "+clientHost+"\r\nX: a\r\n folded\r\n\r\n", true)
	w.raw("NOISE\r\n\r\n", true)
	w.raw("GET / HTTP/1.1\r\nHost: "+clientHost+"\n\n", true)
	w.raw("GET / HTTP/1.1\r\nX: "+strings.Repeat("a", maxHeaderBytes)+"\r\n\r\n", true)
	got := w.counted()
	if got["mtagd_refused_total unknown_host none"] != 1 || got["mtagd_refused_total malformed none"] != 5 {
		t.Errorf("counted %v", got)
	}
}
