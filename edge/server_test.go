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
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/edge/tag"
	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

func TestShutdownAnswersRunningRequests(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	const clients = 8
	var waiting sync.WaitGroup
	waiting.Add(clients)
	release := make(chan struct{})
	f.OnRecord = func(marks []store.Mark) error {
		waiting.Done()
		<-release
		return f.Engine.Record(t.Context(), marks)
	}
	replies := make(chan tagtest.Reply, clients)
	for range clients {
		go func() { replies <- w.mark(event) }()
	}
	waiting.Wait()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.shutdown()
	}()
	for !w.server.open.stopping.Load() {
		runtime.Gosched()
	}
	close(release)
	<-stopped
	for range clients {
		r := <-replies
		r.Want(t, 201, "Event accepted")
		if !r.Closes {
			t.Error("an answer during shutdown left its connection open")
		}
	}
	if n := len(w.Events(t)); n != clients {
		t.Errorf("recorded %d events, want %d", n, clients)
	}
	if c, err := net.Dial("tcp", w.addr); err == nil {
		c.Close()
		t.Error("a connection was accepted after Shutdown")
	}
}

func TestShutdownGivesUpWithItsContext(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	running, release := make(chan struct{}), make(chan struct{})
	f.OnRecord = func([]store.Mark) error { close(running); <-release; return tagtest.ErrOnPurpose }
	done := make(chan tagtest.Reply, 1)
	go func() { done <- w.mark(event) }()
	<-running
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v, want %v", err, context.Canceled)
	}
	close(release)
	(<-done).Want(t, 500, "")
}

// Shutdown does not wait for the read timeout of connections without a request, or with half of one.
func TestShutdownDoesNotWaitForSilentConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent, half := w.dial(), w.dial()
	defer silent.Close()
	defer half.Close()
	const begun = "POST /mark HTTP/1.1\r\nHost: " + clientHost + "\r\nContent-Length: 100\r\n\r\n{"
	if _, err := io.WriteString(half, begun); err != nil {
		t.Fatal(err)
	}
	w.mark(event).Want(t, 201, "") // accepted after both
	ctx, cancel := context.WithTimeout(t.Context(), readTimeout-arrivalTime)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	resp := readReply(t, bufio.NewReader(half))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("half a request got %d, want 503 with Retry-After", resp.StatusCode)
	}
}

