package edge

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"mtagd/edge/clientaddr"
	"mtagd/store/budget"
)

// handshakeTimeout is how long a handshake may take, from the moment when its connection was accepted.
const handshakeTimeout = 10 * time.Second

// tlsListener accepts connections and does their handshakes concurrently. A slow or idle client costs one goroutine
// until handshakeTimeout. Accept returns only connections whose handshake has succeeded.
type tlsListener struct {
	net.Listener // returns *clientConn
	config       *tls.Config
	clients      *budget.Budget[netip.Addr] // the handshakes under way
	log          *slog.Logger
	metrics      *metrics

	slots chan struct{} // one for each handshake under way
	ready chan net.Conn // handshake done, for Accept
	ended chan struct{} // closed when Listener has ended
	err   error         // why Listener has ended; set before ended is closed
}

// newTLSListener starts accepting connections, with at most limit handshakes under way, and perIP of one client; 0 for no
// limit. Close stops it.
func newTLSListener(ln net.Listener, config *tls.Config, perIP, limit int, log *slog.Logger, m *metrics) *tlsListener {
	if perIP == 0 {
		perIP = limit
	}
	l := &tlsListener{
		Listener: ln,
		config:   config,
		clients:  budget.New(int64(limit), func(netip.Addr) int64 { return int64(perIP) }),
		log:      log,
		metrics:  m,
		slots:    make(chan struct{}, limit),
		ready:    make(chan net.Conn),
		ended:    make(chan struct{}),
	}
	go l.acceptAll()
	return l
}

// Accept implements net.Listener.
func (l *tlsListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ended:
		return nil, l.err
	}
}

func (l *tlsListener) acceptAll() {
	for {
		l.slots <- struct{}{} // without a free slot, connections wait in the kernel's queue
		c, err := l.Listener.Accept()
		if err != nil {
			l.err = err
			close(l.ended)
			return
		}
		go func() {
			defer func() { <-l.slots }()
			l.serve(c.(*clientConn))
		}()
	}
}

// serve does the handshake of one connection, and then passes the connection to Accept or closes it.
func (l *tlsListener) serve(c *clientConn) {
	if !l.handshake(c) {
		// The client has gone or is refused, so an error of Close does not matter.
		_ = c.Close()
		return
	}
	select {
	case l.ready <- c:
	case <-l.ended:
		_ = c.Close()
	}
}

// handshake adds TLS to a connection. It returns false when there is nothing to serve: the handshake failed, the client has
// too many under way, or the CA needed only the handshake.
func (l *tlsListener) handshake(c *clientConn) (done bool) {
	defer func() {
		if p := recover(); p != nil {
			l.metrics.panics.Inc()
			l.log.Error("panic", "surface", "handshake", "value", p, "stack", string(debug.Stack()))
			done = false
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if c.SetDeadline(deadline) != nil {
		return false
	}
	client := clientaddr.Of(c.RemoteAddr()) // behind a proxy, this reads the proxy's header
	if l.clients.TryReserve(client, 1) != nil {
		l.metrics.handshakes[handshakeLimited].Inc()
		return false
	}
	defer l.clients.Release(client, 1)

	secure := tls.Server(c.Conn, l.config)
	if err := secure.HandshakeContext(ctx); err != nil {
		l.metrics.handshakes[handshakeFailed].Inc()
		return false
	}
	l.metrics.handshakes[handshakeDone].Inc()
	state := secure.ConnectionState()
	if state.NegotiatedProtocol != "" && state.NegotiatedProtocol != "http/1.1" {
		_ = secure.Close() // a challenge of the CA (TLS-ALPN-01): the handshake was the answer
		return false
	}
	if c.SetDeadline(time.Time{}) != nil {
		return false
	}
	c.Conn, c.secure, c.serverName = secure, true, strings.ToLower(state.ServerName)
	return true
}
