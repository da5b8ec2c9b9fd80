package journal

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/group"
	"mtagd/store/local/codec"
)

// HandOver gets the events of each transaction once it is on disk, in the order of receipt; last is the number of their
// last chunk. The events are valid until HandOver calls release, which it may do after it has returned. All calls come
// from one goroutine, and while a call blocks, nothing is committed.
type HandOver func(events []codec.Event, last uint64, release func())

// committer writes groups, one after the other. Only its goroutine writes marks to Badger. So marks need no locks, and each
// sees what all earlier marks have linked and remembered. Only forget writes beside it, and takes turns with it.
type committer struct {
	db         *badger.DB
	log        *badgerLog // notices failures that Badger only logs
	disk       *diskWatch
	clock      *clock
	queue      *group.Queue
	committed  atomic.Uint64       // number of the last chunk on disk
	version    atomic.Uint64       // of the last commit on disk
	tap        atomic.Pointer[tap] // nil: nobody wants to know what is committed
	handOver   HandOver
	suppressed func(m store.MerchantID, id *store.Identity, muid store.MUID) bool // nil: nobody is
	arenas     arenas
	metrics    *group.Metrics
	oldDedupe  bool          // see transaction
	indexed    atomic.Bool   // see transaction
	done       chan struct{} // closed when the goroutine has ended

	writing sync.Mutex // held while a group is written, or chunks are deleted
}

// startCommitter starts a committer; last is the number of the last chunk on disk.
func startCommitter(db *badger.DB, log *badgerLog, disk *diskWatch, clock *clock, q *group.Queue, last uint64, handOver HandOver,
	suppressed func(store.MerchantID, *store.Identity, store.MUID) bool) *committer {
	c := &committer{
		db:         db,
		log:        log,
		disk:       disk,
		clock:      clock,
		queue:      q,
		handOver:   handOver,
		suppressed: suppressed,
		arenas:     make(arenas, keptArenas),
		metrics:    group.NewMetrics(),
		oldDedupe:  hasOldDedupe(db),
		done:       make(chan struct{}),
	}
	c.committed.Store(last)
	c.version.Store(db.MaxVersion())
	go c.run()
	return c
}

// hasOldDedupe reports whether there are keys of prefixOldDedupe. Expired ones count until Badger drops them: skipping
// them could take a minute.
func hasOldDedupe(db *badger.DB) bool {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixOldDedupe}, AllVersions: true})
	defer it.Close()
	it.Rewind()
	return it.Valid()
}

func (c *committer) run() {
	defer close(c.done)
	timer := time.AfterFunc(group.MaxGatherTime, c.queue.Recheck)
	defer timer.Stop()
	for c.queue.Next(timer) {
		err := c.queue.Failure()
		if err == nil {
			err = c.disk.roomForCommit()
		}
		if err == nil {
			err = catchFault(c.writeGroup)
		}
		for err != nil && len(c.queue.Take()) > 0 { // the rest of the group fails too
		}
		c.disk.finish(c.queue.Finish(err))
	}
}

func (c *committer) writeGroup() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.write()
}

// write commits a group, in one transaction or more.
func (c *committer) write() error {
	t := c.begin()
	defer func() { t.txn.Discard() }()
	makeRoom := func() error {
		if !t.isFull() {
			return nil
		}
		if err := c.commit(t); err != nil {
			return err
		}
		t = c.begin()
		return nil
	}
	marks := 0
	for parts := c.queue.Take(); len(parts) > 0; parts = c.queue.Take() {
		for _, p := range parts {
			marks += p.To - p.From
			if p.Link != nil {
				if c.suppressed != nil && c.suppressed(codec.MerchantKey(p.Merchant).ID(), p.Link, p.Link.MUID) {
					continue // nothing is kept of the person
				}
				if err := makeRoom(); err != nil {
					return err
				}
				if err := t.link(codec.MerchantKey(p.Merchant), p.Link); err != nil {
					return err
				}
				continue
			}
			for i := p.From; i < p.To; i++ {
				if err := makeRoom(); err != nil {
					return err
				}
				if err := t.record(&p.Marks[i]); err != nil {
					return err
				}
			}
		}
	}
	c.metrics.Grouped(marks)
	return c.commit(t)
}

func (c *committer) begin() *transaction {
	return &transaction{
		txn:        c.db.NewTransactionAt(math.MaxUint64, true),
		clock:      c.clock,
		arena:      c.arenas.get(),
		now:        c.clock.now(),
		oldDedupe:  c.oldDedupe,
		indexed:    c.indexed.Load(),
		suppressed: c.suppressed,
		maxCount:   int(c.db.MaxBatchCount() / 2),
		maxBytes:   int(c.db.MaxBatchSize() / 2),
		tap:        c.tap.Load(),
	}
}

// commit commits a transaction, and hands its events over when it is on disk.
func (c *committer) commit(t *transaction) error {
	if err := t.closeChunk(); err != nil {
		return err
	}
	began := time.Now()
	version := c.clock.next()
	err := t.txn.CommitAt(version, nil)
	if err == nil {
		err = c.log.failure() // Badger returns no error when it cannot sync a value log
	}
	if err != nil {
		return fmt.Errorf("%w: %w", group.ErrCommit, err)
	}
	c.metrics.Committed(began, t.count > 0)
	c.remember(t, version)
	release := func() { c.arenas.put(t.arena) }
	if len(t.arena.events) == 0 {
		release()
		return nil
	}
	c.committed.Store(t.seq)
	c.handOver(t.arena.events, t.seq, release)
	return nil
}

// remember notes that a commit is on disk. It goes to the tap before its version is published: what has the version can rely
// on the tap.
func (c *committer) remember(t *transaction, version uint64) {
	if tap := c.tap.Load(); tap != nil && tap == t.tap {
		tap.add(c.version.Load(), version, t.entries)
	} else if tap != nil {
		tap.restart(version)
	}
	c.version.Store(version)
}
