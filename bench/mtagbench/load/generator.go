// Package load sends requests to a server on this machine and measures the answers.
//
// Read in this order:
//
//	generator.go  runs a phase: all connections from one goroutine, by epoll
//	phase.go      a phase of load: the server's address, the requests, and the result
//	conn.go       a connection that never blocks, and how an answer is read
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

const (
	drainTimeout  = 10 * time.Second       // how long the last answers may take after a phase
	timerInterval = 100 * time.Microsecond // how often an open loop checks for requests that are due
	resendPause   = time.Second            // before a refused request is sent again
	timerSlot     = -1                     // the timer's slot in epoll events; connections have 0 and above
)

// generator drives all connections of a phase from one goroutine. With a goroutine for each connection, the client
// would take more of the machine than the server that it measures.
type generator struct {
	phase Phase
	Result
	epoll, timer int
	conns        []*conn
	idle         []*conn // a queue: the connection that has been idle longest is used next
	buffer       []byte

	began     time.Time
	issued    int       // requests whose intended time has passed
	open      int       // requests that wait for an answer
	exhausted bool      // the source has no more requests
	again     []refused // the earliest due first
}

// refused is a request that will be sent again.
type refused struct {
	request []byte
	events  int
	due     time.Duration // since the beginning of the phase
}

// Run runs a phase. It returns an error if the phase could not run; failures of the server are in the result.
func Run(ctx context.Context, p Phase) (*Result, error) {
	g := &generator{phase: p, buffer: make([]byte, 256<<10), epoll: -1, timer: -1}
	g.Latency, g.RefusalTime = NewHistogram(), NewHistogram()
	defer g.close()
	if err := g.connect(ctx); err != nil {
		return nil, err
	}
	if err := g.run(ctx); err != nil {
		return nil, err
	}
	return &g.Result, nil
}

// RunAccepted runs a phase in which the server must accept every request that is sent.
func RunAccepted(ctx context.Context, p Phase) (*Result, error) {
	r, err := Run(ctx, p)
	if err == nil {
		err = r.AllAccepted()
	}
	return r, err
}

func (g *generator) connect(ctx context.Context) (err error) {
	if g.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if g.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return err
	}
	if err := unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, g.timer, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: timerSlot}); err != nil {
		return err
	}
	if g.phase.Rate > 0 { // a closed loop needs no timer: answers drive it
		interval := unix.NsecToTimespec(timerInterval.Nanoseconds())
		if err := unix.TimerfdSettime(g.timer, 0, &unix.ItimerSpec{Interval: interval, Value: interval}, nil); err != nil {
			return err
		}
	}
	for i := range g.phase.Connections {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c, err := dial(g.phase.Target)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i+1, err)
		}
		c.slot = int32(i)
		g.conns = append(g.conns, c)
		if err := unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: c.slot}); err != nil {
			return err
		}
	}
	g.idle = append(g.idle, g.conns...)
	return nil
}

func (g *generator) close() {
	for _, c := range g.conns {
		if !c.closed {
			_ = c.close() // the phase is over, so an error does not matter
		}
	}
	for _, fd := range []int{g.timer, g.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// run sends until the phase is over, then waits for the last answers.
func (g *generator) run(ctx context.Context) error {
	events := make([]unix.EpollEvent, 512)
	g.began = time.Now()
	for sending := true; ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := time.Since(g.began)
		if sending {
			g.sendDue(now)
			sending = now < g.phase.Duration && !g.isDone()
		}
		if !sending && (g.open == 0 || now > g.phase.Duration+drainTimeout) {
			g.countUnanswered(now)
			return nil
		}
		n, err := unix.EpollWait(g.epoll, events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd != timerSlot {
				g.handle(g.conns[e.Fd], e.Events)
				continue
			}
			// Reading resets the timer. The number of ticks it returns does not matter.
			if _, err := unix.Read(g.timer, g.buffer[:8]); err != nil && !errors.Is(err, unix.EAGAIN) {
				return err
			}
		}
	}
}

// sendDue sends requests until none is due or no connection is free. In a closed loop a request is always due.
func (g *generator) sendDue(now time.Duration) {
	for len(g.idle) > 0 {
		intended := time.Since(g.began)
		if g.phase.Rate > 0 {
			intended = IntendedTime(g.issued, g.phase.Rate)
		} else {
			now = intended
		}
		if intended > now || intended >= g.phase.Duration {
			return
		}
		c := g.idle[0]
		if c.closed {
			g.idle = g.idle[1:]
			continue
		}
		request, events := g.next(c.out[:0], now)
		if events == 0 {
			return
		}
		g.idle = g.idle[1:]
		g.issued++
		g.Requests++
		g.open++
		c.out, c.unsent, c.events, c.busy = request, request, events, true
		c.intended, c.sent = intended, now
		if err := c.send(); err != nil {
			g.drop(c, err)
		} else if len(c.unsent) > 0 {
			g.waitFor(c, unix.EPOLLIN|unix.EPOLLOUT)
		}
	}
}

// next appends the next request to b: one that is due again, or a new one. If there is none, it returns 0 events.
func (g *generator) next(b []byte, now time.Duration) (request []byte, events int) {
	if len(g.again) > 0 && g.again[0].due <= now {
		r := g.again[0]
		g.again = g.again[1:]
		return append(b, r.request...), r.events
	}
	if g.exhausted {
		return b, 0
	}
	request, events = g.phase.Next(b)
	g.exhausted = events == 0
	return request, events
}

// isDone reports whether all requests were sent, and none will be sent again.
func (g *generator) isDone() bool {
	return g.exhausted && len(g.again) == 0 && (g.open == 0 || !g.phase.Resend)
}

// waitFor sets the events for which epoll reports a connection.
func (g *generator) waitFor(c *conn, events uint32) {
	if err := unix.EpollCtl(g.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: c.slot}); err != nil {
		g.drop(c, err)
	}
}

