package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/bench"
)

// serveBare serves on loopback until the test ends. A nil handler is the bare server's.
func serveBare(t *testing.T, handler fasthttp.RequestHandler) Target {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
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
	where, err := NewTarget(listener.Addr().String(), "tags.test", "/mark/x")
	if err != nil {
		t.Fatal(err)
	}
	return where
}

func mustRun(t *testing.T, p Phase) *Result {
	t.Helper()
	r, err := Run(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Content-Length is the length of the body, for single events and for batches.
func TestRequestLength(t *testing.T) {
	for _, batch := range []int{1, 2, 1000} {
		request, events := Marks(Target{Path: "/mark/x", Host: "h"}, Plain, batch)(nil)
		head, body, _ := bytes.Cut(request, []byte("\r\n\r\n"))
		if events != batch || !strings.Contains(string(head), fmt.Sprintf("Content-Length: %d", len(body))) || !json.Valid(body) {
			t.Errorf("a batch of %d: %d events in %d bytes after %s", batch, events, len(body), head)
		}
	}
}

// During a stall, every request that is due counts as delayed, not only the one that the server was handling.
func TestStallIsSeenFromIntendedTime(t *testing.T) {
	const stall = 300 * time.Millisecond
	var asked atomic.Int64
	where := serveBare(t, func(ctx *fasthttp.RequestCtx) {
		if asked.Add(1) == 10 {
			time.Sleep(stall)
		}
		ctx.SetStatusCode(fasthttp.StatusCreated)
	})
	r := mustRun(t, OpenLoop(where, 1, 1, 600*time.Millisecond, 200))
	if err := r.AllAccepted(); err != nil {
		t.Fatal(err)
	}
	// 60 requests were due in the stall. The first 30 of them waited for more than half of it.
	slow := 0
	for _, bar := range r.Latency.counts.Distribution() {
		if bar.From > (stall / 2).Microseconds() {
			slow += int(bar.Count)
		}
	}
	if slow < 25 {
		t.Errorf("%d requests waited for more than %v, want about 30", slow, stall/2)
	}
	// On a busy machine the last ones may find the connection taken.
	if r.Requests+r.Unsent != 120 || r.Events != r.Requests {
		t.Errorf("%d requests, %d accepted, %d never sent, want 120 in all, and each that was sent accepted", r.Requests, r.Events, r.Unsent)
	}
}

// Requests that were due but never found a free connection count with the time that they waited.
func TestUnsentRequestsCount(t *testing.T) {
	where := serveBare(t, func(ctx *fasthttp.RequestCtx) {
		time.Sleep(500 * time.Millisecond)
		ctx.SetStatusCode(fasthttp.StatusCreated)
	})
	r := mustRun(t, OpenLoop(where, 1, 1, 200*time.Millisecond, 100))
	if r.Requests != 1 || r.Unsent != 19 || r.Latency.Count() != 20 {
		t.Errorf("%d sent, %d never sent, %d counted, want 1, 19, 20", r.Requests, r.Unsent, r.Latency.Count())
	}
	if r.Latency.counts.Min() < 300_000 {
		t.Errorf("the last one counts with %d µs, want the 310 ms or more that it waited", r.Latency.counts.Min())
	}
}

// A closed loop sends on all connections until its time is over.
func TestClosedLoop(t *testing.T) {
	r := mustRun(t, ClosedLoop(serveBare(t, nil), Plain, 8, 1, 100*time.Millisecond))
	if err := r.AllAccepted(); err != nil {
		t.Fatal(err)
	}
	if r.Events < 8 || r.Events != r.Requests || int64(r.Events) != r.Latency.Count() {
		t.Errorf("%d requests, %d accepted, %d latencies", r.Requests, r.Events, r.Latency.Count())
	}
}

// A batch counts as many events as it carries. If some are not accepted, it counts as a failure.
func TestBatchesCountEvents(t *testing.T) {
	for _, c := range []struct {
		answer  string
		healthy bool
	}{{`{"accepted":7,"results":[]}`, true}, {`{"accepted":6,"results":[]}`, false}} {
		where := serveBare(t, func(ctx *fasthttp.RequestCtx) { ctx.SetBodyString(c.answer) })
		p := ClosedLoop(where, Plain, 1, 7, time.Minute)
		p.Next = atMostRequests(3, p.Next)
		r := mustRun(t, p)
		if healthy := r.AllAccepted() == nil; healthy != c.healthy || r.Requests != 3 {
			t.Errorf("%s: %v, after %d requests", c.answer, r.AllAccepted(), r.Requests)
		}
		if c.healthy && r.Events != 21 {
			t.Errorf("%d events, want 21", r.Events)
		}
	}
}

// Refusals with and without Retry-After, and failures, are counted apart.
func TestRefusals(t *testing.T) {
	var asked atomic.Int64
	where := serveBare(t, func(ctx *fasthttp.RequestCtx) {
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
	p := ClosedLoop(where, Plain, 1, 1, time.Minute)
	p.Next = atMostRequests(9, p.Next)
	r := mustRun(t, p)
	if r.Refused != 6 || r.NoRetryAfter != 3 || r.Failed != 3 || r.Events != 0 || r.RefusalTime.Count() != 6 {
		t.Errorf("refused %d, without Retry-After %d, failed %d, accepted %d, %d refusal times; want 6, 3, 3, 0, 6",
			r.Refused, r.NoRetryAfter, r.Failed, r.Events, r.RefusalTime.Count())
	}
}

// With Resend, a refused request is sent again until it is accepted.
func TestResend(t *testing.T) {
	var asked atomic.Int64
	where := serveBare(t, func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(fasthttp.StatusCreated)
		if n := asked.Add(1); n == 1 || n == 3 {
			ctx.SetStatusCode(fasthttp.StatusServiceUnavailable)
		}
	})
	p := ClosedLoop(where, Plain, 1, 1, time.Minute)
	p.Next, p.Resend = atMostRequests(3, p.Next), true
	r := mustRun(t, p)
	if err := r.AllAccepted(); err != nil || r.Events != 3 || r.Requests != 5 {
		t.Errorf("%d accepted of %d requests, want 3 of 5, %v", r.Events, r.Requests, err)
	}
}

// A broken connection is a failure. The other connections go on.
func TestBrokenConnection(t *testing.T) {
	var asked atomic.Int64
	where := serveBare(t, func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(fasthttp.StatusCreated)
		if asked.Add(1) == 1 {
			ctx.SetConnectionClose()
		}
	})
	p := ClosedLoop(where, Plain, 2, 1, time.Minute)
	p.Next = atMostRequests(20, p.Next)
	r := mustRun(t, p)
	if r.Events != 20 || r.Failed != 1 {
		t.Errorf("%d accepted and %d failures, want 20 and 1", r.Events, r.Failed)
	}
}

// A request larger than the socket's buffer arrives whole.
func TestLargeRequest(t *testing.T) {
	where := serveBare(t, func(ctx *fasthttp.RequestCtx) {
		if len(ctx.PostBody()) == 3<<20 {
			ctx.SetStatusCode(fasthttp.StatusCreated)
		}
	})
	head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3145728\r\n\r\n"
	r := mustRun(t, Phase{Target: where, Connections: 2, Duration: time.Minute, Next: atMostRequests(4, func(b []byte) ([]byte, int) {
		return append(append(b, head...), make([]byte, 3<<20)...), 1
	})})
	if r.Events != 4 {
		t.Errorf("%d accepted, want 4; %v", r.Events, r.FirstFailure)
	}
}

// atMostRequests ends a source after n requests.
func atMostRequests(n int, next func([]byte) ([]byte, int)) func([]byte) ([]byte, int) {
	return func(b []byte) ([]byte, int) {
		if n == 0 {
			return b, 0
		}
		n--
		return next(b)
	}
}

// A target must be a loopback address.
func TestTargetIsLoopback(t *testing.T) {
	for _, address := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "example.com:80", "localhost:80", "127.0.0.1"} {
		if got, err := NewTarget(address, "h", "/"); err == nil {
			t.Errorf("%s is accepted as %v", address, got)
		}
	}
	if _, err := NewTarget("[::1]:8443", "h", "/"); err != nil {
		t.Error(err)
	}
}
