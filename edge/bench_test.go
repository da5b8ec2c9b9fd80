package edge

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// instant is an engine that records at once, so that only this package's work is measured.
type instant struct {
	store.Engine
	directory *store.Directory
}

func (e *instant) Directory() *store.Directory { return e.directory }

func (e *instant) Record(_ context.Context, marks []store.Mark) error {
	for i := range marks {
		marks[i].Outcome = store.Recorded
	}
	return nil
}

// markRequest is a server and a request as they are when fasthttp calls the handler.
func markRequest(t testing.TB) (*Server, *fasthttp.RequestCtx) {
	tag := store.NewTag(store.Merchant{ID: store.NewMerchantID()}, store.ServerSide, "mtag-ab12", "shop.com", time.Now())
	tag = tag.AfterDNSCheck(store.DNSFinding{Verdict: store.DNSCorrect})
	e := &instant{directory: store.NewDirectory()}
	e.directory.SetTag(tag)
	s, err := New(Config{Engine: e, BaseHost: baseHost, ClientTagHost: clientHost, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx := new(fasthttp.RequestCtx)
	ctx.Init(new(fasthttp.Request), nil, nil)
	ctx.Request.Header.SetMethod("POST")
	ctx.Request.Header.SetHost(tag.Host)
	ctx.Request.SetRequestURI("/mark/" + string(tag.ID))
	ctx.Request.SetBody(purchase)
	s.handle(ctx)
	if got := ctx.Response.StatusCode(); got != 201 {
		t.Fatalf("got %d %s", got, ctx.Response.Body())
	}
	return s, ctx
}

// An event costs no garbage of its own on its way to the engine.
func TestMarkAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools at random")
	}
	s, ctx := markRequest(t)
	if n := testing.AllocsPerRun(1000, func() { s.handle(ctx) }); n > 0 {
		t.Errorf("%v allocations per event, want none", n)
	}
}

func BenchmarkMark(b *testing.B) {
	s, ctx := markRequest(b)
	b.ReportAllocs()
	for b.Loop() {
		s.handle(ctx)
	}
}
