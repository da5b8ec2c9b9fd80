package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// noteDamage notes what an error of isDamage names.
func (s *stored) noteDamage(ctx context.Context, x *rank.Index, damage error) error {
	if blocks, ok := errors.AsType[archive.Damaged](damage); ok {
		return s.noteBlocks(ctx, x, blocks)
	}
	chunks, _ := errors.AsType[journal.DamagedChunks](damage)
	return s.noteChunks(ctx, x, chunks)
}

// noteChunks notes damaged chunks, and takes their events out of the index, so that pages and totals have only events
// that can be read. A chunk that can be read now, or has moved to the archive, is skipped.
func (s *stored) noteChunks(ctx context.Context, x *rank.Index, chunks journal.DamagedChunks) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	lost, all := map[uint64]map[store.MerchantKey][]rank.Key{}, map[store.MerchantKey][]rank.Key{} // by chunk, and of all chunks
	var damaged journal.DamagedChunks
	for _, d := range chunks {
		if d.Err = s.journal.CheckChunk(d.Seq); d.Err != nil && !s.hasMoved(d.Seq) {
			damaged = append(damaged, d)
			lost[d.Seq] = map[store.MerchantKey][]rank.Key{}
		}
	}
	if damaged == nil {
		return nil
	}
	if err := x.Merge(ctx); err != nil {
		return err
	}
	merchants, err := x.StoredMerchants()
	for _, m := range merchants {
		if err == nil {
			err = x.ScanEvents(ctx, m, func(k rank.Key, _ string) {
				if of := lost[k.Seq]; of != nil {
					of[m], all[m] = append(of[m], k), append(all[m], k)
				}
			})
		}
	}
	for _, d := range damaged {
		if err == nil {
			err = s.noteLost(note{Chunk: d.Seq, Reason: d.Reason()}, lost[d.Seq])
		}
	}
	if err != nil {
		return err
	}
	return takeOut(ctx, x, all)
}

// lose notes lost events, and takes them out of the index. After a kill in between, the damage is found again.
func (s *stored) lose(ctx context.Context, x *rank.Index, n note, events map[store.MerchantKey][]rank.Key) error {
	if err := s.noteLost(n, events); err != nil {
		return err
	}
	return takeOut(ctx, x, events)
}

func (s *stored) noteLost(n note, events map[store.MerchantKey][]rank.Key) error {
	var lost eventGroup
	for m, keys := range events {
		for _, k := range keys {
			lost.add(m, k)
		}
	}
	if lost.events > 0 {
		n.Events, n.Merchants, n.From, n.To = lost.events, lost.ids(), timeOf(lost.from), timeOf(lost.to)
	}
	if err := s.damage.add(n); err != nil {
		return fmt.Errorf("note lost events: %w", err)
	}
	return nil
}

// takeOut takes events out of the index.
func takeOut(ctx context.Context, x *rank.Index, events map[store.MerchantKey][]rank.Key) error {
	for m, keys := range events {
		if len(keys) == 0 {
			continue
		}
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
		if len(keys) == 0 && archive.IsMissing(d) {
			continue // it was removed since the page asked the index
		}
		if len(keys) > 0 { // else it was noted before, or all were removed
			err := s.archive.Read(ctx, d.Merchant, positionsOf(keys), func(int, archive.Event) {})
			if err == nil {
				continue // it can be read now
			}
			if _, is := errors.AsType[archive.Damaged](err); !is { // they may only be hidden
				return unread(ctx, d.Merchant, err)
			}
		}
		if err := s.lose(ctx, x, noteOf(d), map[store.MerchantKey][]rank.Key{d.Merchant: keys}); err != nil {
			return err
		}
	}
	return nil
}

// noteMissing notes events up to the chunk upTo that only the index has, and removes them from the index. The caller keeps
// events from moving and from being removed.
func (s *stored) noteMissing(ctx context.Context, x *rank.Index, upTo uint64, keys map[store.MerchantKey][]rank.Key) error {
	events := 0
	for _, of := range keys {
		events += len(of)
	}
	return s.lose(ctx, x, note{Chunk: max(1, upTo), Archived: fmt.Sprintf("missing, %d events", events), Reason: "neither archive/ nor events/ has the events"}, keys)
}

// positionsOf returns the positions of events, sorted.
func positionsOf(keys []rank.Key) []store.Position {
	positions := make([]store.Position, len(keys))
	for i, k := range keys {
		positions[i] = k.Position
	}
	slices.SortFunc(positions, store.Position.Compare)
	return positions
}

// eventGroup is what is known of some events.
type eventGroup struct {
	events    uint64
	merchants map[store.MerchantKey]bool
	from, to  int64 // µs since 1970
}

func (g *eventGroup) add(m store.MerchantKey, k rank.Key) {
	if g.merchants == nil {
		g.merchants, g.from, g.to = map[store.MerchantKey]bool{}, k.Time, k.Time
	}
	g.events++
	g.merchants[m] = true
	g.from, g.to = min(g.from, k.Time), max(g.to, k.Time)
}

// ids returns the merchants' ids, sorted.
func (g *eventGroup) ids() []store.MerchantID {
	var ids []store.MerchantID
	for m := range g.merchants {
		ids = append(ids, m.ID())
	}
	slices.Sort(ids)
	return ids
}

// finding returns a finding about the group's events.
func (g *eventGroup) finding(where, problem string) store.Finding {
	f := store.Finding{Part: store.PartEvents, Where: where, Problem: problem, Events: g.events, Merchants: g.ids()}
	if g.events > 0 {
		f.From, f.To = timeOf(g.from), timeOf(g.to)
	}
	return f
}

// chunkName is how a finding names a chunk.
func chunkName(seq uint64) string {
	return fmt.Sprintf("chunk %d (received at %s)", seq, time.UnixMicro(int64(seq)).UTC().Format(time.RFC3339))
}

// blockName is how a finding names a block of the archive.
func blockName(d archive.Damage) string {
	return fmt.Sprintf("archive: the block up to event %s of merchant %s", d.Last.EventID(), d.Merchant.ID())
}
