package local

import (
	"fmt"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/rank"
)

// eventGroup is what is known of some events.
type eventGroup struct {
	events    uint64
	merchants map[codec.MerchantKey]bool
	from, to  int64 // µs since 1970
}

func (g *eventGroup) add(m codec.MerchantKey, k rank.Key) {
	if g.merchants == nil {
		g.merchants, g.from, g.to = map[codec.MerchantKey]bool{}, k.Time, k.Time
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

// timeOf returns the time of µs since 1970.
func timeOf(µs int64) time.Time { return time.UnixMicro(µs).UTC() }
