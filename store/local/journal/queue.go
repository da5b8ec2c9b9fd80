package journal

import (
	"context"
	"errors"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// queue gathers requests into groups. One group gathers while the committer writes another. Requests join the newest
// group until it is full, and then begin a new one.
type queue struct {
	ready func() error // why nothing can be accepted now, or nil

	mu            sync.Mutex
	arrived       sync.Cond // a group may be due, or closed changed
	waiting       []*group  // oldest first; requests join the last
	bytes         int       // of accepted requests that are not finished
	inFlight      int       // requests that were accepted and are not finished
	recentCallers int       // the highest recent inFlight; it decays with each group
	closed        bool
	failed        error // the error of a commit; nothing is accepted after one, as the state of the disk is not known
}

// request is one call of Record or Resolve.
type request struct {
	marks []store.Mark
	link  *link // of a Resolve call; then there are no marks
}

type link struct {
	merchant codec.MerchantKey
	identity store.Identity
}

// group is the requests that are written together.
type group struct {
	requests []request
	began    time.Time // when its first request came
	marks    int
	bytes    int
	done     chan struct{} // closed when err and the outcomes of all marks are set
	err      error
}

// errCommit is the error of a failed commit, which may or may not be on disk.
var errCommit = errors.New("commit failed")

const (
	// A group is full when one more request would exceed one of these. A single request may exceed them.
	groupMarks = 2000
	groupBytes = 1 << 20

	// Past one of these bounds, requests are refused immediately. maxQueueBytes leaves room for dozens of the largest
	// requests; their bodies are in memory in any case. maxQueueTime is how long the oldest of several groups has
	// waited.
	maxQueueBytes = 32 << 20
	maxQueueTime  = time.Second

	markOverhead = 200 // bytes of keys and lengths

	// maxGatherTime bounds how long a group gathers while requests are still expected. A sync costs the same for one
	// event as for a hundred: without gathering, half of the highest load would cost as much as all of it.
	maxGatherTime = 2 * time.Millisecond
)

func newQueue(ready func() error) *queue {
	q := &queue{ready: ready}
	q.arrived.L = &q.mu
	return q
}

// submit queues a request and returns when it is on disk or failed. Once the request is queued, ctx no longer counts:
// the committer reads the caller's memory until the group is done.
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

// identityBytes is the size of a mark without its body: the muid is stored in the event and in each link.
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
	if err := q.ready(); err != nil {
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

// gatherTime is how much longer the oldest group gathers; it is due when that is not positive.
func (q *queue) gatherTime() time.Duration {
	g := q.waiting[0]
	if q.closed || len(q.waiting) > 1 || g.marks >= groupMarks || len(g.requests) >= q.expected() {
		return 0
	}
	return maxGatherTime - time.Since(g.began)
}

// next waits until a group is due, and takes it. It returns nil when the queue is closed and empty. The timer calls
// recheck.
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

// recheck wakes next. It takes the lock, so that the signal cannot come just before next begins to wait.
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

// finish ends a group with g.err, and wakes its callers.
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

// close refuses further requests.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.arrived.Signal()
}

// failure returns the error of a failed commit.
func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed
}
