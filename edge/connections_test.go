package edge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/store/testenv"
)

// health asks for /health on a connection, and returns whether there is an answer.
func health(c net.Conn) bool {
	if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: "+clientHost+"\r\n\r\n"); err != nil {
		return false
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && line == "HTTP/1.1 200 OK\r\n"
}

func TestAClientHasALimitOfConnections(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.ConnectionsPerAddress = 3 })
	var open [3]net.Conn
	for i := range open {
		open[i] = w.dial()
		defer open[i].Close()
		if !health(open[i]) {
			t.Fatalf("connection %d is not served", i)
		}
	}
	if health(w.dial()) {
		t.Error("a connection over the limit is served")
	}
	if got := w.counted()["mtagd_refused_total connections none"]; got != 1 {
		t.Errorf("%v connections were counted as refused, want 1", got)
	}
	if !health(w.dialFrom("127.0.0.2")) {
		t.Error("another client is not served")
	}
	open[0].Close()
	for deadline := time.Now().Add(time.Minute); !health(w.dial()); {
		if time.Now().After(deadline) {
			t.Fatal("a client that has closed a connection gets no other")
		}
	}
}

// Behind a proxy the limit counts the clients that the proxy names, not the proxy.
func TestClientsBehindAProxyHaveALimitOfConnectionsEach(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			w := newWorld(t, withTLS(t), func(cfg *Config) {
				cfg.ConnectionsPerAddress = 2
				cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			})
			if secure {
				w.addr = w.listen(w.server.ServeTLS)
			}
			dial := func(client string) net.Conn {
				c := w.dial()
				t.Cleanup(func() { c.Close() })
				fmt.Fprintf(c, "PROXY TCP6 %s 2001:db8::1 4000 443\r\n", client)
				if secure {
					return w.secure(c, clientHost)
				}
				return c
			}
			for i, tt := range []struct {
				client string
				served bool
			}{
				{"2001:db8:7::1", true}, {"2001:db8:7::2", true}, {"2001:db8:7::3", false},
				{"2001:db8:8::1", true}, {"2001:db8:8::1", true}, {"2001:db8:8::1", false},
			} {
				if got := health(dial(tt.client)); got != tt.served {
					t.Errorf("connection %d of %s is served: %v, want %v", i, tt.client, got, tt.served)
				}
			}
		})
	}
}

