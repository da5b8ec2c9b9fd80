package rank

import (
	"cmp"
	"context"
	"errors"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Every commit with events of overflow series makes new segments in memory, and every merge makes new stored ones. They
// are compacted: small segments are merged into larger ones, so that a query reads few. In memory, the applying goroutine
// does this. Stored segments are compacted by a goroutine of its own, in many small transactions, so that a merge does not
// wait for it.

// How many events a segment may have. Compacting takes 12 bytes of memory for each of them.
const (
	maxMemorySegment = 1 << 15
	maxStoredSegment = 1 << 22
)

// compactionDue returns the segments that should be merged next; none when there are few enough. Queries without a tag
// read one group of segments, and queries with a tag another. In each group, a segment is to be larger than all smaller
// ones together. So the number of segments grows with the logarithm of the number of events, and each event is written
// again about as often.
func compactionDue(segments []*segment, limit int) []*segment {
	groups := map[uint32][]*segment{}
	for _, s := range segments {
		group := uint32(0)
		if !s.all {
			group = s.tag
		}
		groups[group] = append(groups[group], s)
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b *segment) int { return cmp.Compare(a.n, b.n) })
		n, sum := 1, group[0].n
		for n < len(group) && group[n].n <= sum && sum+group[n].n <= limit {
			sum += group[n].n
			n++
		}
		if n > 1 {
			return group[:n]
		}
	}
	return nil
}

// mergedSegment returns the segment that is the result of merging these.
func mergedSegment(from []*segment) *segment {
	merged := &segment{tag: from[0].tag, all: from[0].all}
	for _, s := range from {
		merged.n += s.n
		if s.tag != merged.tag {
			merged.tag = 0
		}
	}
	return merged
}

// replaceSegments returns the segments after some have been merged, and those of them that are not used any more.
func replaceSegments(segments, from []*segment, merged *segment) (kept, unused []*segment) {
	for _, s := range segments {
		replaced := slices.ContainsFunc(from, func(f *segment) bool { return f == s || s.id != 0 && f.id == s.id })
		switch {
		case !replaced:
			kept = append(kept, s)
		case s.tag != merged.tag: // queries with its tag still need it
			only := *s
			only.all = false
			kept = append(kept, &only)
		default:
			unused = append(unused, s)
		}
	}
	return append(kept, merged), unused
}

// addToMemory adds events of overflow series to a merchant's segments in memory. It returns the new segments, and does not
// change the old ones, as they may be read meanwhile.
func addToMemory(segments []*segment, events []named) ([]*segment, error) {
	segments = slices.Clone(segments)
	add := func(tag uint32, all bool, events []named) error {
		var b memoryBlocks
		err := buildSegment(events, b.put)
		segments = append(segments, &segment{n: len(events), tag: tag, all: all, blocks: b})
		return err
	}
	byTag := map[uint32][]named{}
	for _, e := range events {
		byTag[e.series] = append(byTag[e.series], e)
	}
	for tag, events := range byTag {
		if err := add(tag, len(byTag) == 1, events); err != nil {
			return nil, err
		}
	}
	if len(byTag) > 1 {
		if err := add(0, true, events); err != nil {
			return nil, err
		}
	}
	for {
		from := compactionDue(segments, maxMemorySegment)
		if from == nil {
			return segments, nil
		}
		var b memoryBlocks
		if err := mergeSegments(memoryReaders(from), b.put); err != nil {
			return nil, err
		}
		merged := mergedSegment(from)
		merged.blocks = b
		segments, _ = replaceSegments(segments, from, merged)
	}
}

func memoryReaders(segments []*segment) (readers []*segmentReader) {
	for _, s := range segments {
		readers = append(readers, newSegmentReader(s, s.blocks))
	}
	return readers
}

// storedGroups splits segments in memory into groups. Each is to become one stored segment.
func storedGroups(segments []*segment) (groups [][]*segment) {
	var all []*segment
	byTag := map[uint32][]*segment{}
	for _, s := range segments {
		if s.all {
			all = append(all, s)
		}
		if s.tag != 0 {
			byTag[s.tag] = append(byTag[s.tag], s)
		}
	}
	if all != nil {
		groups = append(groups, all)
	}
	if len(byTag) > 1 {
		for _, group := range byTag {
			groups = append(groups, group)
		}
	}
	return groups
}

