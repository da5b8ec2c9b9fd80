package main

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/bench"
)

// serveBare serves a handler on loopback until the test ends; nil is the bare server's own.
func serveBare(t *testing.T, config *tls.Config, handler fasthttp.RequestHandler) target {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + listener.Addr().String() + "/mark/x"
	if config != nil {
		listener = tls.NewListener(listener, config)
		url = strings.Replace(url, "http", "https", 1)
	}
	server := bench.NewBareServer()
	if handler != nil {
		server.Handler = handler
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Shutdown(), <-served); err != nil {
			t.Error(err)
		}
	})
	where, err := parseTarget(url, "")
	if err != nil {
		t.Fatal(err)
	}
	return where
}

func mustLoad(t *testing.T, p phase) *result {
	t.Helper()
	r, err := load(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A server that stalls is charged with every request that was meant to be sent meanwhile, not only with the
// one that it held.
func TestStallIsSeenFromIntendedTime(t *testing.T) {
	const stall = 300 * time.Millisecond
	var asked atomic.Int64
	where := serveBare(t, nil, func(ctx *fasthttp.RequestCtx) {
		if asked.Add(1) == 10 {
			time.Sleep(stall)
		}
		ctx.SetStatusCode(fasthttp.StatusCreated)
	})
	r := mustLoad(t, offering(where, 1, 1, 600*time.Millisecond, 200))
	if err := r.healthy(); err != nil {
		t.Fatal(err)
	}
	// 60 requests were due in the stall; those of its first half waited longer than the other half of it.
	slow := 0
	for _, bar := range r.latency.Distribution() {
		if bar.From > (stall / 2).Microseconds() {
			slow += int(bar.Count)
		}
	}
	if slow < 25 {
		t.Errorf("%d requests waited for more than %v, want about 30", slow, stall/2)
	}
	if r.requests != 120 || r.events != 120 || r.unsent != 0 {
		t.Errorf("%d requests, %d accepted, %d never sent, want 120, 120, 0", r.requests, r.events, r.unsent)
	}
}

// Requests that were due and found no free connection until the end count, with the time that they waited.
func TestUnsentRequestsCount(t *testing.T) {
	where := serveBare(t, nil, func(ctx *fasthttp.RequestCtx) {
		time.Sleep(500 * time.Millisecond)
		ctx.SetStatusCode(fasthttp.StatusCreated)
	})
	r := mustLoad(t, offering(where, 1, 1, 200*time.Millisecond, 100))
	if r.requests != 1 || r.unsent != 19 || r.latency.TotalCount() != 20 {
		t.Errorf("%d sent, %d never sent, %d counted, want 1, 19, 20", r.requests, r.unsent, r.latency.TotalCount())
	}
	if r.latency.Min() < 300_000 {
		t.Errorf("the last one counts with %d µs, want the 310 ms or more that it waited", r.latency.Min())
	}
}

// A closed loop sends until its time is over, on all of its connections, plain and with TLS.
func TestClosedLoop(t *testing.T) {
	certificate, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": {Certificates: []tls.Certificate{certificate}}} {
		t.Run(name, func(t *testing.T) {
			where := serveBare(t, config, nil)
			r := mustLoad(t, marking(where, 8, 1, 100*time.Millisecond))
			if err := r.healthy(); err != nil {
				t.Fatal(err)
			}
			if r.events < 8 || r.events != r.requests || int64(r.events) != r.latency.TotalCount() {
				t.Errorf("%d requests, %d accepted, %d latencies", r.requests, r.events, r.latency.TotalCount())
			}
			if want := int64(r.events * bench.EventSize); r.bodyBytes != want {
				t.Errorf("%d bytes of bodies, want %d", r.bodyBytes, want)
			}
		})
	}
}

// A batch counts as its events, and not as accepted when some of them were not.
func TestBatchesCountEvents(t *testing.T) {
	for _, c := range []struct {
		answer  string
		healthy bool
	}{{`{"accepted":7,"results":[]}`, true}, {`{"accepted":6,"results":[]}`, false}} {
		where := serveBare(t, nil, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(c.answer) })
		p := marking(where, 1, 7, time.Minute)
		p.next = atMostRequests(3, p.next)
		r := mustLoad(t, p)
		if healthy := r.healthy() == nil; healthy != c.healthy || r.requests != 3 {
			t.Errorf("%s: %v, after %d requests", c.answer, r.healthy(), r.requests)
		}
		if c.healthy && r.events != 21 {
			t.Errorf("%d events, want 21", r.events)
		}
	}
}