// A proxy may name a client that has no IP, such as one on a Unix socket. Its connections are not counted.
func TestClientsWithoutAnIPHaveNoLimitOfConnections(t *testing.T) {
	w := newWorld(t, func(cfg *Config) {
		cfg.ConnectionsPerAddress = 2
		cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	header := proxyproto.Header{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UnixStream,
		SourceAddr:      &net.UnixAddr{Name: "/client", Net: "unix"},
		DestinationAddr: &net.UnixAddr{Name: "/server", Net: "unix"}}
	for i := range 4 {
		c := w.dial()
		defer c.Close()
		if _, err := header.WriteTo(c); err != nil {
			t.Fatal(err)
		}
		if !health(c) {
			t.Errorf("connection %d is not served", i)
		}
	}
}

// When all connections are in use, a new one gets in: a client with many loses those that have been silent for the
// longest time. A client with few keeps its own.
func TestANewConnectionTakesThePlaceOfASilentOne(t *testing.T) {
	w := newTunedWorld(t, func(s *Server) { s.open.limit = 8 })
	few := w.dialFrom("127.0.0.3")
	defer few.Close()
	if !health(few) {
		t.Fatal("the first client is not served")
	}
	var many [7]net.Conn
	for i := range many {
		many[i] = w.dialFrom("127.0.0.2")
		defer many[i].Close()
		if !health(many[i]) {
			t.Fatalf("connection %d is not served", i)
		}
		time.Sleep(20 * time.Millisecond) // the kernel measures silence in ticks of up to 10 ms
	}
	if !health(many[0]) { // now the second one has been silent for the longest time
		t.Fatal("the connection is not kept")
	}
	if !health(w.dialFrom("127.0.0.4")) {
		t.Error("a new client is not served")
	}
	if _, err := many[1].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the silent connection is still open: %v", err)
	}
	if !health(many[0]) || !health(few) {
		t.Error("another connection was closed")
	}
	if got := w.counted()["mtagd_refused_total connections none"]; got != 1 {
		t.Errorf("%v connections were counted as closed, want 1", got)
	}
}

// A client that does not read its answer loses the connection. One that reads slowly gets all of it.
func TestAnAnswerMustLeaveFastEnough(t *testing.T) {
	t.Parallel()
	testenv.NotShort(t, "time")
	answer := make([]byte, 32<<20) // more than the kernels on both sides buffer
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			const interval = 500 * time.Millisecond
			w := newTunedWorld(t, func(s *Server) {
				s.http.WriteTimeout, s.https.WriteTimeout, s.open.interval = interval, interval, interval
			}, withTLS(t), func(cfg *Config) {
				cfg.PartnerAPI = func(ctx *fasthttp.RequestCtx) { ctx.Response.SetBodyRaw(answer) }
			})
			if secure {
				w.addr = w.listen(w.server.ServeTLS)
			}
			var c [2]net.Conn
			for i := range c {
				c[i] = w.dial()
				defer c[i].Close()
				if secure {
					c[i] = w.secure(c[i], baseHost)
				}
				if _, err := fmt.Fprintf(c[i], "GET /v1/x HTTP/1.1\r\nHost: %s\r\n\r\n", baseHost); err != nil {
					t.Fatal(err)
				}
			}
			begun, read := time.Now(), 0
			for block := make([]byte, 256<<10); read < len(answer); {
				n, err := io.ReadFull(c[0], block[:min(len(block), len(answer)-read)])
				if read += n; err != nil {
					t.Fatalf("%v after %d bytes", err, read)
				}
				if time.Since(begun) < 4*interval { // longer than a client that does not read is waited for
					time.Sleep(interval / 10)
				}
			}
			for deadline := time.Now().Add(time.Minute); w.server.Connections() > 1; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the connection of a client that does not read stays open")
				}
			}
			if n, err := io.Copy(io.Discard, c[1]); err == nil && n >= int64(len(answer)) || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the client that did not read still gets %d bytes, %v", n, err)
			}
		})
	}
}

// Small answers must not wait in the kernel instead, where no deadline would end their connections.
func TestTheKernelTakesLittleOfAnAnswerInAdvance(t *testing.T) {
	w := newWorld(t)
	c := w.dial()
	defer c.Close()
	if !health(c) {
		t.Fatal("not served")
	}
	w.server.open.mu.Lock()
	defer w.server.open.mu.Unlock()
	for accepted := range w.server.open.all {
		if accepted.RemoteAddr().String() != c.LocalAddr().String() {
			continue
		}
		raw, err := accepted.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		controlErr := raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF) })
		if err := errors.Join(err, controlErr); err != nil || size > 2*sendBuffer {
			t.Errorf("the send buffer has %d bytes, %v; want at most %d", size, err, 2*sendBuffer)
		}
	}
}

// What an answer has reserved is released when it is written, or when its connection closes.
func TestWhenAnswered(t *testing.T) {
	began, answered := make(chan struct{}, 1), make(chan struct{}, 1)
	w := newWorld(t, func(cfg *Config) {
		cfg.PartnerAPI = func(ctx *fasthttp.RequestCtx) {
			WhenAnswered(ctx, func() { answered <- struct{}{} })
			began <- struct{}{}
			if string(ctx.Path()) == "/v1/large" {
				ctx.Response.SetBodyRaw(make([]byte, 32<<20))
			}
		}
	})
	w.do("GET", baseHost, "/v1/small", "").Want(t, 200, "")
	<-began
	<-answered
	c := w.dial()
	fmt.Fprintf(c, "GET /v1/large HTTP/1.1\r\nHost: %s\r\n\r\n", baseHost)
	<-began
	select {
	case <-answered:
		t.Error("called before the answer was written")
	case <-time.After(20 * time.Millisecond):
	}
	c.Close()
	<-answered

	called := false
	WhenAnswered(new(fasthttp.RequestCtx), func() { called = true })
	if !called {
		t.Error("not called without a connection of this package")
	}
}
