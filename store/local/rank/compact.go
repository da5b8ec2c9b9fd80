package rank

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/space"
)

// compactor compacts stored segments in the background.
type compactor struct {
	db     *bolt.DB // index.db
	log    *slog.Logger
	space  func() (int64, error) // how many bytes compactions may take of the disk
	commit func(*bolt.Tx) error  // (*bolt.Tx).Commit, except in tests
	budget int                   // of each transaction, in entries
	wake   chan struct{}         // gets a value after each merge
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	failed map[codec.MerchantKey]bool

	onDamage func(error) // of Index.OnDamage

	writing     sync.Mutex           // held by whoever writes new segments, or deletes those marked as byCompaction
	compactions prometheus.Histogram // seconds
}

// maxEventSize is how many bytes of the disk a segment may take for each event: about 30 with short names, and up to 110
// with names of the greatest length that have nothing in common.
const maxEventSize = 2 * store.MaxEventNameLength

// newCompactor returns a compactor that leaves reserve bytes of the disk free.
func newCompactor(db *bolt.DB, reserve int64, log *slog.Logger) *compactor {
	return &compactor{
		db: db, log: log,
		space: func() (int64, error) {
			free, err := space.Free(filepath.Dir(db.Path()))
			return free - reserve, err
		},
		commit: (*bolt.Tx).Commit, budget: compactionBudget,
		wake: make(chan struct{}, 1), cancel: func() {}, done: make(chan struct{}), failed: map[codec.MerchantKey]bool{},
		compactions: newDuration("mtagd_index_compaction_duration_seconds",
			"Time that a compaction takes to merge the segments in index.db of a merchant with many event names."),
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
	merchants, err := merchantsIn(c.db, bucketSegments)
	c.report(ctx, "the index cannot be compacted", errors.Join(c.sweep(ctx), err))
	for _, m := range merchants {
		for more := true; more && !c.failed[m] && ctx.Err() == nil; {
			if more, err = c.compact(ctx, m); err != nil {
				c.report(ctx, "the segments of a merchant in the index cannot be compacted", err)
				c.failed[m] = errors.Is(err, codec.ErrCorrupt)
			}
		}
	}
}

// report logs an error, unless stop caused it, and reports damage of the file.
func (c *compactor) report(ctx context.Context, what string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	c.log.Error(what, "error", err)
	if errors.Is(err, codec.ErrCorrupt) && c.onDamage != nil {
		c.onDamage(err)
	}
}

// sweep calls sweepLocked with the lock for writing segments.
func (c *compactor) sweep(ctx context.Context) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.sweepLocked(ctx)
}

// sweepLocked deletes segments that compactions and removals have replaced, and the remains of interrupted ones.
func (c *compactor) sweepLocked(ctx context.Context) error {
	var segments [][]byte
	var subtrees []freedSubtree
	if err := view(c.db, func(tx *bolt.Tx) (err error) {
		segments = unusedSegments(tx, byCompaction)
		subtrees, err = loadFreed(tx)
		return err
	}); err != nil || len(segments)+len(subtrees) == 0 {
		return err
	}
	return c.update(ctx, func(w *merger) error {
		for _, f := range subtrees {
			if err := w.deleteSubtree(f.m, f.id, f.height); err != nil {
				return err
			}
			if err := w.tx.Bucket(bucketFreed).Delete(nodeKey(f.m, f.id)); err != nil {
				return err
			}
		}
		return w.sweepSegments(byCompaction)
	})
}

// update begins a transaction, calls do, and commits.
func (c *compactor) update(ctx context.Context, do func(w *merger) error) error {
	w := newMerger(c.db, c.commit)
	w.ctx, w.budget = ctx, c.budget
	return w.run(func() error { return do(w) })
}

// compact merges segments of a merchant once. It returns false when no compaction is due.
//
// Segments never change, so it reads them and builds the new one outside of write transactions: merges wait only while
// blocks are written.
func (c *compactor) compact(ctx context.Context, m codec.MerchantKey) (more bool, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	from, err := c.due(m)
	if err != nil || from == nil {
		return false, err
	}
	began := time.Now()
	merged, err := c.write(ctx, m, from, nil)
	if err != nil {
		return false, err
	}
	if err := c.update(ctx, func(w *merger) error { return w.useCompacted(m, from, merged) }); err != nil {
		return false, err
	}
	c.compactions.Observe(time.Since(began).Seconds())
	return true, c.sweepLocked(ctx)
}

