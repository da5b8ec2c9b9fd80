package edge

import (
	"bufio"
	"context"
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

	"mtagd/edge/limit"
	"mtagd/edge/tag"
	"mtagd/edge/tag/tagtest"
	"mtagd/partnerapi"
)

// The hosts of the service.
const (
	baseHost   = "api.mtag.test"
	clientHost = "tags.mtag.test"
)

const event = `{"muid":"m","event":"PageView"}`

// world is a running server over a real engine with one merchant and a tag of each type.
type world struct {
	*testing.T
	*tagtest.Shop
	server   *Server
	addr     string
	log      *strings.Builder // complete after the server has stopped
	registry *prometheus.Registry
}

// newWorld starts a server. configure changes its Config.
func newWorld(t *testing.T, configure ...func(*Config)) *world {
	t.Helper()
	return newTunedWorld(t, func(*Server) {}, configure...)
}

// newTunedWorld is newWorld with a server that tune has changed before it serves.
func newTunedWorld(t *testing.T, tune func(*Server), configure ...func(*Config)) *world {
	t.Helper()
	w := &world{T: t, Shop: tagtest.Open(t), log: new(strings.Builder), registry: prometheus.NewRegistry()}
	cfg := Config{
		Config: tag.Config{
			Engine:        w.Engine,
			ClientTagHost: clientHost,
			Log:           slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Metrics:       w.registry,
			Now:           time.Now,
		},
		BaseHost: baseHost,
		PartnerAPI: func(ctx *fasthttp.RequestCtx) {
			switch string(ctx.Path()) {
			case "/v1/panic":
				panic("on purpose")
			case "/v1/busy":
				partnerapi.SetEndpoint(ctx, "busy")
				ctx.SetStatusCode(429)
			case "/v1/gone":
				ctx.SetStatusCode(499)
			case "/demo":
				ctx.SetStatusCode(302)
			}
			fmt.Fprintf(ctx, `{"partner":%q}`, ctx.Path())
		},
	}
	cfg.Refusals = limit.NewRefusals(cfg.Log, cfg.Metrics)
	for _, change := range configure {
		change(&cfg)
	}
	var err error
	if w.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	tune(w.server)
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
		if err := w.Engine.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return w
}

func (w *world) shutdown() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		w.Errorf("Shutdown: %v", err)
	}
}

// do sends a request; headers are pairs of name and value.
func (w *world) do(method, host, path, body string, headers ...string) tagtest.Reply {
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
	return tagtest.Reply{Status: resp.StatusCode, Header: resp.Header, Body: string(b), Closes: resp.Close}
}

// mark sends an event to the client-side tag.
func (w *world) mark(body string) tagtest.Reply {
	w.Helper()
	return w.do("POST", clientHost, "/mark/"+string(w.Client.ID), body)
}

// raw sends bytes on a new connection, and returns all that the server sends until it closes. With closeWrite, the
// client closes its sending side before it reads.
func (w *world) raw(request string, closeWrite bool) string {
	w.Helper()
	c := w.dial()
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		w.Fatal(err)
	}
	if closeWrite {
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
	return w.dialFrom("127.0.0.1")
}

// dialFrom connects from an address of 127.0.0.0/8.
func (w *world) dialFrom(client string) *net.TCPConn {
	w.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}
	c, err := from.Dial("tcp", w.addr)
	if err != nil {
		w.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		w.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// readReply reads one response with its body.
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

// replaceEngine puts f in front of the engine.
func replaceEngine(f *tagtest.Faulty) func(*Config) {
	return func(cfg *Config) {
		f.Engine = cfg.Engine
		cfg.Engine = f
	}
}
