package edge

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"
)

// When a client closes or resets its connection, the context of its request ends: with TLS and the PROXY protocol too.
func TestClientContextEndsWithTheClient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		secure, behind bool
		leave          func(*net.TCPConn) error
	}{
		{"it closes", false, false, (*net.TCPConn).Close},
		{"it resets", false, false, func(c *net.TCPConn) error {
			if err := c.SetLinger(0); err != nil {
				return err
			}
			return c.Close()
		}},
		{"it closes behind a proxy", false, true, (*net.TCPConn).Close},
		{"it closes over TLS behind a proxy", true, true, (*net.TCPConn).Close},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began, ended := make(chan struct{}), make(chan error, 1)
			w := newWorld(t, withTLS(t), waitForClient(began, ended), func(cfg *Config) {
				if tt.behind {
					cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				}
			})
			if tt.secure {
				w.addr = w.listen(w.server.ServeTLS)
			}
			tcp := w.dial()
			defer tcp.Close()
			if tt.behind {
				if _, err := io.WriteString(tcp, "PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			var client net.Conn = tcp
			if tt.secure {
				client = tls.Client(tcp, &tls.Config{ServerName: baseHost, InsecureSkipVerify: true})
			}
			if _, err := fmt.Fprintf(client, "GET /v1/x HTTP/1.1\r\nHost: %s\r\n\r\n", baseHost); err != nil {
				t.Fatal(err)
			}
			<-began
			if err := tt.leave(tcp); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != context.Canceled {
				t.Errorf("the context's error is %v, want %v", err, context.Canceled)
			}
		})
	}
}

// waitForClient sets a partner API that waits until its client has gone, and then reports its context's error.
func waitForClient(began chan<- struct{}, ended chan<- error) func(*Config) {
	return func(cfg *Config) {
		cfg.PartnerAPI = func(r *fasthttp.RequestCtx) {
			ctx, cancel := ClientContext(r)
			defer cancel()
			close(began)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			ended <- ctx.Err()
		}
	}
}

// The context of a client that waits does not end when the server begins to stop.
func TestClientContextLastsAsLongAsTheClient(t *testing.T) {
	var w *world
	w = newWorld(t, func(cfg *Config) {
		cfg.PartnerAPI = func(r *fasthttp.RequestCtx) {
			ctx, cancel := ClientContext(r)
			defer cancel()
			go w.shutdown()
			for !w.server.open.stopping.Load() {
				runtime.Gosched()
			}
			select {
			case <-ctx.Done():
				r.SetStatusCode(500)
			case <-time.After(3 * clientCheckInterval):
			}
		}
	})
	w.do("GET", baseHost, "/v1/x", "").Want(t, 200, "")
}

func TestAClientIsNotCheckedAfterItsHandlerHasReturned(t *testing.T) {
	for _, tt := range []struct {
		name  string
		takes time.Duration // the handler
		want  int32         // checks
	}{
		{"before the first check", clientCheckInterval / 2, 0},
		{"after two checks", 5 * clientCheckInterval / 2, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var checks atomic.Int32
				ctx, cancel := watchClient(func() bool { checks.Add(1); return false }, clientCheckInterval)
				time.Sleep(tt.takes)
				if ctx.Err() != nil {
					t.Error("the context ended before its handler")
				}
				cancel()
				time.Sleep(10 * clientCheckInterval)
				if n := checks.Load(); n != tt.want {
					t.Errorf("the client was checked %d times, want %d", n, tt.want)
				}
				if ctx.Err() == nil {
					t.Error("the context goes on after its handler")
				}
			})
		})
	}
}

// On a connection that this package did not accept, only the CancelFunc ends the context.
func TestClientContextEndsWithTheHandler(t *testing.T) {
	r := new(fasthttp.RequestCtx)
	r.Init(new(fasthttp.Request), nil, nil)
	ctx, cancel := ClientContext(r)
	if ctx.Err() != nil {
		t.Error("the context ended at once")
	}
	cancel()
	if ctx.Err() == nil {
		t.Error("the context goes on after cancel")
	}
}

// A request that waits ends when the server begins to stop, and one that comes later does not wait at all.
func TestWaitContextEndsWhenTheServerStops(t *testing.T) {
	var w *world
	w = newWorld(t, func(cfg *Config) {
		cfg.PartnerAPI = func(r *fasthttp.RequestCtx) {
			ctx, cancel := WaitContext(r)
			defer cancel()
			if ctx.Err() != nil {
				r.SetStatusCode(500)
			}
			go w.shutdown()
			<-ctx.Done()
			late, cancelLate := WaitContext(r)
			defer cancelLate()
			if late.Err() == nil {
				r.SetStatusCode(500)
			}
		}
	})
	w.do("GET", baseHost, "/v1/x", "").Want(t, 200, "")
}

// A request that waits gives way when its connection is needed.
func TestWaitContextEndsWhenTheConnectionIsNeeded(t *testing.T) {
	began := make(chan struct{})
	w := newWorld(t, func(cfg *Config) {
		cfg.PartnerAPI = func(r *fasthttp.RequestCtx) {
			ctx, cancel := WaitContext(r)
			defer cancel()
			close(began)
			<-ctx.Done()
		}
	})
	go func() {
		<-began
		w.server.open.stopReading(func(*conn) bool { return true })
	}()
	w.do("GET", baseHost, "/v1/x", "").Want(t, 200, "")
}

func TestAClientThatWaitsIsCheckedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int32
		_, cancel := watchClient(func() bool { checks.Add(1); return false }, waitCheckInterval)
		time.Sleep(time.Minute)
		cancel()
		if n := checks.Load(); n > 26 {
			t.Errorf("the client was checked %d times in a minute", n)
		}
	})
}