// write merges stored segments into a new one, which is unused until useCompacted. It leaves out the removed events, and
// those with the keys in without.
func (c *compactor) write(ctx context.Context, m codec.MerchantKey, from []*segment, without map[Key]bool) (*segment, error) {
	merged := mergedSegment(from)
	if err := c.update(ctx, func(w *merger) (err error) {
		merged.id, err = w.newSegment(m, byCompaction)
		return err
	}); err != nil {
		return nil, err
	}
	var readers []*segmentReader
	for _, s := range from {
		r := newSegmentReader(s, &compactedBlocks{ctx, c.db, m, s.id})
		r.without = without
		readers = append(readers, r)
	}
	out := blockBuffer{compactor: c, ctx: ctx, m: m, id: merged.id}
	var err error
	if merged.n, err = mergeSegments(readers, out.put); err != nil {
		return nil, err
	}
	return merged, out.flush()
}

// due returns the segments of a merchant to merge next; none when no compaction is due. When there is little space on the
// disk, only small segments are merged, or none: queries then read more of them.
func (c *compactor) due(m codec.MerchantKey) (from []*segment, err error) {
	available, err := c.space()
	if err != nil {
		return nil, err
	}
	limit := int(min(maxStoredSegment, available/maxEventSize))
	err = view(c.db, func(tx *bolt.Tx) error {
		r, err := loadSegments(tx, m)
		if err == nil {
			from = compactionDue(r.segments, limit)
		}
		return err
	})
	return from, err
}

// useCompacted puts a new segment in the place of those it was merged from, and marks these as unused. When events have been
// removed from one of them meanwhile, the new segment stays unused.
func (w *merger) useCompacted(m codec.MerchantKey, from []*segment, merged *segment) error {
	r, err := loadSegments(w.tx, m) // again, as a merge may have added some
	if err != nil {
		return err
	}
	for _, f := range from {
		if !slices.ContainsFunc(r.segments, func(s *segment) bool { return s.id == f.id && s.removed == f.removed }) {
			return nil
		}
	}
	r.segments = replaceSegments(r.segments, from, merged)
	if merged.n == 0 { // all its events are removed
		r.segments = r.segments[:len(r.segments)-1]
	}
	for _, s := range from {
		if err := markUnused(w.tx, m, s.id, byCompaction); err != nil {
			return err
		}
	}
	return errors.Join(w.tx.Bucket(bucketUnused).Delete(segmentKey(m, merged.id)), storeSegments(w.tx, m, r))
}

// compactedBlocks are the blocks of a stored segment that is being compacted. Each is a copy, from a short transaction of
// its own: a long one would keep bbolt from reusing pages, and make a merge wait whose file has to grow.
type compactedBlocks struct {
	ctx context.Context
	db  *bolt.DB
	m   codec.MerchantKey
	id  uint64
}

func (c *compactedBlocks) block(kind uint8, i int) (b []byte, err error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	err = view(c.db, func(tx *bolt.Tx) error {
		stored, err := loadBlock(tx.Bucket(bucketBlocks).Cursor(), c.m, c.id, kind, i)
		b = bytes.Clone(stored)
		return err
	})
	return b, err
}

// blockBuffer keeps blocks of a segment that is being written, and writes them in transactions of the compactor's budget.
type blockBuffer struct {
	*compactor
	ctx    context.Context
	m      codec.MerchantKey
	id     uint64
	blocks []builtBlock
}

type builtBlock struct {
	kind uint8
	i    int
	b    []byte
}

func (f *blockBuffer) put(kind uint8, i int, b []byte) error {
	f.blocks = append(f.blocks, builtBlock{kind, i, bytes.Clone(b)})
	if len(f.blocks)*blockEntries < f.budget {
		return nil
	}
	return f.flush()
}

// flush writes the blocks in the buffer.
func (f *blockBuffer) flush() error {
	err := f.update(f.ctx, func(w *merger) error {
		for _, b := range f.blocks {
			if err := storeBlock(w.blocks, f.m, f.id, b.kind, b.i, b.b); err != nil {
				return err
			}
		}
		return nil
	})
	f.blocks = f.blocks[:0]
	return err
}
