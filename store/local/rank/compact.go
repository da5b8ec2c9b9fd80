package rank

import (
	"context"
	"errors"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// compactor compacts stored segments in the background.
type compactor struct {
	db     *bolt.DB // index.db
	log    *slog.Logger
	commit func(*bolt.Tx) error // (*bolt.Tx).Commit, except in tests
	budget int                  // of each transaction, in entries
	wake   chan struct{}        // gets a value after each merge
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	failed map[codec.MerchantKey]bool
}

func newCompactor(db *bolt.DB, log *slog.Logger) *compactor {
	return &compactor{
		db: db, log: log, commit: (*bolt.Tx).Commit, budget: compactionBudget,
		wake: make(chan struct{}, 1), cancel: func() {}, done: make(chan struct{}), failed: map[codec.MerchantKey]bool{},
	}
}

func (c *compactor) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.notify()
	go func() {
		defer close(c.done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
				c.compactAll(ctx)
			}
		}
	}()
}

// stop ends the running compaction. The next start deletes what it has written.
func (c *compactor) stop() {
	c.cancel()
	<-c.done
}

// notify makes the goroutine look for segments to compact.
func (c *compactor) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// compactAll compacts the segments of all merchants until none is due. After an error it leaves the merchant as it is:
// queries are then slower, but right. It tries again after the next merge, unless the merchant's segments are damaged.
func (c *compactor) compactAll(ctx context.Context) {
	err := c.sweep(ctx)
	merchants, err2 := c.merchants()
	if err = errors.Join(err, err2); err != nil && ctx.Err() == nil {
		c.log.Error("the segments of the index cannot be compacted", "error", err)
	}
	for _, m := range merchants {
		for more := true; more && !c.failed[m] && ctx.Err() == nil; {
			err := boltfile.CatchDamage("index.db", func() (err error) {
				more, err = c.compact(ctx, m)
				return err
			})
			if err != nil && ctx.Err() == nil {
				c.log.Error("the segments of a merchant in the index cannot be compacted", "error", err)
				c.failed[m] = errors.Is(err, codec.ErrCorrupt)
				break
			}
		}
	}
}

// sweep deletes the segments that compactions have replaced, and what is left of compactions that were cut off.
func (c *compactor) sweep(ctx context.Context) error {
	return boltfile.CatchDamage("index.db", func() error {
		var unused [][]byte
		if err := c.db.View(func(tx *bolt.Tx) error {
			unused = unusedSegments(tx, byCompaction)
			return nil
		}); err != nil || unused == nil {
			return err
		}
		w := newMerger(c.db, c.commit)
		w.ctx, w.budget = ctx, c.budget
		if err := w.begin(); err != nil {
			return err
		}
		defer func() { _ = w.tx.Rollback() }() // fails only when the transaction has ended already
		if err := w.sweepSegments(byCompaction); err != nil {
			return err
		}
		return w.commit(w.tx)
	})
}

// merchants returns the merchants that have stored segments.
func (c *compactor) merchants() (all []codec.MerchantKey, err error) {
	err = boltfile.CatchDamage("index.db", func() error {
		return c.db.View(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketSegments).ForEach(func(k, _ []byte) error {
				all = append(all, codec.MerchantKey(k))
				return nil
			})
		})
	})
	return all, err
}

// compact merges segments of a merchant once. It returns false when no compaction is due.
func (c *compactor) compact(ctx context.Context, m codec.MerchantKey) (more bool, err error) {
	var from []*segment
	if err := c.db.View(func(tx *bolt.Tx) error {
		r, err := loadSegments(tx, m)
		if err == nil {
			from = compactionDue(r.segments, maxStoredSegment)
		}
		return err
	}); err != nil || from == nil {
		return false, err
	}
	w := newMerger(c.db, c.commit)
	w.ctx, w.budget = ctx, c.budget
	if err := w.begin(); err != nil {
		return false, err
	}
	defer func() { _ = w.tx.Rollback() }() // fails only when the transaction has ended already
	merged := mergedSegment(from)
	if merged.id, err = w.newSegment(m, byCompaction); err != nil {
		return false, err
	}
	var readers []*segmentReader
	for _, s := range from {
		readers = append(readers, newSegmentReader(s, &compactedBlocks{w, m, s.id}))
	}
	if err := mergeSegments(readers, w.putBlock(m, merged.id)); err != nil {
		return false, err
	}
	r, err := loadSegments(w.tx, m) // again, as a merge may have added some
	if err != nil {
		return false, err
	}
	var unused []*segment
	r.segments, unused = replaceSegments(r.segments, from, merged)
	for _, s := range unused {
		if err := markUnused(w.tx, m, s.id, byCompaction); err != nil {
			return false, err
		}
	}
	if err := errors.Join(w.tx.Bucket(bucketUnused).Delete(segmentKey(m, merged.id)), storeSegments(w.tx, m, r)); err != nil {
		return false, err
	}
	if err := w.commit(w.tx); err != nil {
		return false, err
	}
	return true, c.sweep(ctx)
}

// compactedBlocks are the blocks of a stored segment that is being compacted. A block is valid until the next one is
// written.
type compactedBlocks struct {
	w  *merger
	m  codec.MerchantKey
	id uint64
}

func (c *compactedBlocks) block(kind uint8, i int) ([]byte, error) {
	return loadBlock(c.w.blocks, c.m, c.id, kind, i)
}
