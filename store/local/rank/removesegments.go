package rank

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// rewrite writes new segments for those of a merchant's segments that have some of the events, without these events. It
// returns a function that replaces the old segments. The caller holds compactor.writing.
func (c *compactor) rewrite(ctx context.Context, m codec.MerchantKey, without map[Key]bool) (use []func(w *merger) error, err error) {
	var stored *storedSegments
	if err := view(c.db, func(tx *bolt.Tx) (err error) {
		stored, err = loadSegments(tx, m)
		return err
	}); err != nil {
		return nil, err
	}
	for _, s := range stored.segments {
		has, err := newSegmentReader(s, &compactedBlocks{ctx, c.db, m, s.id}).mayHave(without)
		if err != nil {
			return nil, err
		}
		if !has {
			continue
		}
		rewritten, err := c.write(ctx, m, []*segment{s}, without)
		if err != nil {
			return nil, err
		}
		use = append(use, func(w *merger) error { return w.useCompacted(m, []*segment{s}, rewritten) })
	}
	return use, nil
}

// mayHave reports whether the segment has some of these events. It may be wrong when it returns true: looking for many events
// would take longer than writing the segment again.
func (s *segmentReader) mayHave(events map[Key]bool) (bool, error) {
	if len(events) > s.n/namesPerBlock {
		return true, nil
	}
	for k := range events {
		from, to, err := s.window(k.Time, k.Time+1)
		if err != nil {
			return false, err
		}
		if to-from > smallWindow {
			return true, nil
		}
		ranks, err := s.ranks(from, to)
		if err != nil {
			return false, err
		}
		for _, rank := range ranks {
			e, err := s.event(int(rank))
			if err != nil || e.Key == k {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// cutSegments notes in a merchant's segments that all events before a time are removed.
func (w *merger) cutSegments(ctx context.Context, m codec.MerchantKey, time int64) error {
	r, err := loadSegments(w.tx, m)
	if err != nil || len(r.segments) == 0 {
		return err
	}
	var kept []*segment
	for _, s := range r.segments {
		blocks := &queriedBlocks{&reader{ctx: ctx, m: m, blocks: w.blocks.Cursor()}, s.id, map[uint32][]byte{}}
		n, err := newSegmentReader(s, blocks).before(time)
		if err != nil {
			return err
		}
		if n > s.removed {
			s.removed, s.start = n, time
		}
		if s.removed < s.n {
			kept = append(kept, s)
		} else if err := markUnused(w.tx, m, s.id, byCompaction); err != nil {
			return err
		}
	}
	r.segments = kept
	return storeSegments(w.tx, m, r)
}
