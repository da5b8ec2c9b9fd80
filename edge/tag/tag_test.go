package tag

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/edge/tag/tagtest"
	"mtagd/partnerapi/openapi/openapitest"
	"mtagd/store"
)

const clientHost = "tags.mtag.test"

const event = `{"muid":"m","event":"PageView"}`

// world is a server over a real engine with one merchant and a tag of each type.
type world struct {
	*testing.T
	*tagtest.Shop
	server *Server
}

// newWorld makes a server. configure changes its Config.
func newWorld(t *testing.T, configure ...func(*Config)) *world {
	t.Helper()
	w := &world{T: t, Shop: tagtest.Open(t)}
	t.Cleanup(func() {
		if err := w.Engine.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	cfg := Config{
		Engine:        w.Engine,
		ClientTagHost: clientHost,
		Log:           slog.New(slog.DiscardHandler),
		Metrics:       prometheus.NewRegistry(),
		Now:           time.Now,
	}
	for _, change := range configure {
		change(&cfg)
	}
	w.server = New(cfg)
	return w
}

// do serves a request. headers are pairs of name and value.
func (w *world) do(method, host, target, body string, headers ...string) tagtest.Reply {
	w.Helper()
	return w.serve(newContext(), method, host, target, body, headers...)
}

func newContext() *fasthttp.RequestCtx {
	ctx := new(fasthttp.RequestCtx)
	ctx.Init(new(fasthttp.Request), nil, nil)
	return ctx
}

// serve is do with a context that has the client's address.
func (w *world) serve(ctx *fasthttp.RequestCtx, method, host, target, body string, headers ...string) tagtest.Reply {
	w.Helper()
	ctx.Request.Header.SetMethod(method)
	ctx.Request.Header.SetHost(host)
	ctx.Request.SetRequestURI(target)
	ctx.Request.SetBodyString(body)
	for i := 0; i < len(headers); i += 2 {
		ctx.Request.Header.Set(headers[i], headers[i+1])
	}
	path, query, _ := strings.Cut(target, "?")
	SetHeaders(ctx)
	w.server.Serve(ctx, NewRoute(store.HostName(host), []byte(path), []byte(query)))
	document, err := openapitest.Load()
	if err != nil {
		w.Fatal(err)
	}
	if err := document.Check(method, target, &ctx.Response); err != nil && !strings.HasPrefix(target, "/v1/") {
		w.Error(err)
	}
	r := tagtest.Reply{Status: ctx.Response.StatusCode(), Header: http.Header{}, Body: string(ctx.Response.Body())}
	for name, value := range ctx.Response.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	return r
}

// mark sends an event to the client-side tag.
func (w *world) mark(body string) tagtest.Reply {
	w.Helper()
	return w.do("POST", clientHost, "/mark/"+string(w.Client.ID), body)
}

// replaceEngine puts f in front of the engine.
func replaceEngine(f *tagtest.Faulty) func(*Config) {
	return func(cfg *Config) {
		f.Engine = cfg.Engine
		cfg.Engine = f
	}
}