// addSegments writes new stored segments with the events of those in memory. They are unused until useSegments.
func (w *merger) addSegments(m codec.MerchantKey, memory []*segment) (added []*segment, err error) {
	for i, group := range storedGroups(memory) {
		s := mergedSegment(group)
		s.all = i == 0
		if s.id, err = w.newSegment(m, byMerge); err != nil {
			return nil, err
		}
		if err := mergeSegments(memoryReaders(group), w.putBlock(m, s.id)); err != nil {
			return nil, err
		}
		added = append(added, s)
	}
	return added, nil
}

// newSegment returns the id of a new segment, and marks the segment as unused.
func (w *merger) newSegment(m codec.MerchantKey, by byte) (id uint64, err error) {
	r, err := loadSegments(w.tx, m)
	if err != nil {
		return 0, err
	}
	id = r.nextID
	r.nextID++
	return id, errors.Join(storeSegments(w.tx, m, r), markUnused(w.tx, m, id, by))
}

// putBlock returns a function that stores the blocks of a segment.
func (w *merger) putBlock(m codec.MerchantKey, id uint64) putBlock {
	return func(kind uint8, i int, b []byte) error {
		if err := w.blocks.Put(blockKey(m, id, kind, i), codec.Seal(append(make([]byte, 0, len(b)+4), b...))); err != nil {
			return err
		}
		return w.spend(blockEntries)
	}
}

// useSegments adds segments that addSegments has written to those that are used.
func (w *merger) useSegments(m codec.MerchantKey, added []*segment) error {
	if added == nil {
		return nil
	}
	r, err := loadSegments(w.tx, m)
	if err != nil {
		return err
	}
	for _, s := range added {
		r.segments = append(r.segments, s)
		if err := w.tx.Bucket(bucketUnused).Delete(segmentKey(m, s.id)); err != nil {
			return err
		}
	}
	return storeSegments(w.tx, m, r)
}

// sweepSegments deletes the unused segments that a merge, or a compaction, has marked.
func (w *merger) sweepSegments(by byte) error {
	for _, segment := range unusedSegments(w.tx, by) {
		if err := w.deleteFrom(func() *bolt.Bucket { return w.blocks }, segment, segment, blockEntries); err != nil {
			return err
		}
		if err := w.tx.Bucket(bucketUnused).Delete(segment); err != nil {
			return err
		}
	}
	return nil
}

// compactor compacts stored segments in the background.
type compactor struct {
	x      *Index
	budget int           // of each transaction, in entries
	wake   chan struct{} // gets a value after each merge
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	failed map[codec.MerchantKey]bool
}

func newCompactor(x *Index) *compactor {
	return &compactor{
		x: x, budget: compactionBudget, wake: make(chan struct{}, 1), cancel: func() {}, done: make(chan struct{}), failed: map[codec.MerchantKey]bool{},
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
		c.x.log.Error("the segments of the index cannot be compacted", "error", err)
	}
	for _, m := range merchants {
		for more := true; more && !c.failed[m] && ctx.Err() == nil; {
			err := boltfile.CatchDamage("index.db", func() (err error) {
				more, err = c.compact(ctx, m)
				return err
			})
			if err != nil && ctx.Err() == nil {
				c.x.log.Error("the segments of a merchant in the index cannot be compacted", "error", err)
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
		if err := c.x.db.View(func(tx *bolt.Tx) error {
			unused = unusedSegments(tx, byCompaction)
			return nil
		}); err != nil || unused == nil {
			return err
		}
		w := newMerger(c.x.db, c.x.commit)
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
	err = c.x.read(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketSegments).ForEach(func(k, _ []byte) error {
			all = append(all, codec.MerchantKey(k))
			return nil
		})
	})
	return all, err
}

// compact merges segments of a merchant once. It returns false when no compaction is due.
func (c *compactor) compact(ctx context.Context, m codec.MerchantKey) (more bool, err error) {
	var from []*segment
	if err := c.x.db.View(func(tx *bolt.Tx) error {
		r, err := loadSegments(tx, m)
		if err == nil {
			from = compactionDue(r.segments, maxStoredSegment)
		}
		return err
	}); err != nil || from == nil {
		return false, err
	}
	w := newMerger(c.x.db, c.x.commit)
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
