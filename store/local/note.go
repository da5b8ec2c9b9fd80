package local

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// replaced are copies of damaged files that earlier versions have kept.
var replaced = []string{"archive.damaged", "archive.new", "set-aside"}

// isDamage reports whether an error says that events cannot be read.
func isDamage(err error) bool {
	_, chunks := errors.AsType[journal.DamagedChunks](err)
	_, blocks := errors.AsType[archive.Damaged](err)
	return chunks || blocks
}

// noteDamage notes what an error of isDamage names.
func (s *stored) noteDamage(ctx context.Context, x *rank.Index, damage error) error {
	if blocks, ok := errors.AsType[archive.Damaged](damage); ok {
		return s.noteBlocks(ctx, x, blocks)
	}
	chunks, _ := errors.AsType[journal.DamagedChunks](damage)
	return s.noteChunks(ctx, x, chunks)
}

// noteChunks notes damaged chunks, and takes their events out of the index, so that pages and totals have only events that can be read.
// A chunk that can be read now, or has moved to the archive, is skipped.
func (s *stored) noteChunks(ctx context.Context, x *rank.Index, found journal.DamagedChunks) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	var damaged journal.DamagedChunks
	var seqs []uint64
	for _, d := range found {
		if d.Err = s.journal.CheckChunk(d.Seq); d.Err == nil || s.hasMoved(d.Seq) {
			continue
		}
		damaged = append(damaged, d)
		seqs = append(seqs, d.Seq)
	}
	if damaged == nil {
		return nil
	}
	keys, err := x.FindChunks(ctx, seqs)
	if err != nil {
		return err
	}
	for _, d := range damaged {
		var lost eventGroup
		for m, keys := range keys {
			for _, k := range keys {
				if k.Seq == d.Seq {
					lost.add(m, k)
				}
			}
		}
		n := note{Chunk: d.Seq, Reason: d.Reason(), Events: lost.events, Merchants: lost.ids()}
		if lost.events > 0 {
			n.From, n.To = timeOf(lost.from), timeOf(lost.to)
		}
		if err := s.damage.add(n); err != nil {
			return fmt.Errorf("note a damaged chunk: %w", err)
		}
	}
	// After a kill before this, the damage is found again, and the events are removed then.
	for m, keys := range keys {
		if _, err := x.Remove(ctx, m, keys); err != nil {
			return err
		}
	}
	return nil
}

// noteBlocks is noteChunks for blocks of the archive.
func (s *stored) noteBlocks(ctx context.Context, x *rank.Index, found archive.Damaged) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	indexed := make([][]rank.Key, len(found)) // the events of each that the index has
	for i, d := range found {
		if slices.ContainsFunc(found[:i], func(before archive.Damage) bool { return before.Merchant == d.Merchant }) {
			continue // the scan for the first one has found these too
		}
		if err := x.ScanEvents(ctx, d.Merchant, func(k rank.Key, _ string) {
			for n := i; n < len(found); n++ {
				if found[n].Merchant == d.Merchant && found[n].Has(k.Position) {
					indexed[n] = append(indexed[n], k)
				}
			}
		}); err != nil {
			return err
		}
	}
	for i, d := range found {
		keys := indexed[i]
		var lost eventGroup
		for _, k := range keys {
			lost.add(d.Merchant, k)
		}
		if len(keys) == 0 && archive.IsMissing(d) {
			continue // it was removed since the page asked the index
		}
		if len(keys) == 0 { // noted before, or all were removed
			if err := s.damage.add(noteOf(d)); err != nil {
				return fmt.Errorf("note a damaged block: %w", err)
			}
			continue
		}
		slices.SortFunc(keys, func(a, b rank.Key) int { return a.Compare(b.Position) })
		positions := make([]codec.Position, len(keys))
		for i, k := range keys {
			positions[i] = k.Position
		}
		err := s.archive.Read(ctx, d.Merchant, positions, func(int, archive.Event) {})
		if err == nil {
			continue // it can be read now
		}
		if _, is := errors.AsType[archive.Damaged](err); !is { // they may only be hidden
			return unread(ctx, d.Merchant, err)
		}
		n := noteOf(d)
		n.Events, n.From, n.To = lost.events, timeOf(lost.from), timeOf(lost.to)
		if err := s.damage.add(n); err != nil {
			return fmt.Errorf("note a damaged block: %w", err)
		}
		if _, err := x.Remove(ctx, d.Merchant, keys); err != nil {
			return err
		}
	}
	return nil
}

// noteMissing notes events that only the index has, up to the chunk upTo, and takes them out of it. The caller keeps events from
// moving and from being removed.
func (s *stored) noteMissing(ctx context.Context, x *rank.Index, upTo uint64, keys map[codec.MerchantKey][]rank.Key) error {
	var lost eventGroup
	for m, keys := range keys {
		for _, k := range keys {
			lost.add(m, k)
		}
	}
	if err := s.damage.add(note{Chunk: max(1, upTo), Archived: fmt.Sprintf("missing, %d events", lost.events), Reason: "neither archive/ nor events/ has the events",
		Events: lost.events, Merchants: lost.ids(), From: timeOf(lost.from), To: timeOf(lost.to)}); err != nil {
		return fmt.Errorf("note lost events: %w", err)
	}
	for m, keys := range keys {
		if _, err := x.Remove(ctx, m, keys); err != nil {
			return err
		}
	}
	return nil
}

// noteOf returns what the archive knows of a damaged block.
func noteOf(d archive.Damage) note {
	return note{Chunk: d.Last.Seq, Archived: string(d.Merchant.ID()) + " " + string(d.Last.EventID()),
		Reason: fmt.Sprintf("cannot be read: %v", d.Err), Merchants: []store.MerchantID{d.Merchant.ID()}}
}
