package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// queue gathers requests into groups. While the committer writes one group, requests join the next. When that is full,
// they begin another.
type queue struct {
	admit func(size int) error // returns why size more bytes cannot be accepted now, or nil

	mu            sync.Mutex
	arrived       sync.Cond // signals next: a group may be due, or closed was set
	waiting       []*group  // oldest first; requests join the last
	bytes         int       // size of the requests in flight
	inFlight      int       // requests that were accepted and are not finished
	recentCallers int       // the highest recent inFlight; it decays with each group
	closed        bool
	failed        error // a commit failed: nothing more is accepted, as nobody knows what is on disk
}

// request is what one call of Record or Resolve wants to write: marks, or a link.
type request struct {
	marks []store.Mark
	link  *link
}

// link links all identifiers of an identity to its muid.
type link struct {
	merchant codec.MerchantKey
	identity store.Identity
}

// group is some requests that are written together.
type group struct {
	requests []request
	began    time.Time // when the first request joined
	marks    int
	bytes    int
	done     chan struct{} // closed when err and the outcomes of all marks are set
	err      error
}

// errCommit is the error of a failed commit, which may or may not be on disk.
var errCommit = errors.New("commit failed")

const (
	// A group is full when it would exceed one of these with the next request. A single request may exceed them.
	groupMarks = 2000
	groupBytes = 1 << 20

	// Requests are refused immediately while the queue would exceed maxQueueBytes, or while several groups wait and the
	// oldest of them has waited for maxQueueTime. maxQueueBytes is enough for dozens of the largest requests, whose
	// bodies are in memory anyway.
	maxQueueBytes = 32 << 20
	maxQueueTime  = time.Second

	markOverhead = 200 // bytes of keys and lengths for each mark

	// maxGatherTime bounds how long a group waits for expected requests. A sync costs the same for one event as for a
	// hundred. Without this wait, smaller groups at half of the highest load would need as many syncs as the highest load.
	maxGatherTime = 2 * time.Millisecond
)

func newQueue(admit func(size int) error) *queue {
	q := &queue{admit: admit}
	q.arrived.L = &q.mu
	return q
}

// submit queues a request, and returns when it is on disk or has failed. Once the request is queued, ctx no longer
// counts: the committer reads the caller's memory until the group is done.
func (q *queue) submit(ctx context.Context, r request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n, size := len(r.marks), 0
	for i := range r.marks {
		size += len(r.marks[i].Raw) + identityBytes(&r.marks[i].Identity)
	}
	if r.link != nil {
		n, size = 1, identityBytes(&r.link.identity)
	}
	g, err := q.join(r, n, size)
	if err != nil {
		return err
	}
	<-g.done
	return g.err
}

// identityBytes is the size of a mark without its body. The muid counts for the event and for each link.
func identityBytes(id *store.Identity) int {
	return markOverhead + len(id.MUID)*(1+len(id.Keys()))
}

// join adds a request to the newest group, or begins a new group.
func (q *queue) join(r request, marks, size int) (*group, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return nil, store.Unavailable("shutting down")
	case q.failed != nil:
		return nil, store.Unavailable("a write failed")
	case q.bytes+size > maxQueueBytes, len(q.waiting) > 1 && time.Since(q.waiting[0].began) > maxQueueTime:
		return nil, store.Unavailable("too many events are waiting")
	}
	if err := q.admit(size); err != nil {
		return nil, err
	}
	n := len(q.waiting)
	if n == 0 || q.waiting[n-1].marks+marks > groupMarks || q.waiting[n-1].bytes+size > groupBytes {
		q.waiting = append(q.waiting, &group{
			requests: make([]request, 0, min(q.recentCallers+1, groupMarks)),
			began:    time.Now(),
			done:     make(chan struct{}),
		})
		n++
		q.arrived.Signal()
	}
	g := q.waiting[n-1]
	g.requests = append(g.requests, r)
	g.marks += marks
	g.bytes += size
	q.bytes += size
	q.inFlight++
	q.recentCallers = max(q.recentCallers, q.inFlight)
	if len(g.requests) == q.expected() {
		q.arrived.Signal()
	}
	return g, nil
}

// expected is how many requests a group gathers: three quarters of the recent callers. Waiting for the last quarter
// costs more than it saves.
func (q *queue) expected() int { return q.recentCallers * 3 / 4 }

// gatherTime is how much longer the oldest group may wait for requests. The group is due when that is not positive.
func (q *queue) gatherTime() time.Duration {
	g := q.waiting[0]
	if q.closed || len(q.waiting) > 1 || g.marks >= groupMarks || len(g.requests) >= q.expected() {
		return 0
	}
	return maxGatherTime - time.Since(g.began)
}

// next waits until a group is due, and takes it. It returns nil when the queue is closed and empty. It sets the timer,
// whose function must be recheck.
func (q *queue) next(timer *time.Timer) *group {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if len(q.waiting) > 0 {
			left := q.gatherTime()
			if left <= 0 {
				return q.take()
			}
			timer.Reset(left)
		} else if q.closed {
			return nil
		}
		q.arrived.Wait()
	}
}

// recheck wakes next. It takes the lock, so that the signal cannot come between next's check and its wait.
func (q *queue) recheck() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived.Signal()
}

// take removes the oldest group.
func (q *queue) take() *group {
	g := q.waiting[0]
	q.waiting = q.waiting[1:]
	q.recentCallers -= (q.recentCallers + 15) / 16 // rounded up, so that it reaches zero
	return g
}

// finish removes a group's requests from those in flight, and wakes their callers, which return g.err.
func (q *queue) finish(g *group) {
	q.mu.Lock()
	q.bytes -= g.bytes
	q.inFlight -= len(g.requests)
	if errors.Is(g.err, errCommit) {
		q.failed = g.err
	}
	q.mu.Unlock()
	close(g.done)
}

// close makes the queue refuse new requests.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.arrived.Signal()
}

// failure returns the error of a failed commit, or nil.
func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed
}

// accepting returns nil while requests are accepted, else the reason why not.
func (q *queue) accepting() error {
	q.mu.Lock()
	closed, failed := q.closed, q.failed
	q.mu.Unlock()
	switch {
	case closed:
		return store.Unavailable("shutting down")
	case failed != nil:
		return fmt.Errorf("a write failed: %w", failed)
	}
	return q.admit(0)
}
