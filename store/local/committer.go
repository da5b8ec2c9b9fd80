package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// The committer turns what waits into one synced Badger transaction per group, or several for a large one. While a
// group is on its way to disk the next one gathers. One goroutine resolves, links and deduplicates, so these need
// no locks and have one order.
type committer struct {
	db    *badger.DB
	log   *badgerLog // tells of the failures that the database goes on after
	clock *clock
	index *index
	ready func() error // why nothing can be taken now, or nil

	mu       sync.Mutex
	arrived  sync.Cond // a group may be due, or closed changed
	waiting  []*group  // oldest first; requests join the last
	bytes    int       // in waiting
	inFlight int       // requests that wait or are being committed
	callers  int       // what inFlight came to lately, falling from group to group
	closed   bool
	failed   error // a commit's error: what is on disk is not known, so nothing is taken any more

	committed uint64 // seq of the last chunk on disk; guarded by mu

	done   chan struct{} // closed when the goroutine has ended
	arenas arenas
}

// request is one call that waits for the disk.
type request struct {
	marks []store.Mark
	link  *link // of a Resolve call; then there are no marks
}

type link struct {
	merchant merchantKey
	identity store.Identity
}

// group is what is written together.
type group struct {
	requests []request
	began    time.Time // when its first request came
	marks    int
	bytes    int
	done     chan struct{} // closed when err is set and the outcomes are
	err      error
}

// errCommit is the error of a transaction of which it is not known whether it is on disk.
var errCommit = errors.New("commit failed")

const (
	// A group is closed when it would have more than one of these; a single request may be larger.
	groupMarks = 2000
	groupBytes = 1 << 20

	// maxWaiting, in bytes, and maxWait bound what an accepted request waits for: past one of them, callers are
	// told to come back at once. The bytes leave room for dozens of the largest requests that may be sent, whose
	// bodies are in memory in any case; the time is that of the oldest of several groups that are waiting.
	maxWaiting = 32 << 20
	maxWait    = time.Second

	markOverhead = 200 // bytes of keys and lengths

	// patience bounds how long a group waits for those callers to come back who had requests in flight lately. To sync
	// costs the same for one event as for a hundred: without waiting, half of the load that the engine can take would
	// cost as much as all of it.
	patience = 2 * time.Millisecond
)

func newCommitter(db *badger.DB, log *badgerLog, clock *clock, x *index, ready func() error) *committer {
	c := &committer{
		db:        db,
		log:       log,
		clock:     clock,
		index:     x,
		ready:     ready,
		committed: x.covered,
		done:      make(chan struct{}),
		arenas:    make(arenas, indexQueue+2),
	}
	c.arrived.L = &c.mu
	go c.run()
	return c
}

// submit queues a request and returns when it is on disk or failed.
func (c *committer) submit(ctx context.Context, r request) error {
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
	g, err := c.join(r, n, size)
	if err != nil {
		return err
	}
	<-g.done
	return g.err
}

// identityBytes is what a mark takes beside its body: its muid stands in the event and in each link.
func identityBytes(id *store.Identity) int {
	return markOverhead + len(id.MUID)*(1+len(id.Keys()))
}

func (c *committer) join(r request, marks, size int) (*group, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, store.Unavailable("shutting down")
	case c.failed != nil:
		return nil, store.Unavailable("a write failed")
	case c.bytes+size > maxWaiting, len(c.waiting) > 1 && time.Since(c.waiting[0].began) > maxWait:
		return nil, store.Unavailable("too many events are waiting")
	}
	if err := c.ready(); err != nil {
		return nil, err
	}
	n := len(c.waiting)
	if n == 0 || c.waiting[n-1].marks+marks > groupMarks || c.waiting[n-1].bytes+size > groupBytes {
		c.waiting = append(c.waiting, &group{
			requests: make([]request, 0, min(c.callers+1, groupMarks)),
			began:    time.Now(),
			done:     make(chan struct{}),
		})
		n++
		c.arrived.Signal()
	}
	g := c.waiting[n-1]
	g.requests = append(g.requests, r)
	g.marks += marks
	g.bytes += size
	c.bytes += size
	c.inFlight++
	c.callers = max(c.callers, c.inFlight)
	if len(g.requests) == c.enough() {
		c.arrived.Signal()
	}
	return g, nil
}