// A refusal is told from a failure, and a refusal without Retry-After from one with it.
func TestRefusals(t *testing.T) {
	var asked atomic.Int64
	where := serveBare(t, nil, func(ctx *fasthttp.RequestCtx) {
		switch asked.Add(1) % 3 {
		case 0:
			ctx.Response.Header.Set("Retry-After", "1")
			ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		case 1:
			ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		case 2:
			ctx.SetStatusCode(fasthttp.StatusInternalServerError)
		}
	})
	p := marking(where, 1, 1, time.Minute)
	p.next = atMostRequests(9, p.next)
	r := mustLoad(t, p)
	if r.refused != 6 || r.rude != 3 || r.failed != 3 || r.events != 0 || r.refusal.TotalCount() != 6 {
		t.Errorf("refused %d, rude %d, failed %d, accepted %d, %d times of refusal; want 6, 3, 3, 0, 6",
			r.refused, r.rude, r.failed, r.events, r.refusal.TotalCount())
	}
}

// A connection that breaks is a failure, and the others go on.
func TestBrokenConnection(t *testing.T) {
	var asked atomic.Int64
	where := serveBare(t, nil, func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(fasthttp.StatusCreated)
		if asked.Add(1) == 1 {
			ctx.SetConnectionClose()
		}
	})
	p := marking(where, 2, 1, time.Minute)
	p.next = atMostRequests(20, p.next)
	r := mustLoad(t, p)
	if r.events != 20 || r.failed != 1 {
		t.Errorf("%d accepted and %d failures, want 20 and 1", r.events, r.failed)
	}
}

// A request larger than the socket's buffer is sent in pieces, without waiting in between.
func TestLargeRequest(t *testing.T) {
	certificate, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": {Certificates: []tls.Certificate{certificate}}} {
		t.Run(name, func(t *testing.T) {
			where := serveBare(t, config, func(ctx *fasthttp.RequestCtx) {
				if len(ctx.PostBody()) == 3<<20 {
					ctx.SetStatusCode(fasthttp.StatusCreated)
				}
			})
			head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3145728\r\n\r\n"
			r := mustLoad(t, phase{target: where, conns: 2, duration: time.Minute, next: atMostRequests(4, func(b []byte) ([]byte, int) {
				return append(append(b, head...), make([]byte, 3<<20)...), 1
			})})
			if r.events != 4 {
				t.Errorf("%d accepted, want 4; %v", r.events, r.firstErr)
			}
		})
	}
}

// atMostRequests ends a source.
func atMostRequests(n int, next func([]byte) ([]byte, int)) func([]byte) ([]byte, int) {
	return func(b []byte) ([]byte, int) {
		if n == 0 {
			return b, 0
		}
		n--
		return next(b)
	}
}

// Load goes to loopback addresses only.
func TestTargetIsLoopback(t *testing.T) {
	for _, url := range []string{
		"http://192.0.2.1:80/", "http://[2001:db8::1]:80/", "http://example.com:80/", "http://localhost:80/", "http://127.0.0.1/", "ftp://127.0.0.1:80/", "127.0.0.1:80",
	} {
		if got, err := parseTarget(url, ""); err == nil {
			t.Errorf("%s is taken for %v", url, got)
		}
	}
	got, err := parseTarget("https://[::1]:8443/mark/x?y=z", "tags.test")
	if err != nil || !got.tls || got.host != "tags.test" || got.path != "/mark/x?y=z" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// An answer is read whole, whatever the pieces that it comes in.
func TestParseReply(t *testing.T) {
	const whole = "HTTP/1.1 503 Service Unavailable\r\nDate: x\r\ncontent-length: 3\r\nRETRY-AFTER: 1\r\nConnection: Close\r\n\r\nabc"
	for cut := range len(whole) {
		if _, size, err := parseReply([]byte(whole[:cut])); size != 0 || err != nil {
			t.Fatalf("%q: %d, %v", whole[:cut], size, err)
		}
	}
	r, size, err := parseReply([]byte(whole + "HTTP"))
	if err != nil || size != len(whole) || r.status != 503 || !r.retryAfter || !r.closes || string(r.body) != "abc" {
		t.Errorf("%+v, %d, %v", r, size, err)
	}
	for _, bad := range []string{"HTTP/1.1 20x OK\r\nContent-Length: 0\r\n\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"} {
		if _, _, err := parseReply([]byte(bad)); err == nil {
			t.Errorf("%q is taken for an answer", bad)
		}
	}
}
