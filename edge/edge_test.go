package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/store"
	"mtagd/store/local"
)

// Hosts of the world.
const (
	baseHost     = "api.mtag.test"
	clientHost   = "tags.mtag.test"
	trackingHost = "t.partner-domain.com"
)

// world is a running server over a real engine with one merchant and a tag of each type.
type world struct {
	*testing.T
	server   *Server
	engine   store.Engine
	addr     string
	log      *strings.Builder // complete once the server has stopped
	registry *prometheus.Registry
	merchant store.MerchantID

	client, serverSide, inactive, preverified store.Tag
}

// newWorld starts a server; configure may change what it is made of.
func newWorld(t *testing.T, configure ...func(*Config)) *world {
	t.Helper()
	w := &world{T: t, log: new(strings.Builder), registry: prometheus.NewRegistry()}
	var err error
	if w.engine, err = local.Open(t.TempDir(), local.Options{Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.addTags()
	cfg := Config{
		Engine:        w.engine,
		BaseHost:      baseHost,
		ClientTagHost: clientHost,
		PartnerAPI: func(ctx *fasthttp.RequestCtx) {
			switch string(ctx.Path()) {
			case "/v1/panic":
				panic("on purpose")
			case "/v1/busy":
				ctx.SetStatusCode(429)
			}
			fmt.Fprintf(ctx, `{"partner":%q}`, ctx.Path())
		},
		PartnerError: func(ctx *fasthttp.RequestCtx, status int, message string) {
			ctx.SetStatusCode(status)
			fmt.Fprintf(ctx, `{"message":%q,"code":"X","statusCode":%d}`, message, status)
		},
		Log:     slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: w.registry,
		Now:     time.Now,
	}
	for _, change := range configure {
		change(&cfg)
	}
	if w.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(ln) }()
	t.Cleanup(func() {
		w.shutdown()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := w.engine.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w
}

func (w *world) shutdown() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		w.Errorf("Shutdown: %v", err)
	}
}

func (w *world) addTags() {
	w.Helper()
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			w.Fatal(err)
		}
	}
	p, err := w.engine.AddPartner(ctx, "Partner")
	must(err)
	_, err = w.engine.EnablePreverified(ctx, p.ID, trackingHost)
	must(err)
	m, err := w.engine.AddMerchant(ctx, p.ID, "Shop", "")
	must(err)
	other, err := w.engine.AddMerchant(ctx, p.ID, "Other shop", "")
	must(err)
	w.merchant = m.ID
	generate := func(id store.MerchantID, t store.TagType, domain string) store.Tag {
		tag, _, err := w.engine.GenerateTag(ctx, id, t, domain)
		must(err)
		return tag
	}
	w.client = generate(m.ID, store.ClientSide, "")
	w.serverSide = generate(m.ID, store.ServerSide, "shop-one.com")
	w.serverSide, err = w.engine.UpdateTag(ctx, w.serverSide.ID, func(t store.Tag) store.Tag {
		return t.AfterDNSCheck(store.DNSFinding{Verdict: store.DNSCorrect})
	})
	must(err)
	w.preverified = generate(m.ID, store.Preverified, "")
	w.inactive = generate(other.ID, store.ServerSide, "shop-two.com")
}

// reply is a response, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
	closes bool // the server said that it closes the connection
}

// do sends a request; headers are pairs of name and value.
func (w *world) do(method, host, path, body string, headers ...string) reply {
	w.Helper()
	req, err := http.NewRequest(method, "http://"+w.addr+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	req.Host = host
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(b), resp.Close}
}

// mark sends an event to the client-side tag.
func (w *world) mark(body string) reply {
	w.Helper()
	return w.do("POST", clientHost, "/mark/"+string(w.client.ID), body)
}

// want checks a reply's status and a part of its body.
func (r reply) want(t *testing.T, status int, part string) {
	t.Helper()
	if r.status != status || !strings.Contains(r.body, part) {
		t.Errorf("got %d %s\nwant %d with %s", r.status, r.body, status, part)
	}
}

// events lists the merchant's events, oldest first.
func (w *world) events() []store.Event {
	w.Helper()
	page, err := w.engine.Events(context.Background(), store.Query{
		Merchant: w.merchant, SortBy: store.ByTime, Asc: true, Limit: 2000,
	})
	if err != nil {
		w.Fatal(err)
	}
	return page.Events
}

// raw sends bytes on a connection of its own and returns all that comes back until the server closes. The
// client closes its own side first when half is set.
func (w *world) raw(request string, half bool) string {
	w.Helper()
	c := w.dial()
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		w.Fatal(err)
	}
	if half {
		if err := c.CloseWrite(); err != nil {
			w.Fatal(err)
		}
	}
	b, err := io.ReadAll(c)
	if err != nil {
		w.Fatalf("%v after %q", err, b)
	}
	return string(b)
}

func (w *world) dial() *net.TCPConn {
	w.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		w.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// readReply reads one response of a raw connection.
func readReply(t *testing.T, r *bufio.Reader) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body = io.NopCloser(strings.NewReader(string(b)))
	return resp
}

// faulty is an engine with some of its answers replaced.
type faulty struct {
	store.Engine
	ready  error
	record func([]store.Mark) error
}

func (f *faulty) Ready() error { return f.ready }

func (f *faulty) Record(ctx context.Context, marks []store.Mark) error {
	if f.record != nil {
		return f.record(marks)
	}
	return f.Engine.Record(ctx, marks)
}

func replaceEngine(f *faulty) func(*Config) {
	return func(cfg *Config) {
		f.Engine = cfg.Engine
		cfg.Engine = f
	}
}

var errOnPurpose = errors.New("on purpose")