// Under load, a shutdown loses neither an event that was answered with 201, nor the answer to a recorded event.
func TestShutdownUnderLoadLosesNoAnswer(t *testing.T) {
	w := newWorld(t)
	var accepted atomic.Int64
	var clients, started sync.WaitGroup
	for range 8 {
		clients.Add(1)
		started.Add(1)
		go func() {
			defer clients.Done()
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for i := 0; ; i++ {
				req, _ := http.NewRequest("POST", "http://"+w.addr+"/mark/"+string(w.Client.ID), strings.NewReader(event))
				req.Host = clientHost
				resp, err := transport.RoundTrip(req)
				if err == nil && resp.StatusCode == 201 {
					accepted.Add(1)
				}
				if i == 0 {
					started.Done()
				}
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
	}
	started.Wait()
	w.shutdown()
	clients.Wait()
	page, err := w.Engine.Events(t.Context(), store.Query{Merchant: w.Merchant, SortBy: store.ByTime, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if int64(page.Total) != accepted.Load() {
		t.Errorf("%d events recorded, %d answered with 201", page.Total, accepted.Load())
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	w := newWorld(t)
	c := w.dial()
	defer c.Close()
	one := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(event), event)
	two := "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\nContent-Length: 3\r\n\r\nabc"
	if _, err := io.WriteString(c, one+two+one); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	for _, want := range []int{201, 200, 201} {
		if got := readReply(t, r).StatusCode; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}

func TestExpectContinue(t *testing.T) {
	w := newWorld(t)
	head := "POST /mark/" + string(w.Client.ID) + " HTTP/1.1\r\nHost: " + clientHost + "\r\nExpect: 100-continue\r\n"
	c := w.dial()
	defer c.Close()
	if _, err := fmt.Fprintf(c, head+"Content-Length: %d\r\n\r\n", len(event)); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	if got := readReply(t, r).StatusCode; got != 100 {
		t.Fatalf("got %d, want 100", got)
	}
	if _, err := io.WriteString(c, event); err != nil {
		t.Fatal(err)
	}
	if got := readReply(t, r).StatusCode; got != 201 {
		t.Errorf("got %d, want 201", got)
	}
	if got := w.raw(head+"Content-Length: 2000000\r\n\r\n", false); !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.Contains(got, `"success":false`) {
		t.Errorf("got %q, want 413 instead of 100", got)
	}
}

func TestAPanicIsAnsweredAndTheServerGoesOn(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	f.OnRecord = func([]store.Mark) error { panic("on purpose") }
	w.mark(event).Want(t, 500, `{"success":false,"message":"Unable to process request"}`)
	w.do("GET", baseHost, "/v1/panic", "").Want(t, 500, `"statusCode":500`)
	f.OnRecord = nil
	w.mark(event).Want(t, 201, "")
	if got := w.counted()["mtagd_panics_total"]; got != 2 {
		t.Errorf("counted %v panics, want 2", got)
	}
}

func TestRequestsAndEventsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.mark(event)
	w.mark(`{"muid":"m","event":"A","event_id":"1"}`)
	w.mark(`{"muid":"m","event":"A","event_id":"1"}`)
	w.mark(`[{"muid":"m","event":"A"},{"email":"x@y.z","event":"A"},{}]`)
	w.mark(`{}`)
	w.do("GET", baseHost, "/v1/x", "")
	w.do("GET", baseHost, "/v1/busy", "")
	w.do("GET", baseHost, "/v1/gone", "")
	w.do("GET", baseHost, "/demo", "")
	w.do("GET", clientHost, "/health", "")
	w.shutdown()
	got := w.counted()
	for name, want := range map[string]float64{
		"mtagd_http_requests_total tag mark 201":      3,
		"mtagd_http_requests_total tag mark 200":      1,
		"mtagd_http_requests_total tag mark 400":      1,
		"mtagd_http_requests_total tag health 200":    1,
		"mtagd_http_requests_total partner other 200": 1,
		"mtagd_http_requests_total partner other 302": 1,
		"mtagd_http_requests_total partner busy 429":  1,
		"mtagd_http_requests_total partner other 499": 1,
		"mtagd_events_total recorded":                 3,
		"mtagd_events_total duplicate":                1,
		"mtagd_events_total unresolved":               1,
		"mtagd_events_total refused":                  2,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}

// counted returns the values of the counters by name and labels.
func (w *world) counted() map[string]float64 {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			name := family.GetName()
			for _, l := range []string{"surface", "endpoint", "code", "outcome", "cause", "tenant"} {
				if labels[l] != "" {
					name += " " + labels[l]
				}
			}
			values[name] = m.GetCounter().GetValue()
		}
	}
	return values
}

// scarceListener has no descriptors for its first connections.
type scarceListener struct {
	net.Listener
	failures int // how many are to come
}

func (l *scarceListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
	}
	return l.Listener.Accept()
}

func TestAcceptWaitsForDescriptors(t *testing.T) {
	ln, _ := dialed(t)
	c, err := (&listener{Listener: &scarceListener{ln, 2}, open: newConnections(), log: slog.New(slog.DiscardHandler)}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestASlowRequestGets408(t *testing.T) {
	w := newWorld(t)
	cfg := w.server.Config
	cfg.Metrics = nil
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.http.ReadTimeout = 50 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	slow := world{T: t, addr: ln.Addr().String()}
	for _, request := range []string{
		"POST /mark/x HTTP/1.1\r\nHost: " + clientHost + "\r\nX",
		"POST /mark/x HTTP/1.1\r\nHost: " + clientHost + "\r\nOrigin: https://shop.test\r\nContent-Length: 10\r\n\r\nabc",
	} {
		got := slow.raw(request, false)
		if !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, `"success":false`) {
			t.Errorf("got %q, want 408", got)
		}
		if strings.Contains(got, "Access-Control") {
			t.Errorf("a page can read %q, so the browser tag would not retry", got)
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServeFailsWhenItsListenerIsClosed(t *testing.T) {
	w := newWorld(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	s, err := New(Config{Config: tag.Config{Engine: w.Engine, Log: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); err == nil {
		t.Error("Serve returned nil without Shutdown")
	}
}
