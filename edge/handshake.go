package edge

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"mtagd/edge/clientaddr"
	"mtagd/store/budget"
)

const handshakeTimeout = 10 * time.Second

// handshakes does the TLS handshakes of a listener's connections. The first read of a connection does its handshake, in the
// goroutine that serves the connection. So a slow or idle client costs one goroutine until handshakeTimeout.
type handshakes struct {
	config  *tls.Config
	clients *budget.Budget[netip.Addr] // the handshakes under way
	log     *slog.Logger
	metrics *metrics
}

// newHandshakes allows perIP handshakes of one client at the same time; 0 for no limit.
func newHandshakes(config *tls.Config, perIP int, log *slog.Logger, m *metrics) *handshakes {
	share := int64(perIP)
	if perIP == 0 {
		share = math.MaxInt64
	}
	return &handshakes{config, budget.New(math.MaxInt64, func(netip.Addr) int64 { return share }), log, m}
}

// do adds TLS to a connection. It returns false when there is nothing to serve, also after a CA's handshake.
func (h *handshakes) do(c *clientConn) (done bool) {
	defer func() {
		if p := recover(); p != nil {
			h.metrics.panics.Inc()
			h.log.Error("panic", "surface", "handshake", "value", p, "stack", string(debug.Stack()))
			done = false
		}
	}()
	client := clientaddr.Of(c.RemoteAddr()) // behind a proxy, this reads the proxy's header
	if h.clients.TryReserve(client, 1) != nil {
		h.metrics.handshakes.limited.Inc()
		return false
	}
	defer h.clients.Release(client, 1)

	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	end := context.CancelFunc(func() { // not when the server begins to stop: the client may be about to send a request
		if c.raw.readingStopped.Load() {
			cancel()
		}
	})
	c.raw.waiting.Store(&end) // a handshake may wait for something else than a read: see certs.Certificates
	defer c.raw.waiting.Store(nil)
	end()
	secure := tls.Server(c.Conn, h.config)
	if err := secure.HandshakeContext(ctx); err != nil {
		h.metrics.handshakes.failed.Inc()
		return false
	}
	h.metrics.handshakes.done.Inc()
	state := secure.ConnectionState()
	if state.NegotiatedProtocol != "" && state.NegotiatedProtocol != "http/1.1" {
		_ = secure.Close() // a challenge of the CA (TLS-ALPN-01): the handshake was the answer
		return false
	}
	c.Conn, c.secure, c.serverName = secure, true, strings.ToLower(state.ServerName)
	return c.SetReadDeadline(time.Now().Add(readTimeout)) == nil // that of the first request begins now
}
