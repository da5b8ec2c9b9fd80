package rank

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Check is what Verify reports to. One goroutine makes all calls, and no transaction is open meanwhile.
type Check struct {
	Wrong func(m codec.MerchantKey, err error)            // m is zero when it concerns the whole file
	Event func(m codec.MerchantKey, k Key, series string) // each event in the stored trees; series as it is counted
	Tags  func(m codec.MerchantKey, series []string)      // the series of each merchant's stored tree
	Read  func(done, total uint64)                        // after each short read
}

// OpenReadOnly opens an existing index for Verify, ScanEvents and Covered. Other methods must not be called, except
// CloseReadOnly.
func OpenReadOnly(path string) (*Index, error) {
	db, err := boltfile.OpenReadOnly(path, format, buckets...)
	if err != nil {
		return nil, err
	}
	x := &Index{db: db}
	if x.covered, err = x.StoredUpTo(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return x, nil
}

// CloseReadOnly closes an index that OpenReadOnly has opened.
func (x *Index) CloseReadOnly() error { return x.db.Close() }

// StoredUpTo returns the number of a chunk: the stored trees have the events of all chunks up to it.
func (x *Index) StoredUpTo() (covered uint64, err error) {
	err = view(x.db, func(tx *bolt.Tx) (err error) {
		covered, err = loadCovered(tx)
		return err
	})
	return covered, err
}

// Verify checks what is stored: pages, records, the order and the counts of the trees, and the segments. Events are applied
// and merged meanwhile; the stored trees that it sees have at least the events up to StoredUpTo before the call. It returns an
// error only when ctx ends.
func (x *Index) Verify(ctx context.Context, c Check) error {
	v := verifier{x: x, ctx: ctx, Check: c}
	v.upTo, _ = x.StoredUpTo() // the error is that of the file's pages or of its meta bucket, which are checked now
	if err := boltfile.Check(x.db); err != nil {
		c.Wrong(codec.MerchantKey{}, err)
	}
	merchants, err := x.StoredMerchants()
	if err != nil {
		c.Wrong(codec.MerchantKey{}, err)
	}
	for _, m := range merchants {
		if err := view(x.db, func(tx *bolt.Tx) error {
			t, err := loadTree(tx, m)
			if err == nil {
				v.total += t.root.counts.of(nil)
			}
			return nil // verifyTree reports it
		}); err != nil {
			c.Wrong(m, err)
		}
	}
	for _, m := range merchants {
		if err := v.merchant(m); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.Wrong(m, err)
		}
	}
	return ctx.Err()
}

// ScanEvents calls use with the events in a merchant's stored tree, in the order of their keys; series is as it is counted.
// An event that is stored or removed meanwhile may be among them or not.
func (x *Index) ScanEvents(ctx context.Context, m codec.MerchantKey, use func(k Key, series string)) error {
	return x.scan(ctx, m, func(e *entry, series []string) { use(e.Key, series[e.series]) })
}

// verifier verifies one merchant after the other.
type verifier struct {
	Check
	x    *Index
	ctx  context.Context
	upTo uint64 // only events of chunks up to this seq are compared: a merge may add later ones at any time

	done, total uint64 // entries
}

var overflowSeed = maphash.MakeSeed()

// overflowSum is what all segments with some events, and the tree with the same events, have in common.
type overflowSum struct{ n, hash uint64 }

func (s overflowSum) with(k Key) overflowSum {
	return overflowSum{s.n + 1, s.hash + maphash.Comparable(overflowSeed, k)}
}

// merchant verifies a merchant's tree and segments.
func (v *verifier) merchant(m codec.MerchantKey) error {
	tree := map[uint32]overflowSum{}
	if err := v.tree(m, tree); err != nil {
		return err
	}
	same, err := v.segments(m, tree)
	if err != nil || same {
		return err
	}
	// A removal may be the reason. So compare again while there is none.
	v.x.removing.Lock()
	defer v.x.removing.Unlock()
	clear(tree)
	if err := v.x.scan(v.ctx, m, func(e *entry, series []string) { v.count(tree, series, e) }); err != nil {
		return err
	}
	if same, err = v.segments(m, tree); err != nil || same {
		return err
	}
	return fmt.Errorf("index.db: %w: the segments of merchant %s have other events than its tree", codec.ErrCorrupt, m.ID())
}

// count adds an event of a stored tree to the sum of its series, if that is an overflow series.
func (v *verifier) count(sums map[uint32]overflowSum, series []string, e *entry) {
	if e.Seq > v.upTo {
		return
	}
	if _, name := codec.SplitSeries(series[e.series]); name == "" {
		sums[e.series] = sums[e.series].with(e.Key)
	}
}

