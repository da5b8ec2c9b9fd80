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

// connections are the open connections. The zero value has none.
type connections struct {
	mu  sync.Mutex
	all map[*conn]struct{}

	bodies atomic.Int64 // bytes that their requests' bodies take from the budget
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

// stopReading ends reading on every connection. Requests that have arrived are still answered.
func (o *connections) stopReading() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		c.stopReading()
	}
}

// conn is a connection that arms its deadlines late, and that closes without losing an answer.
type conn struct {
	*net.TCPConn
	open           *connections // contains the connection until it is closed
	readingStopped atomic.Bool
	read, write    deadline

	// drain is set when the last answer comes before its request was read to the end. To close the connection would
	// then reset it, and the reset can overtake the answer: the client of an oversized body would see a broken
	// connection instead of its 413.
	drain atomic.Bool

	// The budget for bodies. Only the goroutine that serves the connection uses these.
	bodyHeld   int64 // bytes that its request's body takes from the budget
	overBudget bool  // its request's body was refused because the budget was spent
}

// Limits for reading the rest of a request that was answered early.
const (
	drainTime  = time.Second
	drainBytes = 16 << 20
)

// Close sends what was written. When drain is set, it then reads until the client has seen the end and closes its own
// side.
func (c *conn) Close() error {
	c.open.remove(c)
	if c.drain.Swap(false) && c.CloseWrite() == nil && c.TCPConn.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		// Any error ends the connection, like the client's end or either limit.
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

// stopReading makes this read and all later ones return at once.
func (c *conn) stopReading() {
	c.readingStopped.Store(true)
	// It fails only on a connection that is closed already.
	_ = c.TCPConn.SetReadDeadline(time.Now())
}

// armRead arms a read deadline. It must not replace the one of stopReading, which may run at the same time. So it looks
// after it has armed: if reading is not stopped by then, stopReading arms its own deadline later than this one.
func (c *conn) armRead(t time.Time) error {
	err := c.TCPConn.SetReadDeadline(t)
	if c.readingStopped.Load() {
		return c.TCPConn.SetReadDeadline(time.Now())
	}
	return err
}

// deadline is a deadline that is armed late. fasthttp sets three deadlines for each request, nearly always later than
// the one before, and to arm one costs as much as to parse a small event. So only an earlier deadline is armed at once.
// When the armed deadline passes before the wanted one, the wanted one is armed. A deadline belongs to the goroutine
// that reads or writes.
type deadline struct{ wanted, armed time.Time }

func (d *deadline) set(t time.Time, arm func(time.Time) error) error {
	d.wanted = t
	if !t.IsZero() && !d.armed.IsZero() && !t.Before(d.armed) {
		return nil
	}
	d.armed = t
	return arm(t)
}

// passed reports whether err is final. It is not when only the armed deadline has passed: then passed arms the wanted
// one.
func (d *deadline) passed(err error, arm func(time.Time) error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) || d.wanted.Equal(d.armed) || !time.Now().Before(d.wanted) {
		return true
	}
	d.armed = d.wanted
	return arm(d.wanted) != nil
}

// drainOnClose marks a request's connection as having unread bytes.
func drainOnClose(ctx *fasthttp.RequestCtx) {
	if c := connOf(ctx.Conn()); c != nil {
		c.drain.Store(true)
	}
}

// connOf returns the connection beneath TLS and the PROXY protocol, nil when a retryingListener has not accepted it.
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