// enough is for how many requests a group waits: three quarters of the callers, as more of them would be slow to come.
func (c *committer) enough() int { return c.callers * 3 / 4 }

// wait is how long the oldest group may wait yet; nothing or less when it is due.
func (c *committer) wait() time.Duration {
	g := c.waiting[0]
	if c.closed || len(c.waiting) > 1 || g.marks >= groupMarks || len(g.requests) >= c.enough() {
		return 0
	}
	return patience - time.Since(g.began)
}

// next waits for a group that is due. It returns nil when no more will come.
func (c *committer) next(wake *time.Timer) *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if len(c.waiting) > 0 {
			wait := c.wait()
			if wait <= 0 {
				return c.take()
			}
			wake.Reset(wait)
		} else if c.closed {
			return nil
		}
		c.arrived.Wait()
	}
}

// take takes the oldest group.
func (c *committer) take() *group {
	g := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.callers -= (c.callers + 15) / 16 // rounded up, so that it falls to zero
	return g
}

// settle lets go of a group that was committed, or was not; last is the seq of its last chunk on disk.
func (c *committer) settle(g *group, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes -= g.bytes
	c.inFlight -= len(g.requests)
	c.committed = max(c.committed, last)
	if errors.Is(g.err, errCommit) {
		c.failed = g.err
	}
}

func (c *committer) run() {
	defer close(c.done)
	wake := time.AfterFunc(patience, func() {
		c.mu.Lock() // else it could come between wait and Wait, and be lost
		defer c.mu.Unlock()
		c.arrived.Signal()
	})
	defer wake.Stop()
	for g := c.next(wake); g != nil; g = c.next(wake) {
		var last uint64
		if _, g.err = c.state(); g.err == nil {
			last, g.err = c.commit(g)
		}
		c.settle(g, last)
		close(g.done)
	}
}

// close takes no more requests, finishes those that wait and ends.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.arrived.Signal()
	<-c.done
}

// state returns the seq of the last chunk on disk, and the error of a failed commit.
func (c *committer) state() (committed uint64, failed error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.committed, c.failed
}

// commit writes a group, in one transaction or as many as it takes, and hands its chunks to the index. It returns
// the seq of the last chunk on disk.
func (c *committer) commit(g *group) (last uint64, err error) {
	w := c.begin()
	defer func() { w.txn.Discard() }()
	makeRoom := func() error {
		if !w.isFull() {
			return nil
		}
		if err := c.end(w, &last); err != nil {
			return err
		}
		w = c.begin()
		return nil
	}
	for _, r := range g.requests {
		if r.link != nil {
			if err := makeRoom(); err != nil {
				return last, err
			}
			if err := w.link(r.link.merchant, &r.link.identity); err != nil {
				return last, err
			}
		}
		for i := range r.marks {
			if err := makeRoom(); err != nil {
				return last, err
			}
			if err := w.mark(&r.marks[i]); err != nil {
				return last, err
			}
		}
	}
	err = c.end(w, &last)
	return last, err
}

func (c *committer) begin() *groupWriter {
	return &groupWriter{
		txn:      c.db.NewTransactionAt(math.MaxUint64, true),
		clock:    c.clock,
		arena:    c.arenas.get(),
		now:      c.clock.now(),
		maxCount: int(c.db.MaxBatchCount() / 2),
		maxBytes: int(c.db.MaxBatchSize() / 2),
	}
}

// end commits a transaction, and sets last to the seq of its last chunk, if it has one.
func (c *committer) end(w *groupWriter, last *uint64) error {
	if err := w.closeChunk(); err != nil {
		return err
	}
	err := w.txn.CommitAt(c.clock.next(), nil)
	if err == nil {
		err = c.log.failure() // a value log that could not be synced is no error to Badger
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	release := func() { c.arenas.put(w.arena) }
	if len(w.chunks) == 0 {
		release()
		return nil
	}
	*last = w.chunks[len(w.chunks)-1].seq
	c.index.push(appendix{w.chunks, release})
	return nil
}
