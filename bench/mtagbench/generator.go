package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	drainTimeout = 10 * time.Second       // how long answers may take after a phase
	tick         = 100 * time.Microsecond // least time between two looks at the clock
	timerSlot    = -1                     // what epoll calls the timer
)

// generator drives all connections of a phase from one goroutine, by epoll: with a goroutine each, the client
// would take more of the machine than the server that it measures.
type generator struct {
	p phase
	result
	epoll, timer int
	conns        []*conn
	idle         []*conn // first in, first out, so that every connection is used
	buffer       []byte

	began     time.Time
	issued    int // requests that had their intended time
	open      int // requests under way
	exhausted bool
}

// load runs a phase. The error says that it could not be run; what the server did is in the result.
func load(ctx context.Context, p phase) (*result, error) {
	g := &generator{p: p, buffer: make([]byte, 256<<10), epoll: -1, timer: -1}
	g.latency, g.refusal = newHistogram(), newHistogram()
	defer g.close()
	if err := g.connect(ctx); err != nil {
		return nil, err
	}
	if err := g.run(ctx); err != nil {
		return nil, err
	}
	return &g.result, nil
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
	if g.p.rate > 0 { // a closed loop is driven by the answers
		interval := unix.NsecToTimespec(tick.Nanoseconds())
		if err := unix.TimerfdSettime(g.timer, 0, &unix.ItimerSpec{Interval: interval, Value: interval}, nil); err != nil {
			return err
		}
	}
	for i := range g.p.conns {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c, err := dial(g.p.target)
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
			_ = c.close() // the server sees the end either way
		}
	}
	for _, fd := range []int{g.timer, g.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

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
			sending = now < g.p.duration && !g.exhausted
		}
		if !sending && (g.open == 0 || now > g.p.duration+drainTimeout) {
			g.end(now)
			return nil
		}
		n, err := unix.EpollWait(g.epoll, events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd != timerSlot {
				g.serve(g.conns[e.Fd], e.Events)
				continue
			}
			// The next tick comes once this one was read; how many there were does not matter.
			if _, err := unix.Read(g.timer, g.buffer[:8]); err != nil && !errors.Is(err, unix.EAGAIN) {
				return err
			}
		}
	}
}

// sendDue sends the requests whose time has come, as far as connections are free. A closed loop's are always due.
func (g *generator) sendDue(now time.Duration) {
	for len(g.idle) > 0 {
		intended := time.Since(g.began)
		if g.p.rate > 0 {
			intended = intendedTime(g.issued, g.p.rate)
		} else {
			now = intended
		}
		if intended > now || intended >= g.p.duration {
			return
		}
		c := g.idle[0]
		if c.closed {
			g.idle = g.idle[1:]
			continue
		}
		request, events := g.p.next(c.out[:0])
		if events == 0 {
			g.exhausted = true
			return
		}
		g.idle = g.idle[1:]
		g.issued++
		g.requests++
		g.open++
		c.out, c.events, c.busy = request, events, true
		c.intended, c.sent = intended, now
		if err := c.send(); err != nil {
			g.lost(c, err)
		} else if len(c.unsent) > 0 {
			g.interest(c, unix.EPOLLIN|unix.EPOLLOUT)
		}
	}
}

// interest tells epoll what to wait for on a connection.
func (g *generator) interest(c *conn, events uint32) {
	if err := unix.EpollCtl(g.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Events: events, Fd: c.slot}); err != nil {
		g.lost(c, err)
	}
}

// serve takes up what happened on a connection.
func (g *generator) serve(c *conn, happened uint32) {
	if c.closed {
		return // closed since epoll told
	}
	if happened&unix.EPOLLOUT != 0 {
		if err := c.resume(); err != nil {
			g.lost(c, err)
			return
		}
		if len(c.unsent) == 0 {
			g.interest(c, unix.EPOLLIN)
		}
	}
	if happened&^unix.EPOLLOUT == 0 {
		return
	}
	// Records that crypto/tls has read already raise no event, so it is read until it has no more.
	for {
		n, err := c.read(g.buffer)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			g.lost(c, err)
			return
		}
		if !g.take(c, g.buffer[:n]) || c.tls == nil {
			return
		}
	}
}

// take reads an answer from what came in. It reports false when the connection is gone.
func (g *generator) take(c *conn, b []byte) bool {
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
		return true
	case !c.busy, size < len(b):
		err = errors.New("an answer that was not asked for")
	}
	if err != nil {
		g.lost(c, err)
		return false
	}
	now := time.Since(g.began)
	g.took = now
	g.open--
	c.busy = false
	c.pending = c.pending[:0]
	g.count(c, &r, now)
	if r.closes {
		g.lost(c, errors.New("the server closed a connection"))
		return false
	}
	g.idle = append(g.idle, c)
	return true
}

// count records the answer to the request of a connection.
func (g *generator) count(c *conn, r *reply, now time.Duration) {
	if r.status == 503 {
		g.refused++
		if !r.retryAfter {
			g.rude++
		}
		record(g.refusal, now-c.sent)
		return
	}
	record(g.latency, now-c.intended)
	accepted := 0
	switch r.status {
	case 201:
		accepted = 1
	case 200:
		accepted = batchAccepted(r.body)
	}
	if accepted != c.events {
		g.fail(1, fmt.Errorf("%d of %d events accepted: %d %.200s", accepted, c.events, r.status, r.body))
	}
	g.events += accepted
	g.bodyBytes += int64(bodySize(c.out))
}

// batchAccepted is N of an answer that begins with {"accepted":N, as that to a batch does.
func batchAccepted(body []byte) int {
	rest, _ := bytes.CutPrefix(body, []byte(`{"accepted":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	n, err := strconv.Atoi(string(digits))
	if err != nil {
		return 0
	}
	return n
}

func bodySize(request []byte) int {
	return len(request) - bytes.Index(request, []byte("\r\n\r\n")) - 4
}

// lost closes a connection for good. Without those that were lost a phase goes on, but not as healthy.
func (g *generator) lost(c *conn, err error) {
	if c.busy {
		g.open--
		record(g.latency, time.Since(g.began)-c.intended)
	}
	g.fail(1, err)
	c.busy, c.closed = false, true
	_ = c.close() // it failed already
}

// end counts what was never answered, and what was due and never sent: leaving these out would make a server that
// stalls look better than one that is slow.
func (g *generator) end(now time.Duration) {
	for _, c := range g.conns {
		if c.busy {
			record(g.latency, now-c.intended)
			g.fail(1, errors.New("no answer"))
		}
	}
	if g.p.rate == 0 || g.exhausted {
		return
	}
	for {
		intended := intendedTime(g.issued, g.p.rate)
		if intended >= g.p.duration {
			return
		}
		g.issued++
		g.unsent++
		record(g.latency, now-intended)
	}
}
