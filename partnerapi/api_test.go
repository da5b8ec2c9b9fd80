package partnerapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/partnerapi/delivery"
	"mtagd/partnerapi/export"
	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store"
	"mtagd/store/local"
)

const (
	merchants = "/v1/partners/merchant"
	generate  = "/v1/partners/tracktag/generate"
	verify    = "/v1/partners/tracktag/verify"
	tracktag  = "/v1/partners/tracktag"
	events    = "/v1/partners/events"
	config    = "/v1/partners/config"
)

// service is the API over a real engine. The test controls its clock and its DNS.
type service struct {
	t      testing.TB
	engine store.Engine
	api    *api
	handle fasthttp.RequestHandler
	clock  atomic.Pointer[time.Time]
	dns    fakeDNS

	certificates Certificates
	claimable    store.Claimable
	context      func(*fasthttp.RequestCtx) (context.Context, context.CancelFunc)
	log          bytes.Buffer
	limits       bool
	delivery     *delivery.Service
	undocumented bool // the answers need not be in openapi.yaml
}

func newService(t testing.TB) *service {
	t.Helper()
	s := &service{t: t, context: endless}
	start := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
	s.clock.Store(&start)
	quiet := slog.New(slog.DiscardHandler)
	engine, err := local.Open(t.TempDir(), local.Options{Log: quiet, Now: s.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	s.engine = engine
	s.serve(engine, &s.dns)
	return s
}

// now and advance may be called at once: a stream reads the clock while the test goes on.
func (s *service) now() time.Time { return *s.clock.Load() }

func (s *service) advance(d time.Duration) {
	then := s.now().Add(d)
	s.clock.Store(&then)
}

// endless opens the context of a request whose client stays.
func endless(*fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// serve replaces the API by one with another engine or DNS.
func (s *service) serve(engine store.Engine, dns Verifier) {
	log := slog.New(slog.NewTextHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	refusals := limit.NewRefusals(log, nil)
	s.api = newAPI(Config{
		Engine:        engine,
		Delivery:      s.delivery,
		DNS:           dns,
		Certificates:  s.certificates,
		BaseURL:       "https://api.example.net",
		ClientTagHost: "tags.example.net",
		CNAMETarget:   "cname.example.net",
		Claimable:     s.claimable,
		TagURL:        func(host string) string { return "https://" + host },
		Log:           log,
		Now:           s.now,
		Refusals:      refusals,
		Limits:        s.limits,
		Refused:       refused.New(s.now),
		Context:       s.context,
		Waiting:       endless,
	})
	document, err := openapitest.Load()
	if err != nil {
		s.t.Fatal(err)
	}
	s.handle = document.Wrap(s.api.routes(), func(err error) {
		if !s.undocumented {
			s.t.Error(err)
		}
	})
}

// listen serves the API on a listener until the test ends.
func (s *service) listen(listener net.Listener) {
	server := &fasthttp.Server{Handler: s.handle}
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	s.t.Cleanup(func() {
		if err := server.Shutdown(); err != nil {
			s.t.Error(err)
		}
		if err := <-served; err != nil {
			s.t.Error(err)
		}
	})
}

// fakeDNS is a Verifier with the same finding for every host.
type fakeDNS struct {
	mu    sync.Mutex
	found store.DNSFinding
	asked []string // hosts
}

func (d *fakeDNS) Verify(_ context.Context, host string) store.DNSFinding {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, host)
	return d.found
}

// partner is a partner that sends requests with its key.
type partner struct {
	*service
	store.Partner
	key string
}

// partner creates a partner with a key.
func (s *service) partner(name string) *partner {
	s.t.Helper()
	p, err := s.engine.AddPartner(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	_, key, err := s.engine.IssueKey(s.t.Context(), p.ID, store.KeyOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return &partner{s, p, string(key)}
}

// answer is a response, with checks that report to t.
type answer struct {
	t      testing.TB
	status int
	header *fasthttp.ResponseHeader
	body   string
}

// in returns the answer with checks that report to a subtest.
func (a answer) in(t testing.TB) answer {
	a.t = t
	return a
}

// request sends a request. headers are pairs of name and value.
func (s *service) request(method, uri, body string, headers ...string) answer {
	s.t.Helper()
	var r fasthttp.RequestCtx
	r.Request.Header.SetMethod(method)
	r.Request.SetRequestURI(uri)
	r.Request.SetBodyString(body)
	for pair := range slices.Chunk(headers, 2) {
		r.Request.Header.Add(pair[0], pair[1])
	}
	s.handle(&r)
	return answer{s.t, r.Response.StatusCode(), &r.Response.Header, string(r.Response.Body())}
}

func (p *partner) get(uri string) answer {
	p.t.Helper()
	return p.request("GET", uri, "", "Authorization", "Bearer "+p.key)
}

func (p *partner) post(uri, body string) answer {
	p.t.Helper()
	return p.request("POST", uri, body, "Authorization", "Bearer "+p.key)
}

// postf posts a body that it formats as fmt.Sprintf does.
func (p *partner) postf(uri, format string, args ...any) answer {
	p.t.Helper()
	return p.post(uri, fmt.Sprintf(format, args...))
}

// merchant creates a merchant and returns its id.
func (p *partner) merchant(name string) string {
	p.t.Helper()
	return p.postf(merchants, `{"name":%q}`, name).is(201).str("merchantId")
}

// generate generates a tag and returns the answer.
func (p *partner) generate(merchant, tagType, domain string) answer {
	p.t.Helper()
	return p.postf(generate, `{"merchantId":%q,"type":%q,"domain":%q}`, merchant, tagType, domain).is(200)
}

// is demands a status, and that the body is JSON.
func (a answer) is(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("got %d %s, want %d", a.status, a.body, status)
	}
	if got := string(a.header.ContentType()); got != "application/json" {
		a.t.Errorf("Content-Type %q, want application/json", got)
	}
	if !json.Valid([]byte(a.body)) {
		a.t.Errorf("body is not JSON: %s", a.body)
	}
	return a
}

// fails demands the standard error body.
func (a answer) fails(status int, code, message string) {
	a.t.Helper()
	want := fmt.Sprintf(`{"message":%q,"code":%q,"statusCode":%d}`, message, code, status)
	if a.is(status).body != want {
		a.t.Errorf("got  %s\nwant %s", a.body, want)
	}
}

// invalid demands a 400 that names the field.
func (a answer) invalid(field, why string) {
	a.t.Helper()
	a.fails(400, "VALIDATION_ERROR", "Invalid request parameters: "+field+" "+why)
}

// at returns the value at a path such as "pagination.total" or "events.0.id", nil when there is none.
func (a answer) at(path string) any {
	a.t.Helper()
	var v any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("%v: %s", err, a.body)
	}
	for step := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[step]
		case []any:
			var i int
			if _, err := fmt.Sscan(step, &i); err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// str returns the string at a path, and fails without one.
func (a answer) str(path string) string {
	a.t.Helper()
	s, ok := a.at(path).(string)
	if !ok {
		a.t.Fatalf("no string at %s of %s", path, a.body)
	}
	return s
}

// has demands a value at a path.
func (a answer) has(path string, want any) answer {
	a.t.Helper()
	if n, ok := want.(int); ok {
		want = float64(n)
	}
	if got := a.at(path); got != want {
		a.t.Errorf("%s is %v, want %v, in %s", path, got, want, a.body)
	}
	return a
}

// fieldsIn returns the names of an event's fields in a view. Package export tests them.
func fieldsIn(v export.View) (names []string) {
	for _, f := range export.Fields {
		if f.In(v) {
			names = append(names, f.Name)
		}
	}
	return names
}

// keys demands that the object at a path has exactly these names.
func (a answer) keys(path string, want ...string) answer {
	a.t.Helper()
	object, _ := a.at(path).(map[string]any)
	if path == "" {
		if err := json.Unmarshal([]byte(a.body), &object); err != nil {
			a.t.Fatal(err)
		}
	}
	got := slices.Sorted(maps.Keys(object))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		a.t.Errorf("%q has the names %q, want %q", path, got, want)
	}
	return a
}

const (
	nobody  = "00000000-0000-4000-8000-000000000000" // the id of no merchant
	denied  = "Access denied"
	missing = "Resource not found"
)

func TestRoutes(t *testing.T) {
	p := newService(t).partner("Agency")
	for _, c := range []struct {
		is, method, uri string
		status          int
		allow           string
	}{
		{"an unknown path is not found", "GET", "/v1/partners/nothing", 404, ""},
		{"another version is not found", "GET", "/v2/partners/merchant", 404, ""},
		{"the root is not found", "GET", "/", 404, ""},
		{"an empty path is not found", "GET", "", 404, ""},
		{"a request for the server itself is not found", "OPTIONS", "*", 404, ""},
		{"a trailing slash is another path", "GET", merchants + "/", 404, ""},
		{"upper case is another path", "GET", "/v1/partners/MERCHANT", 404, ""},
		{"a doubled slash is another path", "GET", "/v1//partners/merchant", 404, ""},
		{"dots in a path are not resolved", "GET", "/v1/partners/config/../merchant", 404, ""},
		{"encoded dots in a path are not resolved", "GET", merchants + "/%2e%2e/config", 404, ""},
		{"a null byte does not end a path", "GET", config + "%00", 404, ""},
		{"a path below a merchant is not found", "GET", merchants + "/" + nobody + "/tags", 404, ""},
		{"an encoded slash stays in its segment", "GET", merchants + "/a%2Fb", 400, ""},
		{"broken percent-encoding is no id", "GET", merchants + "/%zz", 400, ""},
		{"invalid UTF-8 is no tag", "GET", tracktag + "/cs_\xff\xfe", 404, ""},
		{"a merchant id may be percent-encoded", "GET", merchants + "/%30" + nobody[1:], 404, ""},
		{"merchants are not deleted", "DELETE", merchants, 405, "GET, HEAD, POST"},
		{"one merchant is read and changed", "PUT", merchants + "/" + nobody, 405, "DELETE, GET, HEAD, PATCH"},
		{"a merchant's secrets are not read", "GET", merchants + "/" + nobody + "/secret", 405, "POST"},
		{"a merchant's secret is only deleted", "GET", merchants + "/" + nobody + "/secret/x", 405, "DELETE"},
		{"a tag is only read", "POST", tracktag + "/cs_x", 405, "GET, HEAD"},
		{"generate is posted", "GET", generate, 405, "POST"},
		{"generate has two names", "GET", tracktag, 405, "POST"},
		{"verify is posted", "GET", verify, 405, "POST"},
		{"events are read", "POST", events, 405, "GET, HEAD"},
		{"refused events are read", "POST", debugRefused, 405, "GET, HEAD"},
		{"events are tried with POST", "GET", debugMark, 405, "POST"},
		{"config is read", "PATCH", config, 405, "GET, HEAD"},
		{"there is no CORS", "OPTIONS", merchants, 405, "GET, HEAD, POST"},
		{"an invented method is not allowed", "BREW", config, 405, "GET, HEAD"},
		{"HEAD is answered only where GET is", "HEAD", verify, 405, "POST"},
		{"a word that begins like generate is a tag id", "GET", tracktag + "/generated", 404, ""},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.request(c.method, c.uri, "", "Authorization", "Bearer "+p.key, "Origin", "https://shop.example").in(t)
			a.is(c.status).has("statusCode", c.status).keys("", "message", "code", "statusCode")
			if got := string(a.header.Peek("Allow")); got != c.allow {
				t.Errorf("Allow %q, want %q", got, c.allow)
			}
			if a.header.Peek("Access-Control-Allow-Origin") != nil {
				t.Error("CORS headers on the partner API")
			}
		})
	}
}

func TestRouteComesBeforeAuthentication(t *testing.T) {
	s := newService(t)
	s.request("GET", "/v1/partners/nothing", "").fails(404, "NOT_FOUND", missing)
	s.request("DELETE", config, "").fails(405, "VALIDATION_ERROR", "Method not allowed")
}

func TestAnUnknownQueryParameterIsRefused(t *testing.T) {
	const unknown = "is not a query parameter of this request"
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag := p.generate(id, "client-side", "").str("tagId")
	for _, c := range []struct{ method, uri, name string }{
		{"GET", events + "?merchantId=" + id + "&muid=X", "muid"},
		{"GET", events + "?merchantId=" + id + "&Page=2", "Page"},
		{"GET", events + "?merchantid=" + id, "merchantid"},
		{"GET", events + "?x=1&page=0", "x"},
		{"GET", merchants + "?x=1&x=2", "x"},
		{"GET", merchants + "?page=1&limit=2&merchantId=" + id, "merchantId"},
		{"GET", merchants + "?%6Duid", "muid"},
		{"GET", merchants + "?a%20b=", "a b"},
		{"GET", merchants + "/" + id + "?page=1", "page"},
		{"GET", merchants + "/" + nobody + "?page=1", "page"},
		{"GET", tracktag + "/" + tag + "?merchantId=" + id, "merchantId"},
		{"GET", config + "?verbose", "verbose"},
		{"POST", merchants + "?name=Shop", "name"},
		{"POST", generate + "?dryRun=1", "dryRun"},
		{"POST", tracktag + "?dryRun=1", "dryRun"},
		{"POST", verify + "?tagId=" + tag, "tagId"},
	} {
		t.Run(c.method+" "+c.uri, func(t *testing.T) {
			a := p.request(c.method, c.uri, "{}", "Authorization", "Bearer "+p.key).in(t)
			a.invalid(c.name, unknown)
		})
	}
	p.get(merchants+"?=1").invalid("query", "has a parameter without a name")
	p.get(merchants + "?").is(200)
	p.get(merchants + "?&&").is(200)
	p.get(merchants + "?limit=1&").is(200)
	s.request("GET", merchants+"?x=1", "").unauthenticated()
}

func TestHEADAnswersLikeGETWithoutABody(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	tag := p.generate(id, "client-side", "").str("tagId")
	listener := fasthttputil.NewInmemoryListener()
	s.listen(listener)
	http := fasthttp.HostClient{Addr: "api.example.net", Dial: func(string) (net.Conn, error) { return listener.Dial() }}
	t.Cleanup(http.CloseIdleConnections) // before the server's

	for _, uri := range []string{
		merchants, merchants + "/" + id, merchants + "/" + nobody, merchants + "?page=0", tracktag + "/" + tag,
		events + "?merchantId=" + id, events, config,
	} {
		get := p.get(uri)
		var request fasthttp.Request
		var response fasthttp.Response
		request.Header.SetMethod("HEAD")
		request.SetRequestURI("http://api.example.net" + uri)
		request.Header.Set("Authorization", "Bearer "+p.key)
		if err := http.Do(&request, &response); err != nil {
			t.Fatal(err)
		}
		if response.StatusCode() != get.status || response.Header.ContentLength() != len(get.body) || len(response.Body()) != 0 ||
			string(response.Header.ContentType()) != "application/json" {
			t.Errorf("HEAD %s: %d, Content-Length %d, %d bytes; GET: %d, %d bytes", uri, response.StatusCode(),
				response.Header.ContentLength(), len(response.Body()), get.status, len(get.body))
		}
	}
}

func TestAFailureIsLoggedOnceWithItsRequest(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	s.serve(failingEngine{s.engine, errors.New("on fire")}, &s.dns)
	var r fasthttp.RequestCtx
	r.Request.SetRequestURI(merchants + "?page=2")
	r.Request.Header.Set("Authorization", "Bearer "+p.key)
	r.Response.Header.Set("X-Request-Id", "request-7")
	s.handle(&r)

	log := s.log.String()
	for _, want := range []string{"level=ERROR", "method=GET", "path=" + merchants + " ", "status=500", "request_id=request-7",
		"partner=" + string(p.ID), `error="on fire"`} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in the log: %s", want, log)
		}
	}
	if n := strings.Count(log, "on fire"); n != 1 {
		t.Errorf("the error is logged %d times, want once: %s", n, log)
	}
	if got := PartnerOf(&r); got != string(p.ID) {
		t.Errorf("the request's partner is %v, want %s", got, p.ID)
	}
	if got := EndpointOf(&r); got != "list_merchants" {
		t.Errorf("the request's endpoint is %s", got)
	}
	if got := string(r.Response.Header.Peek("X-Request-Id")); got != "request-7" {
		t.Errorf("X-Request-Id %q, want the server's", got)
	}
}

