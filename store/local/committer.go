package local

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// The committer turns what waits into one synced Badger transaction per group. While a group is on its way to
// disk the next one gathers; nothing lingers for company. One goroutine resolves, links
// and deduplicates, so these need no locks and have one order.
type committer struct {
	db    *badger.DB
	clock *clock
	index *index
	ready func() error // why nothing can be taken now, or nil

	mu      sync.Mutex
	arrived sync.Cond // waiting or closed changed
	waiting []*group  // oldest first; requests join the last
	bytes   int       // in waiting
	closed  bool
	failed  error // a commit's error: what is on disk is not known, so nothing is taken any more

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

// group is what one transaction holds.
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
	// A group's marks make up to five entries each. Both bounds keep a transaction below half of
	// what Badger takes (MaxBatchCount, MaxBatchSize).
	groupMarks = 2000
	groupBytes = 1 << 20

	// maxWaiting, in bytes, and maxWait bound what an accepted request waits for: past one of them, callers are
	// told to come back at once. The bytes leave room for dozens of the largest requests that may be sent, whose
	// bodies are in memory in any case; the time is that of the oldest of several groups that are waiting.
	maxWaiting = 32 << 20
	maxWait    = time.Second

	markOverhead = 200 // bytes of keys and lengths
)

func newCommitter(db *badger.DB, clock *clock, x *index, ready func() error) *committer {
	c := &committer{db: db, clock: clock, index: x, ready: ready, done: make(chan struct{}), committed: x.covered, arenas: make(arenas, indexQueue+2)}
	c.arrived.L = &c.mu
	go c.run()
	return c
}

// submit queues a request and returns when it is on disk or failed.
func (c *committer) submit(r request) error {
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
		c.waiting = append(c.waiting, &group{began: time.Now(), done: make(chan struct{})})
		n++
		c.arrived.Signal()
	}
	g := c.waiting[n-1]
	g.requests = append(g.requests, r)
	g.marks += marks
	g.bytes += size
	c.bytes += size
	return g, nil
}

func (c *committer) run() {
	defer close(c.done)
	for {
		c.mu.Lock()
		for len(c.waiting) == 0 && !c.closed {
			c.arrived.Wait()
		}
		if len(c.waiting) == 0 {
			c.mu.Unlock()
			return
		}
		g := c.waiting[0]
		c.waiting = c.waiting[1:]
		failed := c.failed
		c.mu.Unlock()

		var last uint64
		if g.err = failed; g.err == nil {
			last, g.err = c.commit(g)
		}
		c.mu.Lock()
		c.bytes -= g.bytes
		c.committed = max(c.committed, last)
		if errors.Is(g.err, errCommit) {
			c.failed = g.err
		}
		c.mu.Unlock()
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

// commit writes a group and hands its chunks to the index. It returns the seq of the group's last chunk.
func (c *committer) commit(g *group) (last uint64, err error) {
	w := groupWriter{
		txn:   c.db.NewTransactionAt(math.MaxUint64, true),
		clock: c.clock,
		arena: c.arenas.get(),
		now:   c.clock.now(),
	}
	defer w.txn.Discard()
	for _, r := range g.requests {
		if r.link != nil {
			if err := w.link(r.link.merchant, &r.link.identity); err != nil {
				return 0, err
			}
		}
		for i := range r.marks {
			if err := w.mark(&r.marks[i]); err != nil {
				return 0, err
			}
		}
	}
	if err := w.closeChunk(); err != nil {
		return 0, err
	}
	if err := w.txn.CommitAt(c.clock.next(), nil); err != nil {
		return 0, fmt.Errorf("%w: %w", errCommit, err)
	}
	release := func() { c.arenas.put(w.arena) }
	if len(w.chunks) == 0 {
		release()
		return 0, nil
	}
	last = w.chunks[len(w.chunks)-1].seq
	c.index.push(appendix{w.chunks, release})
	return last, nil
}
