package edge

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// listener keeps accepting when the process or the system runs out of descriptors: fasthttp would
// take that error for the end. Connections wait in the kernel's queue meanwhile.
type listener struct {
	net.Listener
	log *slog.Logger
}

func (l listener) Accept() (net.Conn, error) {
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		c, err := l.Listener.Accept()
		switch {
		case err == nil:
			if tcp, ok := c.(*net.TCPConn); ok {
				return &conn{TCPConn: tcp}, nil
			}
			return c, nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			l.log.Warn("cannot accept connections, trying again", "error", err, "in", delay)
			time.Sleep(delay)
		case errors.Is(err, unix.ECONNABORTED):
			// The client is gone already; the next one need not wait.
		default:
			return nil, err
		}
	}
}

// What is read and thrown away of a request that was answered before it was read.
const (
	drainTime  = time.Second
	drainBytes = 16 << 20
)

// conn is a connection whose last answer may come before the request was read to its end. Closing it
// then would reset the connection, and the reset can overtake the answer: the client of an oversized
// body would see a broken connection in place of its 413.
type conn struct {
	*net.TCPConn
	drain atomic.Bool
}

// drainOnClose marks a request's connection as having unread bytes.
func drainOnClose(ctx *fasthttp.RequestCtx) {
	for c := ctx.Conn(); c != nil; {
		switch outer := c.(type) {
		case *conn:
			outer.drain.Store(true)
			return
		case *tlsConn:
			c = outer.NetConn()
		case *proxyproto.Conn:
			c = outer.Raw()
		default:
			return
		}
	}
}

// Close sends what was written; a marked connection is then read for a short while, until the client
// has seen the end and closes its side.
func (c *conn) Close() error {
	if c.drain.Swap(false) && c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		// Whether the client closed, went on for too long or vanished: the connection ends here.
		_, _ = io.CopyN(io.Discard, c.TCPConn, drainBytes)
	}
	return c.TCPConn.Close()
}
