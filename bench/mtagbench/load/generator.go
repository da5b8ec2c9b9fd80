// Package load sends requests to a server on this machine and measures the answers.
//
// Read in this order:
//
//	generator.go  runs a phase: a goroutine for each connection
//	phase.go      a phase of load: the server's address, the requests, and the result
package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

const (
	drainTimeout = 10 * time.Second       // how long the last answers may take after a phase
	resendPause  = time.Second            // before a refused request is sent again
	beatInterval = 100 * time.Microsecond // how late a request of an open loop may be sent
)

// generator drives a phase. Each connection has a goroutine, and at most one request in progress.
type generator struct {
	phase Phase
	began time.Time

	mu        sync.Mutex
	issued    int  // requests that have a connection
	exhausted bool // the source has no more requests
	Result
}

// Run runs a phase. It returns an error if the phase could not run; failures of the server are in the result.
func Run(ctx context.Context, p Phase) (*Result, error) {
	g := &generator{phase: p}
	g.Latency, g.RefusalTime = NewHistogram(), NewHistogram()
	var conns []net.Conn
	closeAll := func() {
		for _, c := range conns {
			c.Close() // what was read counts
		}
	}
	defer closeAll()
	for i := range p.Connections {
		c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", p.Target.Address.String())
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w", i+1, err)
		}
		conns = append(conns, c)
	}
	if p.Rate > 0 {
		stop, err := beat()
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	defer context.AfterFunc(ctx, closeAll)()
	g.began = time.Now()
	var running sync.WaitGroup
	for _, c := range conns {
		_ = c.SetDeadline(g.began.Add(p.Duration + drainTimeout)) // fails only when ctx has ended
		running.Go(func() { g.drive(c) })
	}
	running.Wait()
	g.countUnsent()
	return &g.Result, ctx.Err()
}

// RunAccepted runs a phase in which the server must accept every request that is sent.
func RunAccepted(ctx context.Context, p Phase) (*Result, error) {
	r, err := Run(ctx, p)
	if err == nil {
		err = r.AllAccepted()
	}
	return r, err
}

// beat wakes the Go scheduler at short intervals until stop is called. Without beat, the scheduler sees timers in steps of a
// millisecond, so an open loop would send its requests in bursts.
func beat() (stop func() error, err error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	timer := os.NewFile(uintptr(fd), "timer")
	interval := unix.NsecToTimespec(beatInterval.Nanoseconds())
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: interval, Value: interval}, nil); err != nil {
		return nil, errors.Join(err, timer.Close())
	}
	go func() {
		ticks := make([]byte, 8)
		for {
			if _, err := timer.Read(ticks); err != nil {
				return // it was closed
			}
		}
	}()
	return timer.Close, nil
}

// drive sends requests on a connection until the phase is over or the connection fails. The phase goes on with the others.
func (g *generator) drive(c net.Conn) {
	answers := bufio.NewReader(c)
	var r request
	var answer fasthttp.Response
	for g.next(&r) {
		time.Sleep(r.intended - time.Since(g.began))
		for {
			r.sent = time.Since(g.began)
			_, err := c.Write(r.text)
			if err == nil {
				err = answer.Read(answers)
			}
			if !g.count(&r, &answer, err) {
				return
			}
			if !g.phase.Resend || answer.StatusCode() != fasthttp.StatusServiceUnavailable {
				break
			}
			time.Sleep(resendPause)
		}
	}
}

// request is a request with its times, which count from the beginning of the phase.
type request struct {
	text           []byte
	events         int
	intended, sent time.Duration
}

// next makes the next request. It returns false when the phase is over. In a closed loop a request is always due.
func (g *generator) next(r *request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.began)
	r.intended = now
	if g.phase.Rate > 0 {
		r.intended = IntendedTime(g.issued, g.phase.Rate)
	}
	if g.exhausted || max(now, r.intended) >= g.phase.Duration {
		return false
	}
	r.text, r.events = g.phase.Next(r.text[:0])
	if g.exhausted = r.events == 0; g.exhausted {
		return false
	}
	g.issued++
	return true
}

// count records the answer to a request, or why there is none. It returns false when the connection cannot go on.
func (g *generator) count(r *request, answer *fasthttp.Response, err error) bool {
	now := time.Since(g.began)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Requests++
	if err != nil {
		g.Latency.Record(now - r.intended)
		g.fail(fmt.Errorf("no answer: %w", err))
		return false
	}
	g.Took = now
	switch {
	case answer.StatusCode() != fasthttp.StatusServiceUnavailable:
		g.Latency.Record(now - r.intended)
		events := accepted(answer)
		if events != r.events {
			g.fail(fmt.Errorf("%d of %d events accepted: %d %.200s", events, r.events, answer.StatusCode(), answer.Body()))
		}
		g.Events += events
	case !g.phase.Resend:
		g.Refused++
		if len(answer.Header.Peek("Retry-After")) == 0 {
			g.NoRetryAfter++
		}
		g.RefusalTime.Record(now - r.sent)
	}
	if answer.ConnectionClose() {
		g.fail(errors.New("the server closed a connection"))
		return false
	}
	return true
}

// accepted returns how many events an answer accepts: one with status 201; with status 200, which answers a batch, the number in
// its field accepted.
func accepted(answer *fasthttp.Response) int {
	if answer.StatusCode() == fasthttp.StatusCreated {
		return 1
	}
	rest, ok := bytes.CutPrefix(answer.Body(), []byte(`{"accepted":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	n, err := strconv.Atoi(string(digits))
	if answer.StatusCode() != fasthttp.StatusOK || !ok || err != nil {
		return 0
	}
	return n
}

// countUnsent counts requests that were due but never sent: else a server that stalls would look better than a slow one.
func (g *generator) countUnsent() {
	if g.phase.Rate == 0 || g.exhausted {
		return
	}
	now := time.Since(g.began)
	for ; ; g.issued++ {
		intended := IntendedTime(g.issued, g.phase.Rate)
		if intended >= g.phase.Duration {
			return
		}
		g.Unsent++
		g.Latency.Record(now - intended)
	}
}
