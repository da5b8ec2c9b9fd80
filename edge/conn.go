package edge

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
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
	log  *slog.Logger
	open *connections // takes each connection
}

func (l listener) Accept() (net.Conn, error) {
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		c, err := l.Listener.Accept()
		switch {
		case err == nil:
			if tcp, ok := c.(*net.TCPConn); ok {
				return l.open.add(tcp), nil
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

// conn is a connection that arms its deadlines lazily, and that closes without losing an answer.
type conn struct {
	*net.TCPConn
	open        *connections // it is one of them until it is closed
	hurried     atomic.Bool  // it gives nothing to read any more
	read, write deadline

	// drain is set when the last answer comes before its request was read to the end. Closing the
	// connection then would reset it, and the reset can overtake the answer: the client of an
	// oversized body would see a broken connection in place of its 413.
	drain atomic.Bool

	// What the body of its request has to do with the budget for bodies; only the goroutine that serves the
	// connection looks.
	bodyHeld    int64 // bytes
	bodyRefused bool
}

// deadline is a deadline that is mostly moved on: fasthttp sets three for each request, and arming
// one costs as much as parsing a small event. So only an earlier one is armed at once; when
// the armed one passes before the wanted one, the wanted one is armed then. It belongs to the
// goroutine that reads or writes.
type deadline struct{ wanted, armed time.Time }

func (d *deadline) set(t time.Time, arm func(time.Time) error) error {
	d.wanted = t
	if !t.IsZero() && !d.armed.IsZero() && !t.Before(d.armed) {
		return nil
	}
	d.armed = t
	return arm(t)
}

// passed reports whether err tells that the wanted deadline passed, and arms it where only
// the armed one did.
func (d *deadline) passed(err error, arm func(time.Time) error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || d.wanted.Equal(d.armed) || !time.Now().Before(d.wanted) {
		return true
	}
	d.armed = d.wanted
	return arm(d.wanted) != nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	if c.hurried.Load() {
		return c.TCPConn.SetReadDeadline(time.Now())
	}
	return c.read.set(t, c.TCPConn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.write.set(t, c.TCPConn.SetWriteDeadline) }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.TCPConn.Read(b)
		if err == nil || n > 0 || c.hurried.Load() || c.read.passed(err, c.TCPConn.SetReadDeadline) {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (written int, err error) {
	for {
		n, err := c.TCPConn.Write(b[written:])
		written += n
		if err == nil || c.write.passed(err, c.TCPConn.SetWriteDeadline) {
			return written, err
		}
	}
}

// connOf is the connection beneath TLS and the PROXY protocol; nil where it is none of this package's.
func connOf(c net.Conn) *conn {
	for {
		switch outer := c.(type) {
		case *conn:
			return outer
		case *tlsConn:
			c = outer.NetConn()
		case *proxyproto.Conn:
			c = outer.Raw()
		default:
			return nil
		}
	}
}

// drainOnClose marks a request's connection as having unread bytes.
func drainOnClose(ctx *fasthttp.RequestCtx) {
	if c := connOf(ctx.Conn()); c != nil {
		c.drain.Store(true)
	}
}

// Close sends what was written; a marked connection is then read for a short while, until the client
// has seen the end and closes its side.
func (c *conn) Close() error {
	c.open.remove(c)
	if c.drain.Swap(false) && c.CloseWrite() == nil && c.TCPConn.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		// Whether the client closed, went on for too long or vanished: the connection ends here.
		_, _ = io.CopyN(io.Discard, c.TCPConn, drainBytes)
	}
	return c.TCPConn.Close()
}
