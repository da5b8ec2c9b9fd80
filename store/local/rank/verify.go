package rank

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// OpenReadOnly opens an existing index for Verify, ScanEvents and Covered. Other methods must not be called, except Close.
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
	if err := boltfile.Check(x.db); err != nil {
		c.Wrong(codec.MerchantKey{}, err)
	}
	merchants, err := x.StoredMerchants()
	if err != nil {
		c.Wrong(codec.MerchantKey{}, err)
	}
	if v.total, err = x.countEvents(func(error) {}); err != nil { // verifying the merchant finds the damage again
		c.Wrong(codec.MerchantKey{}, err)
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
	x   *Index
	ctx context.Context

	done, total uint64 // entries
}

// merchant verifies a merchant's tree and segments.
func (v *verifier) merchant(m codec.MerchantKey) error {
	if err := v.tree(m); err != nil {
		return err
	}
	segments, err := v.segments(m)
	if err != nil {
		return err
	}
	for _, s := range segments {
		wrong := boltfile.CatchDamage("index.db", func() error { return v.segment(m, s) })
		if err := v.ctx.Err(); err != nil {
			return err
		}
		if wrong == nil {
			continue
		}
		now, err := v.segments(m)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(now, func(n *segment) bool { return n.id == s.id }) { // otherwise a compaction has deleted it meanwhile
			v.Wrong(m, fmt.Errorf("segment %d of merchant %s: %w", s.id, m.ID(), wrong))
		}
	}
	return nil
}

// tree verifies a merchant's stored tree.
func (v *verifier) tree(m codec.MerchantKey) error {
	known := 0 // series
	err := v.x.scan(v.ctx, m, func(e *entry, series []string) {
		if len(series) != known {
			known = len(series)
			v.Tags(m, series)
		}
		v.Event(m, e.Key, series[e.series])
		if v.done++; v.done%4096 == 0 {
			v.Read(min(v.done, v.total), v.total)
		}
	})
	v.Read(min(v.done, v.total), v.total)
	return err
}

// segments returns a merchant's segments. Segments and tree must have the same number of events of each overflow series,
// because both change in the same transaction.
func (v *verifier) segments(m codec.MerchantKey) (all []*segment, err error) {
	err = view(v.x.db, func(tx *bolt.Tx) error {
		t, err := loadTree(tx, m)
		if err != nil {
			return err
		}
		stored, err := loadSegments(tx, m)
		if err != nil {
			return err
		}
		all = stored.segments
		n := map[uint32]uint64{}
		for _, s := range all {
			n[s.tag] += uint64(s.n - s.removed)
		}
		for _, c := range t.root.counts {
			if int(c.series) >= len(t.series) {
				return fmt.Errorf("index.db: %w: an unknown series in the root record of merchant %s", codec.ErrCorrupt, m.ID())
			}
			if _, name := codec.SplitSeries(t.series[c.series]); name == "" {
				n[c.series] -= c.n
			}
		}
		for _, difference := range n {
			if difference != 0 {
				return fmt.Errorf("index.db: %w: the segments of merchant %s have other events than its tree", codec.ErrCorrupt, m.ID())
			}
		}
		return nil
	})
	return all, err
}

// segment verifies a segment. The blocks of names determine all other blocks: they are computed again and compared.
func (v *verifier) segment(m codec.MerchantKey, s *segment) error {
	stored := &compactedBlocks{v.ctx, v.x.db, m, s.id}
	names := newSegmentReader(s, stored)
	var prev named
	removed := 0
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
			if names.isRemoved(e) {
				removed++
			}
		}
		v.Read(min(v.done, v.total), v.total)
	}
	if removed != s.removed {
		return fmt.Errorf("index.db: %w: %d events are removed, not %d", codec.ErrCorrupt, removed, s.removed)
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