func TestBodyOver64KiBIsRefused(t *testing.T) {
	p := newService(t).partner("Agency")
	const around = len(`{"name":"x","more":""}`)
	p.post(merchants, `{"name":"x","more":"`+strings.Repeat("x", 64<<10-around)+`"}`).is(201)
	p.post(merchants, `{"name":"x","more":"`+strings.Repeat("x", 64<<10-around+1)+`"}`).
		fails(413, "VALIDATION_ERROR", "Request body is larger than 64 KiB")
}

func TestAuthenticationComesBeforeTheBody(t *testing.T) {
	s := newService(t)
	s.request("POST", merchants, strings.Repeat("x", 64<<10+1)).is(401)
	s.request("POST", merchants, "not JSON").is(401)
}

// failingEngine is an engine that cannot list merchants.
type failingEngine struct {
	store.Engine
	err error
}

func (f failingEngine) Merchants(context.Context, store.MerchantQuery) ([]store.Merchant, int, error) {
	return nil, 0, f.err
}

func TestEngineErrors(t *testing.T) {
	for _, c := range []struct {
		is         string
		err        error
		status     int
		code       string
		message    string
		retryAfter string
		logged     bool
	}{
		{"the partner does not see an unexpected error", errors.New("disk /dev/sda1 is on fire"), 500, "SERVICE_ERROR", "Unable to process request", "", true},
		{"the partner does not see an internal error", &store.Error{Kind: store.KindInternal, Message: "on fire"}, 500, "SERVICE_ERROR", "Unable to process request", "", true},
		{"events that cannot be read name their merchant", &store.Error{Kind: store.KindUnavailable, Field: "merchantId", Message: "m-1: on fire"}, 503,
			"SERVICE_ERROR", "Unable to process request: merchantId m-1: on fire", "1", true},
		{"an engine that cannot write says when to retry", store.Unavailable("on fire"), 503, "SERVICE_ERROR", "Unable to process request", "1", true},
		{"a partner with too many requests is told when to retry", store.Busy("too many"), 429, "SERVICE_ERROR", "Too many requests at once. Please try again", "1", false},
		{"a partner whose changes are refused is told why", store.ErrAuditFull, 429, "SERVICE_ERROR",
			"Too many requests at once. Please try again: the partner has made too many changes in the last day", "1", false},
		{"a partner that has reached a limit is told who can raise it", store.Limited("merchant", "cannot be created: ask the operator"), 403, "FORBIDDEN",
			denied + ": merchant cannot be created: ask the operator", "", false},
		{"an invalid field is named", store.Invalid("page", "is odd"), 400, "VALIDATION_ERROR", "Invalid request parameters: page is odd", "", false},
		{"a wrapped error keeps its kind", fmt.Errorf("wrapped: %w", store.Invalid("page", "is odd")), 400, "VALIDATION_ERROR", "Invalid request parameters: page is odd", "", false},
		{"what does not exist is not found", store.NotFound("partner"), 404, "NOT_FOUND", missing, "", false},
		{"what is another's is denied", &store.Error{Kind: store.KindForbidden, Message: "belongs to another partner"}, 403, "FORBIDDEN", denied, "", false},
		{"a taken domain is a conflict", &store.Error{Kind: store.KindConflict, Field: "domain", Message: "is taken"}, 409, "VALIDATION_ERROR", "Domain already registered", "", false},
	} {
		t.Run(c.is, func(t *testing.T) {
			s := newService(t)
			s.undocumented = true // no engine returns all of these errors for this request
			p := s.partner("Agency")
			s.serve(failingEngine{s.engine, c.err}, &s.dns)
			a := p.get(merchants)
			a.fails(c.status, c.code, c.message)
			if got := string(a.header.Peek("Retry-After")); got != c.retryAfter {
				t.Errorf("Retry-After %q, want %q", got, c.retryAfter)
			}
			if got := strings.Contains(s.log.String(), "on fire"); got != c.logged {
				t.Errorf("the cause is logged: %v, want %v: %s", got, c.logged, s.log.String())
			}
			if strings.Contains(s.log.String(), p.key) {
				t.Error("the log has the API key")
			}
		})
	}
}

func TestWriteErrorTakesItsCodeFromTheStatus(t *testing.T) {
	for status, want := range map[int]string{
		400: "VALIDATION_ERROR", 401: "AUTHENTICATION_ERROR", 403: "FORBIDDEN", 404: "NOT_FOUND",
		405: "VALIDATION_ERROR", 409: "VALIDATION_ERROR", 413: "VALIDATION_ERROR", 421: "VALIDATION_ERROR",
		422: "VALIDATION_ERROR", 429: "SERVICE_ERROR", 431: "VALIDATION_ERROR", 500: "SERVICE_ERROR", 503: "SERVICE_ERROR",
	} {
		var r fasthttp.RequestCtx
		WriteError(&r, status, "Why \"not\"\xff")
		a := answer{t, r.Response.StatusCode(), &r.Response.Header, string(r.Response.Body())}
		a.is(status).has("code", want).has("message", "Why \"not\"\uFFFD").has("statusCode", status)
	}
}
