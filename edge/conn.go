package edge

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/valyala/fasthttp"
)

// connections is the set of open connections. The zero value is empty.
type connections struct {
	mu  sync.Mutex
	all map[*conn]struct{}

	reserved atomic.Int64 // bytes of bodyBudget that request bodies have reserved
}

func (o *connections) add(tcp *net.TCPConn) *conn {
	c := &conn{TCPConn: tcp, open: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*conn]struct{}{}
	}
	o.all[c] = struct{}{}
	return c
}

func (o *connections) remove(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

func (o *connections) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

// stopReading makes reads on every connection fail. Requests that have arrived are still answered.
func (o *connections) stopReading() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		c.stopReading()
	}
}

// conn is a TCP connection that sets its deadlines lazily, and that closes without losing an answer.
type conn struct {
	*net.TCPConn
	open           *connections // contains the connection until it is closed
	readingStopped atomic.Bool
	read, write    deadline

	// drain makes Close read the rest of the request before it closes the connection. It is set when a request is
	// answered before it was read to the end. Without it Close would reset the connection, and the reset can overtake
	// the answer: the client of an oversized body would see a broken connection instead of its 413.
	drain atomic.Bool

	// The current request's part of bodyBudget. Only the goroutine that serves the connection uses these.
	bodyReserved int64 // bytes that the body has reserved
	overBudget   bool  // the body was refused because the budget was spent

	head *fasthttp.RequestHeader // of the current request when its body is chunked; see keepHead
}

// Limits of Close for reading the rest of a request that was answered early.
const (
	drainTime  = time.Second
	drainBytes = 16 << 20
)

// Close closes the connection. When drain is set, it first closes only the sending side, and reads until the client
// closes too.
func (c *conn) Close() error {
	c.open.remove(c)
	if c.drain.Swap(false) && c.CloseWrite() == nil && c.TCPConn.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		// Whatever ends the reading, the connection is closed: the client, a limit or an error.
		_, _ = io.CopyN(io.Discard, c.TCPConn, drainBytes)
	}
	return c.TCPConn.Close()
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.TCPConn.Read(b)
		if err == nil || n > 0 || c.readingStopped.Load() || c.read.passed(err, c.armRead) {
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

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.read.set(t, c.armRead) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.write.set(t, c.TCPConn.SetWriteDeadline) }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// stopReading makes the current read and all later ones fail immediately.
func (c *conn) stopReading() {
	c.readingStopped.Store(true)
	// It fails only on a connection that is closed already.
	_ = c.TCPConn.SetReadDeadline(time.Now())
}

// armRead arms a read deadline, but never replaces that of stopReading, which may run concurrently. So it arms first
// and checks then. If readingStopped is set, armRead arms the deadline of stopReading again. If it is not set yet,
// stopReading will arm its deadline after this one.
func (c *conn) armRead(t time.Time) error {
	err := c.TCPConn.SetReadDeadline(t)
	if c.readingStopped.Load() {
		return c.TCPConn.SetReadDeadline(time.Now())
	}
	return err
}

// deadline is a deadline that is armed lazily. fasthttp sets three deadlines for each request, and arming one costs as
// much as parsing a small event. Nearly every deadline is later than the one before, so that one stays armed. When it
// passes, the wanted deadline is armed. Only an earlier deadline is armed immediately. A deadline is not safe for
// concurrent use: it belongs to the goroutine that reads, or to the one that writes.
type deadline struct{ wanted, armed time.Time }

func (d *deadline) set(t time.Time, arm func(time.Time) error) error {
	d.wanted = t
	if !t.IsZero() && !d.armed.IsZero() && !t.Before(d.armed) {
		return nil
	}
	d.armed = t
	return arm(t)
}

// passed reports whether an error of a read or write is final. When only the armed deadline has passed and the wanted
// one has not, passed arms the wanted one and returns false: the caller tries again.
func (d *deadline) passed(err error, arm func(time.Time) error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || d.wanted.Equal(d.armed) || !time.Now().Before(d.wanted) {
		return true
	}
	d.armed = d.wanted
	return arm(d.wanted) != nil
}

// drainOnClose makes the connection of a request read the rest of the request before it closes.
func drainOnClose(ctx *fasthttp.RequestCtx) {
	if c := connOf(ctx.Conn()); c != nil {
		c.drain.Store(true)
	}
}

// connOf returns the conn beneath TLS and the PROXY protocol. It is nil when no retryingListener accepted the
// connection.
func connOf(c net.Conn) *conn {
	for {
		switch outer := c.(type) {
		case *conn:
			return outer
		case interface{ NetConn() net.Conn }: // TLS
			c = outer.NetConn()
		case *proxyproto.Conn:
			c = outer.Raw()
		default:
			return nil
		}
	}
}
