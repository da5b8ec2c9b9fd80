package edge

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/refused"
	"mtagd/store"
	"mtagd/store/testenv"
)

// noopEngine is an engine that does nothing: what is left is the work of edge and edge/tag.
type noopEngine struct {
	store.Engine
	directory *store.Directory
}

func (e *noopEngine) Directory() *store.Directory { return e.directory }

func (e *noopEngine) Record(_ context.Context, marks []store.Mark) error {
	for i := range marks {
		marks[i].Outcome = store.Recorded
	}
	return nil
}

func (e *noopEngine) FreeSpace() uint64 { return 1 << 50 }

// markRequest returns a server, and a request in the state in which fasthttp calls the handler. No number of requests
// reaches one of the limits.
func markRequest(t testing.TB, limits bool, memory *refused.Memory) (*Server, *fasthttp.RequestCtx) {
	tag := store.NewTag(store.Merchant{ID: store.NewMerchantID()}, store.ServerSide, "mtag-ab12", "shop.com", time.Now())
	tag = tag.AfterVerify(store.DNSFinding{Verdict: store.DNSCorrect})
	e := &noopEngine{directory: store.NewDirectory()}
	e.directory.SetTag(tag)
	e.directory.SetMerchant(store.Merchant{ID: tag.Merchant, Limits: store.MerchantLimits{EventsPerSecond: 1e12}})
	cfg := Config{BaseHost: baseHost, AddressEvents: 1e12}
	cfg.Engine, cfg.ClientTagHost, cfg.Log, cfg.Now = e, clientHost, slog.New(slog.DiscardHandler), time.Now
	cfg.Limits, cfg.Refused = limits, memory
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	nc, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	tcp := nc.(*net.TCPConn)
	ctx := new(fasthttp.RequestCtx)
	ctx.Init2(&clientConn{Conn: tcp, raw: s.open.add(tcp)}, nil, false)
	ctx.Request.Header.SetMethod("POST")
	ctx.Request.Header.SetHost(tag.Host)
	ctx.Request.SetRequestURI("/mark/" + string(tag.ID))
	ctx.Request.SetBody(purchase)
	ctx.Request.Header.SetUserAgent("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36")
	s.http.Handler(ctx)
	if got := ctx.Response.StatusCode(); got != 201 {
		t.Fatalf("got %d %s", got, ctx.Response.Body())
	}
	return s, ctx
}

// The path of an event to the engine allocates nothing.
func TestMarkAllocates(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector empties pools at random")
	}
	s, ctx := markRequest(t, true, refused.New(time.Now))
	if n := testing.AllocsPerRun(1000, func() { s.http.Handler(ctx) }); n > 0 {
		t.Errorf("%v allocations per event, want none", n)
	}
}

func BenchmarkMark(b *testing.B) {
	for _, c := range []struct {
		name   string
		limits bool
		memory *refused.Memory
	}{{"limits=false", false, nil}, {"limits=true", true, nil}, {"limits=true,refused=true", true, refused.New(time.Now)}} {
		b.Run(c.name, func(b *testing.B) {
			s, ctx := markRequest(b, c.limits, c.memory)
			b.ReportAllocs()
			for b.Loop() {
				s.http.Handler(ctx)
			}
		})
	}
}

// The same holds for an event from a page. One that asks for the cookie may allocate once: to look up the public suffix.
func TestMarkOfAPageAllocates(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector empties pools at random")
	}
	for query, most := range map[string]float64{"": 0, "?renew=1": 1} {
		s, ctx := markRequest(t, true, refused.New(time.Now))
		ctx.Request.SetRequestURI(string(ctx.RequestURI()) + query)
		ctx.Request.Header.Set(fasthttp.HeaderOrigin, "https://www.shop.com")
		ctx.Request.Header.Set(fasthttp.HeaderCookie, "_muid=6f1f8a4e-8c4b-4f4e-9a1d-2b7f0c5e9d11")
		run := func() {
			ctx.Response.Reset()
			s.http.Handler(ctx)
		}
		run()
		if got := string(ctx.Response.Header.PeekCookie("_muid")); strings.Contains(got, "domain=shop.com") != (query != "") {
			t.Fatalf("%q: cookie %q", query, got)
		}
		if n := testing.AllocsPerRun(1000, run); n > most {
			t.Errorf("%q: %v allocations per event, want at most %v", query, n, most)
		}
	}
}

// purchase is an event as a shop sends it.
var purchase = []byte(`{"muid":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11","event":"Purchase","event_id":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a12",` +
	`"event_time":"2026-11-20T10:00:00Z","value":129.5,"currency":"EUR","products":[{"id":"a1","name":"Shoe","price":64.75,"quantity":2}],` +
	`"pageUrl":"https://shop.example.com/checkout/thanks","pageTitle":"Thank you","email":"someone@example.com"}`)
