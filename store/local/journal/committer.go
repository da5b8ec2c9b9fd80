package journal

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// HandOver gets the events of each transaction once it is on disk, in the order of receipt; last is the number of their
// last chunk. The events are valid until HandOver calls release, which it may do after it has returned. All calls come
// from one goroutine, and while a call blocks, nothing is committed.
type HandOver func(events []codec.Event, last uint64, release func())

// committer writes groups, one after the other. Only its goroutine records marks. So marks need no locks, and each sees what
// all earlier marks have linked and remembered. Changes of the background take turns with it (edit).
type committer struct {
	j         *Journal
	clock     *clock
	queue     *groupcommit.Queue
	committed atomic.Uint64         // number of the last chunk on disk
	version   atomic.Uint64         // of the last commit on disk
	failed    atomic.Pointer[error] // the last commit has failed
	handOver  HandOver
	arenas    *sync.Pool // of *arena
	metrics   *groupcommit.Metrics
	done      chan struct{} // closed when the goroutine has ended

	writing sync.Mutex // held while a record is written
}

func (c *committer) run() {
	defer close(c.done)
	timer := time.AfterFunc(groupcommit.MaxGatherTime, c.queue.Recheck)
	defer timer.Stop()
	for c.queue.Next(timer) {
		err := c.writeGroup()
		for err != nil && len(c.queue.Take()) > 0 { // the rest of the group fails too
		}
		c.j.disk.finish(c.queue.Finish(err))
	}
}

// writeGroup commits a group, in one transaction or more.
func (c *committer) writeGroup() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	t := c.begin()
	begun := false // a part of the group is on disk
	commit := func() error {
		err := c.commit(t)
		if err != nil && begun {
			return errors.New(err.Error()) // without its kind, which says that nothing was recorded
		}
		begun = true
		return err
	}
	marks := 0
	for parts := c.queue.Take(); len(parts) > 0; parts = c.queue.Take() {
		for _, p := range parts {
			marks += p.To - p.From
			for i := p.From; i < p.To; i++ {
				if t.isFull() {
					if err := commit(); err != nil {
						return err
					}
					t = c.begin()
				}
				if err := t.addPart(p, i); err != nil { // what it needs cannot be read; others go on
					if i > 0 { // KindUnavailable would promise that nothing was recorded
						err = fmt.Errorf("%w: %v", store.Uncertain("a part of the events may be recorded"), err)
					}
					p.Fail(err)
					break
				}
			}
		}
	}
	c.metrics.Grouped(marks)
	return commit()
}

func (c *committer) begin() *transaction {
	a := c.arenas.Get().(*arena)
	return &transaction{
		keys:      c.j.keys,
		clock:     c.clock,
		version:   c.clock.next(),
		arena:     a,
		record:    a.record,
		now:       c.clock.now(),
		refuses:   c.j.opt.Refuses,
		expiresAt: uint64(time.Now().Add(dedupeTTL).Unix()),
	}
}

// commit writes a transaction to the log, and hands its events over when it is on disk. KindUnavailable: nothing was
// written. After another error nobody knows until the next commit.
func (c *committer) commit(t *transaction) error {
	t.closeChunk()
	t.arena.record = t.record
	release := func() { t.arena.release(c.arenas) }
	began := time.Now()
	if len(t.record) == 0 {
		c.metrics.Committed(began, false)
		release()
		return nil
	}
	at, err := c.j.log.Append(t.record)
	if err != nil {
		c.j.keys.end(false)
		release()
		c.failed.Store(&err)
		if !errors.Is(err, log.ErrUncertain) {
			err = fmt.Errorf("%w: %w", store.Unavailable("the event cannot be stored now"), err)
		}
		return err
	}
	c.failed.Store(nil)
	c.metrics.Committed(began, true)
	if len(t.written) > 0 {
		held, record := new(heldRecord), bytes.Clone(t.record)
		held.Store(&record)
		for i := range t.written {
			t.written[i].at, t.written[i].record = at, held
		}
	}
	c.j.chunks.add(t.written)
	c.j.keys.end(true)
	c.version.Store(t.version)
	if len(t.arena.events) == 0 {
		release()
		return nil
	}
	c.committed.Store(t.seq)
	c.handOver(t.arena.events, t.seq, release)
	return nil
}

// edit commits a change between two groups of marks.
func (c *committer) edit(change func(t *transaction) error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	t := c.begin()
	if err := change(t); err != nil {
		c.j.keys.end(false)
		t.arena.release(c.arenas)
		return err
	}
	return c.commit(t)
}

// clock numbers chunks and commits. A number is the time in µs since 1970, or the last number plus one when that is
// greater. Only the committer's goroutine uses the clock.
type clock struct {
	now  func() time.Time
	last uint64
}

// next returns a number greater than every earlier one.
func (c *clock) next() uint64 {
	now := uint64(max(0, c.now().UnixMicro()))
	c.last = max(c.last+1, now)
	return c.last
}
