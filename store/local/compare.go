package local

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// compare reports the damaged chunks with what the index knows of their events, and the events that only the index or only
// the journal has.
func (v *verifier) compare() error {
	c := comparison{verifier: v, merchants: map[store.MerchantKey]*merchantSums{}, events: map[locatedEvent]bool{},
		chunks: map[uint64]*chunkDifference{}, blocks: make([]eventGroup, len(v.blocks))}
	for _, d := range v.damaged {
		c.chunks[d.Seq] = &chunkDifference{seq: d.Seq, damage: &d}
	}
	for m, s := range v.indexed {
		if v.control != nil && v.control.IsRemoved(m.ID()) {
			continue // deleted: its events are being removed
		}
		isSound := !s.unsound && !v.unsound && !v.hidden
		if s.events != (eventSum{}) && (isSound || v.onlyLost) && v.index != nil && v.journal != nil {
			c.merchants[m] = s
		}
	}
	if len(c.merchants) > 0 {
		if err := c.locate(); err != nil {
			return err
		}
	}
	return c.report()
}

// comparison finds the events that only the index or only the journal (with the archive) has. It keeps only events of
// buckets that differ in memory.
type comparison struct {
	*verifier
	merchants map[store.MerchantKey]*merchantSums // those that differ
	events    map[locatedEvent]bool               // events in differing buckets; true: the index has it, false: the journal
	isFull    bool                                // the index has further ones, so those of the journal may be in it
	chunks    map[uint64]*chunkDifference
	blocks    []eventGroup // for each of verifier.blocks: the events that the index has in this damaged block
}

var maxLocated = 1_000_000 // events; tests change it

type locatedEvent struct {
	m    store.MerchantKey
	key  rank.Key
	hash uint64
}

// chunkDifference is what is wrong with a chunk, and with which events.
type chunkDifference struct {
	seq       uint64
	damage    *journal.DamagedChunk // nil when the chunk can be read
	indexed   eventGroup            // only the index has them
	unindexed eventGroup            // only the journal has them
	missing   bool                  // the journal does not have the chunk
}

// locate finds the events of the merchants that differ, while none moves and none is removed.
func (c *comparison) locate() error {
	defer c.PauseMoves()()
	c.removing.Lock()
	defer c.removing.Unlock()
	maps.DeleteFunc(c.merchants, func(m store.MerchantKey, _ *merchantSums) bool { return !c.unchanged(m, c.since) })
	if err := c.readMerchants(); err != nil {
		return err
	}
	c.group()
	if c.live {
		return c.noteMissing()
	}
	return nil
}

// group sums up the events by the chunk or the damaged block that they are of.
func (c *comparison) group() {
	erasing := map[store.MerchantKey]bool{} // the index has lost their events already: an erasure was cut off, and goes on soon
	if c.control != nil {
		for _, era := range c.control.Unfinished() {
			if m, err := store.NewMerchantKey(era.Merchant); err == nil && era.State == store.ErasureRemoving {
				erasing[m] = true
			}
		}
	}
	for e, indexed := range c.events {
		if !indexed && erasing[e.m] {
			continue
		}
		if i := slices.IndexFunc(c.verifier.blocks, func(d archive.Damage) bool { return d.Merchant == e.m && d.Has(e.key.Position) }); i >= 0 && indexed {
			c.blocks[i].add(e.m, e.key)
			continue
		}
		d := c.chunks[e.key.Seq]
		if d == nil {
			d = &chunkDifference{seq: e.key.Seq}
			c.chunks[e.key.Seq] = d
		}
		if indexed {
			d.indexed.add(e.m, e.key)
		} else {
			d.unindexed.add(e.m, e.key)
		}
	}
}

