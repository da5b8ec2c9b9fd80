package edge

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// conn is a TCP connection with lazy deadlines, which ends slow clients, and closes without losing an answer.
type conn struct {
	*net.TCPConn
	open           *connections // which it is one of
	client         netip.Addr   // as clientaddr.Of returns it; the zero Addr until a proxy in front has named it
	readingStopped atomic.Bool
	idle           atomic.Bool                        // it has had a request, and waits for the next one
	waiting        atomic.Pointer[context.CancelFunc] // of a handshake or a WaitContext; nil when there is none
	read, write    deadline

	// drain makes Close read the rest of the request before it closes the connection. It is set when a request is
	// answered before it was read to the end. Without it Close would reset the connection, and the reset can overtake
	// the answer: the client of an oversized body would see a broken connection instead of its 413.
	drain atomic.Bool

	// Only the goroutine that serves the connection uses the fields below.

	received int64 // bytes read since the read deadline was set or moved
	sent     int64 // bytes written so far

	// The last check of how fast the client reads the answer.
	checked  bool  // there was one since the write deadline was set
	departed int64 // bytes that the client's kernel had received by then

	buffer readerBuffer // what fasthttp has read; see framing.go

	requestState
}

// requestState is what the server keeps with a connection about its current request.
type requestState struct {
	headRead    bool                    // fasthttp has read the head
	bareLine    bool                    // the request line ends without a carriage return
	headDecides bool                    // the answer does not depend on the body, which is not read
	bodyRefused error                   // why the budget has no room for the body, which is not read
	head        *fasthttp.RequestHeader // a copy, of a request whose body is chunked
	body        *reservation            // of a large body; nil when nothing is reserved
	answered    func()                  // see WhenAnswered
}

// Limits of Close for reading the rest of a request that was answered early.
const (
	drainTime  = time.Second
	drainBytes = 16 << 20
)

// Close closes the connection. With drain, it first closes only the sending side, and reads until the client closes.
func (c *conn) Close() error {
	defer c.open.remove(c)
	if c.drain.Swap(false) && c.CloseWrite() == nil && c.TCPConn.SetReadDeadline(time.Now().Add(drainTime)) == nil {
		// Whatever ends the reading, the connection is closed: the client, a limit or an error.
		_, _ = io.CopyN(io.Discard, c.TCPConn, drainBytes)
	}
	return c.TCPConn.Close()
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.TCPConn.Read(b)
		c.received += int64(n)
		if err == nil || n > 0 || c.readingStopped.Load() || c.read.passed(err, c.armRead, c.clientSends, c.open.interval) {
			return n, err
		}
	}
}

func (c *conn) Write(b []byte) (written int, err error) {
	for {
		n, err := c.TCPConn.Write(b[written:])
		written += n
		c.sent += int64(n)
		if err == nil || c.write.passed(err, c.TCPConn.SetWriteDeadline, c.clientReads, c.open.interval) {
			return written, err
		}
	}
}

// clientSends reports whether the client has sent enough since the read deadline was set or moved.
func (c *conn) clientSends() bool {
	enough := c.received >= rateBytes
	c.received = 0
	return enough
}

// clientReads reports whether the client's kernel has received enough of the answer since the last check. The first
// check of an answer only begins to count: what the server's kernel has buffered says nothing about the client.
func (c *conn) clientReads() bool {
	queued := 0
	if c.control(func(fd int) (err error) { queued, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); return err }) != nil {
		return false
	}
	departed := c.sent - int64(queued)
	enough := !c.checked || departed-c.departed >= rateBytes
	c.checked, c.departed = true, departed
	return enough
}

// control asks the kernel about the connection. It fails when the connection is closed.
func (c *conn) control(ask func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if controlErr := raw.Control(func(fd uintptr) { err = ask(int(fd)) }); controlErr != nil {
		return controlErr
	}
	return err
}

// SetReadDeadline implements net.Conn. A deadline that has passed moves while the client sends fast enough.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.received = 0
	return c.read.set(t, c.armRead)
}

// SetWriteDeadline implements net.Conn. A deadline that has passed moves while the client reads fast enough.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.checked = false
	return c.write.set(t, c.TCPConn.SetWriteDeadline)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// stopReading makes the current read and all later ones fail immediately.
func (c *conn) stopReading() {
	c.readingStopped.Store(true)
	// It fails only on a connection that is closed already.
	_ = c.TCPConn.SetReadDeadline(time.Now())
	c.endWaiting()
}

// endWaiting ends the WaitContext of the current request, if it has one.
func (c *conn) endWaiting() {
	if cancel := c.waiting.Load(); cancel != nil {
		(*cancel)()
	}
}

// armRead arms a read deadline, but never replaces that of stopReading, which may run concurrently. So it arms first and
// checks then. If readingStopped is set, it arms that deadline again; if not yet, stopReading will.
func (c *conn) armRead(t time.Time) error {
	err := c.TCPConn.SetReadDeadline(t)
	if c.readingStopped.Load() {
		return c.TCPConn.SetReadDeadline(time.Now())
	}
	return err
}

// clientConn is what fasthttp reads from and writes to: a conn, perhaps with the PROXY protocol and TLS around it.
type clientConn struct {
	net.Conn
	raw *conn

	tls        *handshakes // nil: without TLS
	secure     bool        // the handshake is done
	serverName string      // the SNI, in lower case; set when the handshake is done
}

func (c *clientConn) Read(b []byte) (int, error) {
	if c.tls != nil && !c.secure && !c.tls.do(c) {
		return 0, io.EOF // fasthttp then closes the connection without an answer
	}
	if !c.raw.headRead {
		if err := c.raw.buffer.checkHead(b); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(b)
	c.raw.buffer.note(b, n)
	return n, err
}

// drainOnClose makes the connection of a request read the rest of the request before it closes.
func drainOnClose(ctx *fasthttp.RequestCtx) { connOf(ctx).drain.Store(true) }

// connOf returns the connection of a request. It is nil when no listener of this package accepted it: the demo shop makes
// such requests to the partner API, and tests do.
func connOf(ctx *fasthttp.RequestCtx) *conn {
	if c, ok := ctx.Conn().(*clientConn); ok {
		return c.raw
	}
	return nil
}

// connStateChanged notes whether a connection is idle. When an answer is written or the connection is closed, it ends the
// state of the request. fasthttp calls it.
func connStateChanged(nc net.Conn, state fasthttp.ConnState) {
	c := nc.(*clientConn).raw
	c.idle.Store(state == fasthttp.StateIdle)
	if state != fasthttp.StateIdle && state != fasthttp.StateClosed {
		return
	}
	if c.open.stopping.Load() { // and this answer began before that: it has not closed the connection
		c.stopReading()
	}
	if c.body != nil { // rare: most requests do not touch the budget, which all connections share
		c.body.release()
	}
	if c.answered != nil {
		c.answered()
	}
	c.buffer.fresh = false
	c.requestState = requestState{}
}

// WhenAnswered calls a function when the answer to a request is written or its connection is closed. On a connection
// that this package did not accept, it calls the function now.
func WhenAnswered(r *fasthttp.RequestCtx, call func()) {
	if c := connOf(r); c != nil {
		c.answered = call
		return
	}
	call()
}