// handle writes to and reads from a connection that epoll reported.
func (g *generator) handle(c *conn, events uint32) {
	if c.closed {
		return // closed after epoll reported it
	}
	if events&unix.EPOLLOUT != 0 {
		if err := c.send(); err != nil {
			g.drop(c, err)
			return
		}
		if len(c.unsent) == 0 {
			g.waitFor(c, unix.EPOLLIN)
		}
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	n, err := c.read(g.buffer)
	switch {
	case errors.Is(err, unix.EAGAIN):
	case err != nil:
		g.drop(c, err)
	default:
		g.receive(c, g.buffer[:n])
	}
}

// receive adds bytes to a connection's answer, and counts the answer once it is complete.
func (g *generator) receive(c *conn, b []byte) {
	if len(c.pending) > 0 {
		c.pending = append(c.pending, b...)
		b = c.pending
	}
	r, size, err := parseReply(b)
	switch {
	case err != nil:
	case size == 0:
		if len(c.pending) == 0 {
			c.pending = append(c.pending, b...)
		}
		return
	case !c.busy, size < len(b):
		err = errors.New("an answer without a request")
	}
	if err != nil {
		g.drop(c, err)
		return
	}
	now := time.Since(g.began)
	g.Took = now
	g.open--
	c.busy = false
	c.pending = c.pending[:0]
	g.count(c, &r, now)
	if r.closes {
		g.drop(c, errors.New("the server closed a connection"))
		return
	}
	g.idle = append(g.idle, c)
}

// count records the answer to a connection's request.
func (g *generator) count(c *conn, r *reply, now time.Duration) {
	if r.status == 503 && g.phase.Resend {
		g.again = append(g.again, refused{bytes.Clone(c.out), c.events, now + resendPause})
		return
	}
	if r.status == 503 {
		g.Refused++
		if !r.retryAfter {
			g.NoRetryAfter++
		}
		g.RefusalTime.Record(now - c.sent)
		return
	}
	g.Latency.Record(now - c.intended)
	accepted := r.accepted()
	if accepted != c.events {
		g.fail(fmt.Errorf("%d of %d events accepted: %d %.200s", accepted, c.events, r.status, r.body))
	}
	g.Events += accepted
	g.BodyBytes += int64(c.bodySize())
}

// drop closes a connection that failed. The phase goes on with the others, and counts the failure.
func (g *generator) drop(c *conn, err error) {
	if c.busy {
		g.open--
		g.Latency.Record(time.Since(g.began) - c.intended)
	}
	g.fail(err)
	c.busy, c.closed = false, true
	_ = c.close() // it failed already
}

// countUnanswered counts requests without an answer, and those that were due but never sent. If these did not count, a
// server that stalls would look better than one that is slow.
func (g *generator) countUnanswered(now time.Duration) {
	for _, c := range g.conns {
		if c.busy {
			g.Latency.Record(now - c.intended)
			g.fail(errors.New("no answer"))
		}
	}
	if g.phase.Rate == 0 || g.exhausted {
		return
	}
	for {
		intended := IntendedTime(g.issued, g.phase.Rate)
		if intended >= g.phase.Duration {
			return
		}
		g.issued++
		g.Unsent++
		g.Latency.Record(now - intended)
	}
}