// noteMissing passes on the events that only the index has, unless damage, or a missing chunk, explains that.
func (c *comparison) noteMissing() error {
	keys := map[store.MerchantKey][]rank.Key{}
	stored := map[locatedEvent]bool{} // without a hash: the index has them under another name
	for e, indexed := range c.events {
		stored[locatedEvent{m: e.m, key: e.key}] = stored[locatedEvent{m: e.m, key: e.key}] || !indexed
	}
	for e, indexed := range c.events {
		d := c.chunks[e.key.Seq]
		if !indexed || stored[locatedEvent{m: e.m, key: e.key}] || d == nil || d.damage != nil || d.indexed.events == 0 {
			continue
		}
		if d.seq > c.archive.Boundary() && !c.journal.HasChunk(d.seq) {
			d.missing = true
		} else {
			keys[e.m] = append(keys[e.m], e.key)
		}
	}
	for _, d := range c.chunks {
		if d.missing {
			c.damaged = append(c.damaged, journal.DamagedChunk{Seq: d.seq})
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return c.stored.noteMissing(c.ctx, c.index, c.upTo, keys)
}

// take keeps an event that only the index or only the journal may have.
func (c *comparison) take(e locatedEvent, indexed bool) {
	if e.key.Time < c.merchants[e.m].retainedFrom || c.buckets[e.hash%buckets] == (eventSum{}) {
		return
	}
	if is, ok := c.events[e]; ok && is != indexed {
		delete(c.events, e)
	} else if len(c.events) < maxLocated {
		c.events[e] = indexed
	} else {
		c.isFull = c.isFull || indexed
	}
}

// readMerchants reads the events of the merchants: those of the index, then those of the archive and the journal. If it
// meets damage that was not reported before, nothing may be noted as missing: the damage may hide it.
func (c *comparison) readMerchants() error {
	var more error
	for m := range c.merchants {
		if err := c.index.ScanEvents(c.ctx, m, func(k rank.Key, series string) {
			if k.Seq <= c.upTo {
				c.take(locatedEvent{m, k, hashOf(m, k, series)}, true)
			}
		}); err != nil && c.ctx.Err() != nil {
			return err // other errors were reported before
		}
	}
	takeStored := func(s *merchantSums, e *codec.Event) {
		c.take(locatedEvent{e.Merchant, rank.Key{Time: e.Time, Position: e.Position}, s.hash(e)}, false)
	}
	boundary := uint64(0)
	if c.archive != nil {
		boundary = c.archive.Boundary()
		for m, s := range c.merchants {
			if err := c.archive.Since(c.ctx, m, store.Position{}, func(events []archive.Event) error {
				for _, stored := range events {
					e, err := journal.DecodeBody(m, stored.Position, stored.Body)
					if err == nil && stored.Seq <= c.upTo { // other errors were reported before
						takeStored(s, &e.Event)
					}
				}
				return nil
			}, func(d archive.Damage) {
				if !slices.ContainsFunc(c.verifier.blocks, func(known archive.Damage) bool { return known.Merchant == d.Merchant && known.Last == d.Last }) {
					more = d.Err
				}
			}); err != nil && (c.ctx.Err() != nil || c.live) {
				return err
			}
		}
	}
	if err := c.journal.Since(boundary, c.upTo, func(events []journal.Event, _ uint64) error {
		for i := range events {
			if s := c.merchants[events[i].Merchant]; s != nil {
				takeStored(s, &events[i].Event)
			}
		}
		return c.ctx.Err()
	}, func(d journal.DamagedChunk) {
		if known := c.chunks[d.Seq]; known == nil || known.damage == nil {
			more = d.Err
		}
	}); err != nil || !c.live {
		return err
	}
	return more
}

// maxListed is how many findings of each kind are reported one by one. Another one is the sum of the rest.
const maxListed = 50

// report reports the differences in the order of the chunks.
func (c *comparison) report() error {
	listed := map[string]int{}
	further := map[string]uint64{}
	found := func(f store.Finding, kind string) {
		if listed[kind]++; listed[kind] <= maxListed {
			c.Found(f)
		} else {
			further[kind] += f.Events
		}
	}
	for i, d := range c.verifier.blocks {
		f := c.blocks[i].finding(blockName(d), "cannot be read: "+d.Err.Error())
		f.Merchants = []store.MerchantID{d.Merchant.ID()}
		found(f, "of the archive are damaged")
	}
	for _, d := range slices.SortedFunc(maps.Values(c.chunks), func(a, b *chunkDifference) int { return cmp.Compare(a.seq, b.seq) }) {
		where := chunkName(d.seq)
		if d.damage != nil {
			found(d.indexed.finding(where, d.damage.Reason()), "are damaged")
		} else if d.indexed.events > 0 {
			if c.journal.HasChunk(d.seq) {
				found(d.indexed.finding(where, "does not have events that the index has"), "do not have events that the index has")
			} else {
				found(d.indexed.finding(where, "is missing"), "are missing")
			}
		}
		if d.unindexed.events > 0 && !c.onlyLost {
			c.disagree = true
			if !c.isFull {
				found(d.unindexed.finding(where, "has events that are not in the index"), "have events that are not in the index")
			}
		}
	}
	for kind, events := range further {
		c.Found(store.Finding{Part: store.PartEvents, Where: fmt.Sprintf("%d further chunks", listed[kind]-maxListed), Problem: kind, Events: events})
	}
	return nil
}
