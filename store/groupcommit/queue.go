// Package groupcommit makes groups of what many callers want to have on disk, so that they share a commit. Each engine has
// one queue, and one goroutine that writes a group after the other:
//
//	for q.Next(timer) {
//		err := write(all parts that q.Take returns)
//		q.Finish(err)
//	}
//
//	recorder.go Record and Resolve of an engine
//	queue.go    gathers requests for a group; refuses when too much waits
//	turns.go    composes groups: merchants take turns
//	metrics.go  counts and measures commits
package groupcommit

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// Queue keeps requests until the committer writes them. While it writes one group, requests wait for the next. The
// merchants take turns in each group (turns.go).
type Queue struct {
	admit   func(size int) error // returns why size more bytes cannot be accepted now, or nil; it may wait for the disk
	release func(size int)       // takes admit back
	spare   sync.Pool            // *request, done

	mu            sync.Mutex // no I/O while it is held: Ready and the metrics need it also while the disk hangs
	arrived       sync.Cond  // signals Next: a group may be due, or closed was set
	turns         turns
	inFlight      int       // small requests that were accepted and are not finished
	recentCallers int       // the highest recent inFlight; it decays with each group
	firstArrival  time.Time // of the waiting requests that arrived since the current group began, or a little earlier
	closed        bool
	paused        error // why nothing is accepted now; nil: requests are accepted
}

// isSmall reports whether sharing a sync pays for a request. A group does not wait for larger ones: they may be long in
// coming.
func (r *request) isSmall() bool { return r.length() < takeMarks }

const (
	markOverhead = 200 // bytes of keys and lengths for each mark

	// MaxGatherTime bounds how long a group waits for expected requests. A sync costs the same for one event as for a
	// hundred. Without this wait, smaller groups at half of the highest load would need as many syncs as the highest load.
	MaxGatherTime = 2 * time.Millisecond
)

// New returns an empty queue. admit and release are called for each request: see the fields.
func New(admit func(size int) error, release func(size int)) *Queue {
	q := &Queue{admit: admit, release: release, turns: newTurns()}
	q.spare.New = func() any { return &request{done: make(chan error, 1)} }
	q.arrived.L = &q.mu
	return q
}

// Record queues the marks of a merchant, and returns when they are on disk or have failed. Once they are queued, ctx no
// longer counts: the committer reads the caller's memory. Marks of several merchants take the turns of one of them.
func (q *Queue) Record(ctx context.Context, m uuid.UUID, marks []store.Mark) error {
	size := 0
	for i := range marks {
		size += len(marks[i].Raw) + marks[i].Details.Bytes() + identityBytes(&marks[i].Identity)
	}
	return q.submit(ctx, request{Merchant: m, Marks: marks, size: size})
}

// Link does for a link what Record does for marks.
func (q *Queue) Link(ctx context.Context, m uuid.UUID, id *store.Identity) error {
	return q.submit(ctx, request{Merchant: m, Link: id, size: identityBytes(id)})
}

// identityBytes is the size of a mark without its body. The muid counts for the event and for each link.
func identityBytes(id *store.Identity) int {
	return markOverhead + len(id.MUID)*(1+len(id.Keys()))
}

func (q *Queue) submit(ctx context.Context, wanted request) error {
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
func (q *Queue) join(r *request) error {
	if err := q.admit(r.size); err != nil {
		return err
	}
	err := q.add(r)
	if err != nil {
		q.release(r.size)
	}
	return err
}

func (q *Queue) add(r *request) error {
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
	if n := q.turns.requests; n == 1 || n == q.expected() || q.turns.marks >= MaxMarks {
		q.arrived.Signal()
	}
	return nil
}

// state returns nil while requests are accepted, else the reason why not. The queue's lock is held.
func (q *Queue) state() error {
	if q.closed {
		return store.Unavailable("shutting down")
	}
	return q.paused
}

// expected is how many requests a group gathers: of the recent callers, the last quarter costs more than it saves.
func (q *Queue) expected() int { return q.recentCallers * 3 / 4 }

// gatherTime is how much longer the next group may wait for requests. The group is due when that is not positive.
func (q *Queue) gatherTime() time.Duration {
	if q.closed || q.turns.leftOver || q.turns.marks >= MaxMarks || q.turns.requests >= q.expected() {
		return 0
	}
	return MaxGatherTime - time.Since(q.firstArrival)
}

// Next waits until a group is due, and begins it; false: the queue is closed and empty. The timer's function must be
// Recheck.
func (q *Queue) Next(timer *time.Timer) bool {
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

// Recheck wakes Next. It takes the lock, so that the signal cannot come between Next's check and its wait.
func (q *Queue) Recheck() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived.Signal()
}

// Take gives some merchants their turns in the current group, and returns the parts of requests that they have added.
// When it returns none, the group is complete. The committer calls it again after each few hundred marks, so a merchant
// whose request arrives while the group is built may still have a turn in it.
func (q *Queue) Take() []Part {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns.take()
}

// Finish ends the current group. The complete requests return err, the small ones first. It returns their size.
func (q *Queue) Finish(err error) (size int) {
	q.mu.Lock()
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
	var large []Part
	woken := false
	for _, p := range group {
		if !p.isSmall() {
			large = append(large, p)
		} else if p.last {
			p.done <- p.err
			woken = true
		}
	}
	if woken && large != nil {
		runtime.Gosched() // else they stand behind large requests, and behind the committer, which builds the next group
	}
	for _, p := range large {
		if p.last {
			p.done <- p.err
		}
	}
	return size
}

// Close makes the queue refuse new requests.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.arrived.Signal()
}

// Pause makes the queue refuse new requests with an error, until it is called with nil. Those that were accepted before
// may still be under way: they are when Length is not zero.
func (q *Queue) Pause(refuse error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused = refuse
}

// Length returns how many requests wait, and the size of those that wait or are being written.
func (q *Queue) Length() (requests, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns.requests, q.turns.bytes + q.turns.reserved
}

// Accepting returns nil while requests are accepted, else the reason why not.
func (q *Queue) Accepting() error {
	q.mu.Lock()
	err := q.state()
	q.mu.Unlock()
	if err != nil {
		return err
	}
	return q.admit(0)
}
