package edge

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/store"
)

// proxyHeaderTimeout is how long a proxy may take to send its header.
const proxyHeaderTimeout = 5 * time.Second

// sendBuffer is how many bytes of answers the kernel takes from each connection before the client's kernel has them. The
// kernel adds as much again for its own bookkeeping. By default it takes up to 4 MiB: answers that nobody reads would
// count as sent, so no deadline would end their connections, and the kernel's memory would hold them.
const sendBuffer = 128 << 10

// listener accepts TCP connections. It finds the client of each one, and refuses those of clients that have too many. A
// connection from a trusted address begins with a PROXY protocol header, version 1 or 2, which names the client. It is
// required: behind a proxy that sends none, a client could send its own and name any address. Others' is not read.
type listener struct {
	net.Listener // of *net.TCPConn
	open         *connections
	trusted      store.Networks
	tls          *handshakes // nil: without TLS
	refusals     *limit.Refusals
	log          *slog.Logger
}

// Accept implements net.Listener. It returns a *clientConn.
func (l *listener) Accept() (net.Conn, error) {
	for {
		tcp, err := l.acceptTCP()
		if err != nil {
			return nil, err
		}
		// The option is not set on the listener: that would miss the connections that are in its queue already. It fails
		// only when the connection is broken; then reading fails too.
		_ = tcp.SetWriteBuffer(sendBuffer)
		c := l.open.add(tcp)
		switch {
		case l.trusted.Contain(clientaddr.Exact(c.RemoteAddr())):
			return l.behindProxy(c), nil
		case l.setClient(c, c.RemoteAddr()):
			return &clientConn{Conn: c, raw: c, tls: l.tls}, nil
		}
		// The client sees a closed connection. An answer would cost more than it is worth to a client like that.
		_ = c.Close()
	}
}

// acceptTCP retries when the process or the system has run out of descriptors or memory: fasthttp would stop serving.
// Meanwhile connections wait in the kernel's queue.
func (l *listener) acceptTCP() (*net.TCPConn, error) {
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		c, err := l.Listener.Accept()
		switch {
		case err == nil:
			return c.(*net.TCPConn), nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE),
			errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			l.log.Warn("cannot accept connections, retrying", "error", err, "retry_in_ms", delay.Milliseconds())
			time.Sleep(delay)
		case errors.Is(err, unix.ECONNABORTED):
			// The client closed the connection before Accept: take the next one.
		default:
			return nil, err
		}
	}
}

func (l *listener) setClient(c *conn, address net.Addr) bool {
	ok := l.open.setClient(c, clientaddr.Of(address))
	if !ok {
		l.refusals.Count(limit.Connections, limit.Tenant{})
	}
	return ok
}

var errTooManyConnections = errors.New("the client has too many connections")

// behindProxy returns the connection without the proxy's header. Its first read reads the header. A header without an
// address is the proxy's own health check, whose connections are not counted.
func (l *listener) behindProxy(c *conn) net.Conn {
	return &clientConn{raw: c, tls: l.tls, Conn: proxyproto.NewConn(c,
		proxyproto.WithPolicy(proxyproto.REQUIRE),
		proxyproto.SetReadHeaderTimeout(proxyHeaderTimeout),
		proxyproto.ValidateHeader(func(header *proxyproto.Header) error {
			if header.SourceAddr != nil && !header.Command.IsLocal() && !l.setClient(c, header.SourceAddr) {
				return errTooManyConnections
			}
			return nil
		}))}
}
