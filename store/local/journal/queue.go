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

// queue keeps requests until the committer writes them. While it writes one group, requests wait for the next. The
// merchants take turns in each group (turns.go).
type queue struct {
	admit   func(size int) error // returns why size more bytes cannot be accepted now, or nil; it may wait for the disk
	release func(size int)       // takes admit back
	spare   sync.Pool            // *request, done

	mu            sync.Mutex // no I/O while it is held: Ready and the metrics need it also while the disk hangs
	arrived       sync.Cond  // signals next: a group may be due, or closed was set
	turns         turns
	inFlight      int       // small requests that were accepted and are not finished
	recentCallers int       // the highest recent inFlight; it decays with each group
	firstArrival  time.Time // of the waiting requests that arrived since the current group began, or a little earlier
	closed        bool
	failed        error // a commit failed: nothing more is accepted, as nobody knows what is on disk
}

// isSmall reports whether a request is so small that sharing a sync pays. A group does not wait for larger ones: they may
// be long in coming.
func (r *request) isSmall() bool { return r.length() < takeMarks }

// errCommit is the error of a failed commit, which may or may not be on disk.
var errCommit = errors.New("commit failed")

const (
	markOverhead = 200 // bytes of keys and lengths for each mark

	// maxGatherTime bounds how long a group waits for expected requests. A sync costs the same for one event as for a
	// hundred. Without this wait, smaller groups at half of the highest load would need as many syncs as the highest load.
	maxGatherTime = 2 * time.Millisecond
)

func newQueue(admit func(size int) error, release func(size int)) *queue {
	q := &queue{admit: admit, release: release, turns: newTurns()}
	q.spare.New = func() any { return &request{done: make(chan error, 1)} }
	q.arrived.L = &q.mu
	return q
}

// record queues the marks of a merchant, and returns when they are on disk or have failed. Once they are queued, ctx no
// longer counts: the committer reads the caller's memory until it is done. When a call has marks of several merchants,
// they take the turns of one of them.
func (q *queue) record(ctx context.Context, m codec.MerchantKey, marks []store.Mark) error {
	size := 0
	for i := range marks {
		size += len(marks[i].Raw) + identityBytes(&marks[i].Identity)
	}
	return q.submit(ctx, request{merchant: m, marks: marks, size: size})
}

// link does for a link what record does for marks.
func (q *queue) link(ctx context.Context, m codec.MerchantKey, id *store.Identity) error {
	return q.submit(ctx, request{merchant: m, link: id, size: identityBytes(id)})
}

// identityBytes is the size of a mark without its body. The muid counts for the event and for each link.
func identityBytes(id *store.Identity) int {
	return markOverhead + len(id.MUID)*(1+len(id.Keys()))
}

func (q *queue) submit(ctx context.Context, wanted request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := q.spare.Get().(*request)
	done := r.done
	*r = wanted
	r.done = done
	err := q.join(r)
	if err == nil {
		err = <-done
	}
	*r = request{done: done} // without the caller's memory
	q.spare.Put(r)
	return err
}

// join adds a request to those that wait, or refuses it.
func (q *queue) join(r *request) error {
	if err := q.admit(r.size); err != nil {
		return err
	}
	err := q.add(r)
	if err != nil {
		q.release(r.size)
	}
	return err
}

func (q *queue) add(r *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.state(); err != nil {
		return err
	}
	if !q.turns.hasRoom(r) {
		return store.Unavailable("too many events are waiting")
	}
	if q.turns.add(r) {
		q.firstArrival = time.Now()
	}
	r.arrived = q.firstArrival
	if r.isSmall() {
		q.inFlight++
		q.recentCallers = max(q.recentCallers, q.inFlight)
	}
	if n := q.turns.requests; n == 1 || n == q.expected() || q.turns.marks >= groupMarks {
		q.arrived.Signal()
	}
	return nil
}

// state returns nil while requests are accepted, else the reason why not. The queue's lock is held.
func (q *queue) state() error {
	switch {
	case q.closed:
		return store.Unavailable("shutting down")
	case q.failed != nil:
		return fmt.Errorf("%w: %w", store.Unavailable("a write failed"), q.failed)
	}
	return nil
}

// expected is how many requests a group gathers: three quarters of the recent callers of small requests. Waiting for the
// last quarter costs more than it saves.
func (q *queue) expected() int { return q.recentCallers * 3 / 4 }

// gatherTime is how much longer the next group may wait for requests. The group is due when that is not positive.
func (q *queue) gatherTime() time.Duration {
	if q.closed || q.turns.leftOver || q.turns.marks >= groupMarks || q.turns.requests >= q.expected() {
		return 0
	}
	return maxGatherTime - time.Since(q.firstArrival)
}

// next waits until a group is due, and begins it. It returns false when the queue is closed and empty. It sets the timer,
// whose function must be recheck.
func (q *queue) next(timer *time.Timer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.turns.requests > 0 {
			left := q.gatherTime()
			if left <= 0 {
				q.turns.begin()
				q.recentCallers -= (q.recentCallers + 15) / 16 // rounded up, so that it reaches zero
				return true
			}
			timer.Reset(left)
		} else if q.closed {
			return false
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

// take gives some merchants their turns in the current group, and returns the parts of requests that they have added.
// When it returns none, the group is complete. The committer calls it again after each few hundred marks, so a merchant
// whose request arrives while the group is built may still have a turn in it.
func (q *queue) take() []part {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns.take()
}

// finish ends the current group. The callers whose requests are complete return err. It returns the size of these
// requests.
func (q *queue) finish(err error) (size int) {
	q.mu.Lock()
	if errors.Is(err, errCommit) {
		q.failed = err
	}
	group := q.turns.finish(err)
	for _, p := range group {
		if !p.last {
			continue
		}
		size += p.size
		if p.isSmall() {
			q.inFlight--
		}
	}
	q.mu.Unlock()
	for _, p := range group {
		if p.last {
			p.done <- p.err
		}
	}
	return size
}

// close makes the queue refuse new requests.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.arrived.Signal()
}

// fail makes the queue refuse new requests, after a failed commit.
func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.failed = err
}

// failure returns the error of a failed commit, or nil.
func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failed
}

// length returns how many requests wait, and the size of those that wait or are being written.
func (q *queue) length() (requests, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns.requests, q.turns.bytes + q.turns.reserved
}

// accepting returns nil while requests are accepted, else the reason why not.
func (q *queue) accepting() error {
	q.mu.Lock()
	err := q.state()
	q.mu.Unlock()
	if err != nil {
		return err
	}
	return q.admit(0)
}