// tree verifies a merchant's stored tree. It adds the events of overflow series to sums, by series.
func (v *verifier) tree(m codec.MerchantKey, sums map[uint32]overflowSum) error {
	if err := view(v.x.db, func(tx *bolt.Tx) error {
		_, err := loadReplaced(tx, m)
		return err
	}); err != nil {
		return err
	}
	known := 0 // series
	err := v.x.scan(v.ctx, m, func(e *entry, series []string) {
		if len(series) != known {
			known = len(series)
			v.Tags(m, series)
		}
		v.Event(m, e.Key, series[e.series])
		v.count(sums, series, e)
		if v.done++; v.done%4096 == 0 {
			v.Read(min(v.done, v.total), v.total)
		}
	})
	v.Read(min(v.done, v.total), v.total)
	return err
}

// segments verifies a merchant's segments. It reports whether they have the events of overflow series that the tree has, or
// have damage that it has reported.
func (v *verifier) segments(m codec.MerchantKey, tree map[uint32]overflowSum) (same bool, err error) {
	for range maxRetries {
		stored, err := v.loadSegments(m)
		if err != nil {
			return false, err
		}
		sums, wrong := v.readSegments(m, stored.segments)
		if err := v.ctx.Err(); err != nil {
			return false, err
		}
		now, err := v.loadSegments(m)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(stored.segments, func(s *segment) bool {
			return !slices.ContainsFunc(now.segments, func(n *segment) bool { return n.id == s.id && n.removed == s.removed })
		}) {
			continue // a compaction has deleted a segment meanwhile
		}
		for _, err := range wrong {
			v.Wrong(m, err)
		}
		return len(wrong) > 0 || maps.Equal(sums, tree), nil
	}
	return true, nil // the next verification compares them
}

// maxRetries is how often segments are read again after a compaction.
const maxRetries = 5

// readSegments verifies each segment by itself. It returns the sums of their events by overflow series.
func (v *verifier) readSegments(m codec.MerchantKey, segments []*segment) (sums map[uint32]overflowSum, wrong []error) {
	sums = map[uint32]overflowSum{}
	for _, s := range segments {
		if err := boltfile.CatchDamage("index.db", func() error {
			return v.segment(m, s, func(e *named) {
				if e.Seq <= v.upTo {
					sums[s.tag] = sums[s.tag].with(e.Key)
				}
			})
		}); err != nil {
			wrong = append(wrong, fmt.Errorf("segment %d of merchant %s: %w", s.id, m.ID(), err))
		}
	}
	return sums, wrong
}

func (v *verifier) loadSegments(m codec.MerchantKey) (r *storedSegments, err error) {
	err = view(v.x.db, func(tx *bolt.Tx) (err error) {
		r, err = loadSegments(tx, m)
		return err
	})
	return r, err
}

// segment verifies a segment, and calls use with its events that are not removed. All its blocks follow from its names: it is
// written again, and each block compared.
func (v *verifier) segment(m codec.MerchantKey, s *segment, use func(e *named)) error {
	stored := &compactedBlocks{v.ctx, v.x.db, m, s.id}
	names := newSegmentReader(s, stored)
	var prev named
	for at := range (s.n + namesPerBlock - 1) / namesPerBlock {
		block, err := names.names(at)
		if err != nil {
			return err
		}
		for i := range block {
			e := &block[i]
			if (at > 0 || i > 0) && prev.compare(e) >= 0 || s.tag != mixedTags && e.series != s.tag {
				return fmt.Errorf("index.db: %w: names in a wrong order, or of another tag", codec.ErrCorrupt)
			}
			prev = *e
			if !names.isRemoved(e) {
				use(e)
			}
		}
		v.Read(min(v.done, v.total), v.total)
	}
	whole := *s
	whole.removed = 0 // the blocks still have the removed events
	n, err := mergeSegments([]*segmentReader{newSegmentReader(&whole, stored)}, func(kind uint8, i int, b []byte) error {
		is, err := stored.block(kind, i)
		if err == nil && !bytes.Equal(is, b) {
			err = fmt.Errorf("index.db: %w: block %d of kind %d does not fit the names", codec.ErrCorrupt, i, kind)
		}
		v.Read(min(v.done, v.total), v.total)
		return err
	})
	if err == nil && n != s.n {
		err = fmt.Errorf("index.db: %w: %d events, not %d", codec.ErrCorrupt, n, s.n)
	}
	return err
}
