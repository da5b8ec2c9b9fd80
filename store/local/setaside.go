package local

import (
	"context"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/journal"
)

// setAside takes the events of damaged chunks out of the index, so that pages and totals have only events that can be read.
// A chunk that can be read now stays. KindUnavailable: the disk has returned an error for a chunk; it may heal.
func (e *engine) setAside(ctx context.Context, x *usedIndex, found journal.DamagedChunks) error {
	e.damage.removing.Lock()
	defer e.damage.removing.Unlock()
	var damaged journal.DamagedChunks
	var seqs []uint64
	for _, d := range found {
		if d.Err = e.journal.CheckChunk(d.Seq); d.Err == nil {
			continue
		}
		if d.IsHidden() || d.MayHeal() && e.damage.mustWait(d.Seq) {
			return store.Unavailable("some events cannot be read now")
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
		if err := e.damage.add(n); err != nil {
			return fmt.Errorf("note a damaged chunk: %w", err)
		}
	}
	// After a kill before this, the events are found and removed again.
	for m, keys := range keys {
		if _, err := x.Remove(ctx, m, keys); err != nil {
			return err
		}
	}
	return nil
}
