package edge

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"

	"mtagd/edge/clientaddr"
)

// proxyHeaderTimeout is how long a proxy may take to send its header.
const proxyHeaderTimeout = 5 * time.Second

// clientListener finds the client of each connection, and refuses connections of clients that have too many. A
// connection from a trusted address begins with a PROXY protocol header, version 1 or 2, which names the client. It is
// required: behind a proxy that sends none, a client could send its own and name any address. On connections from all
// other addresses no header is read.
type clientListener struct {
	net.Listener // of *conn
	open         *connections
	trusted      []netip.Prefix
	refused      prometheus.Counter
}

// Accept implements net.Listener.
func (l *clientListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, ok := accepted.(*conn)
		switch {
		case !ok:
			return accepted, nil
		case l.isProxy(c.RemoteAddr()):
			return l.behindProxy(c), nil
		case l.setClient(c, c.RemoteAddr()):
			return c, nil
		}
		// The client sees a closed connection. An answer would cost more than it is worth to a client like that.
		_ = c.Close()
	}
}

func (l *clientListener) isProxy(address net.Addr) bool {
	if len(l.trusted) == 0 {
		return false
	}
	at, err := netip.ParseAddrPort(address.String())
	return err == nil && slices.ContainsFunc(l.trusted, func(network netip.Prefix) bool {
		return network.Contains(at.Addr().Unmap().WithZone(""))
	})
}

func (l *clientListener) setClient(c *conn, address net.Addr) bool {
	ok := l.open.setClient(c, clientaddr.Of(address))
	if !ok {
		l.refused.Inc()
	}
	return ok
}

var errTooManyConnections = errors.New("the client has too many connections")

// behindProxy returns the connection without the proxy's header. Its first read reads the header. A header without an
// address is the proxy's own health check, whose connections are not counted.
func (l *clientListener) behindProxy(c *conn) net.Conn {
	proxied := &proxiedConn{raw: c, Conn: proxyproto.NewConn(c,
		proxyproto.WithPolicy(proxyproto.REQUIRE),
		proxyproto.SetReadHeaderTimeout(proxyHeaderTimeout),
		proxyproto.ValidateHeader(func(header *proxyproto.Header) error {
			if header.SourceAddr != nil && !header.Command.IsLocal() && !l.setClient(c, header.SourceAddr) {
				return errTooManyConnections
			}
			return nil
		}))}
	c.outer = proxied
	return proxied
}
