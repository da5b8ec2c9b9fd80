package write

import (
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
	"mtagd/store/rules"
)

// flush is one group on its way into the database: what it asks for, what the database says, and what follows from that.
type flush struct {
	id, node uuid.UUID
	now      *int64 // µs since 1970; nil: the database's clock
	items    []item
	fresh    map[dedupKey]freshness
	refuses  map[uuid.UUID]refusals // of the merchants that have any
	links    links                  // of the database, and those that the group makes
	changed  map[linkKey]bool       // the latter
	held     heldLinks              // of held_link: what the group may write again, and what it writes
	kept     map[heldKey]bool       // those of held that the group makes, or gives a greater source
	linkRows int                    // that the group's links take, at most
	linked   map[muidKey]bool       // muids with a linked identifier: those read, and those of the group
	events   []item                 // what is recorded
	deltas   count.Deltas           // of the events

	committed bool          // COMMIT has succeeded
	seen      conn.Snapshot // snapshot of the second commit: this flush and everything before it
}

// item is a mark, or the link of a call of Resolve.
type item struct {
	merchant uuid.UUID
	mark     *store.Mark     // nil: a link
	who      *store.Identity // of the mark, or what to link
	dedup    dedupKey        // of a mark with an event_id
	muid     store.MUID      // of the event, once it is decided
}

// refusals says whose events are refused.
type refusals struct {
	removed bool // everybody's: the merchant was deleted
	persons map[store.IdentityKey]bool
}

// dedupKey is a remembered event_id.
type dedupKey struct {
	merchant uuid.UUID
	key      [16]byte // store.RememberedKey
}

// freshness says whether the database has an event_id.
type freshness uint8

const (
	remembered freshness = iota // before this flush
	claimed                     // by this flush, for an event that was not recorded yet
	used                        // by an event of this flush
)

func newFlush(node uuid.UUID, now func() time.Time) *flush {
	f := &flush{id: uuid.New(), node: node, fresh: map[dedupKey]freshness{}, links: links{}, changed: map[linkKey]bool{},
		held: heldLinks{}, kept: map[heldKey]bool{}, linked: map[muidKey]bool{}}
	if now != nil {
		f.now = new(now().UnixMicro())
	}
	return f
}

func (f *flush) addLink(merchant uuid.UUID, id *store.Identity) {
	f.items = append(f.items, item{merchant: merchant, who: id})
}

func (f *flush) addMark(m *store.Mark) {
	merchant, _ := conn.KeyOf(m.Merchant) // Record has checked it
	i := item{merchant: merchant, mark: m, who: &m.Identity}
	if m.DedupeID != "" {
		i.dedup = dedupKey{merchant, store.RememberedKey(m.Name, m.DedupeID)}
		f.fresh[i.dedup] = remembered
	}
	f.items = append(f.items, i)
}

// decide sets the outcome of each mark, in their order (store.Events.Record).
func (f *flush) decide() {
	for _, i := range f.items {
		if i.mark == nil {
			if f.refusal(i.merchant, i.who, i.who.MUID) == 0 {
				f.linkTo(i.merchant, i.who)
			}
			continue
		}
		i.muid, i.mark.ByClaim = i.who.MUID, false
		if i.muid == "" {
			l := f.links.ofFirst(i.merchant, i.who)
			i.muid, i.mark.ByClaim = l.muid, l.source != store.BySecret
		}
		repeats := i.mark.DedupeID != "" && f.fresh[i.dedup] != claimed
		i.mark.Outcome = rules.Outcome(f.refusal(i.merchant, i.who, i.muid), i.muid, repeats)
		if i.mark.Outcome != store.Recorded {
			continue
		}
		if i.mark.DedupeID != "" {
			f.fresh[i.dedup] = used
		}
		if i.who.MUID != "" {
			f.linkTo(i.merchant, i.who)
		}
		f.events = append(f.events, i)
	}
}

// needsNoCommit reports whether the flush can go without a commit. A duplicate cannot: the first event is visible, but may
// not be on the standbys yet, and the commit of this flush waits for it. The same is true for a link that exists already.
func (f *flush) needsNoCommit() bool {
	return len(f.events)+len(f.changed) == 0 && !slices.ContainsFunc(f.items, func(i item) bool {
		return i.mark == nil || i.mark.Outcome == store.Duplicate
	})
}

// linkTo links the identifiers to the muid (store.Events, Record). Existing links are not written again.
func (f *flush) linkTo(merchant uuid.UUID, who *store.Identity) {
	muid := newMUIDKey(merchant, who.MUID)
	isLinked := f.linked[muid]
	for _, k := range who.Keys() {
		at := linkKey{merchant, k}
		now := f.links[at]
		held := heldKey{at, who.MUID}
		before, isHeld := f.held[held]
		source := rules.SourceOfLink(who.Source, before, isLinked, now.held[store.ByCookie])
		if now.muid == who.MUID && now.source >= source {
			continue
		}
		next := link{who.MUID, source, now.held}
		if isHeld && before < source || !isHeld && rules.KeepsFormerLink(source, now.held[store.ByAnyone]) {
			if isHeld {
				next.held[before]--
			}
			next.held[source]++
			f.held[held], f.kept[held] = source, true
		}
		f.links[at], f.changed[at] = next, true
		f.linked[muid] = true
	}
}

// refusal returns why events of a person are refused; 0: they are not.
func (f *flush) refusal(merchant uuid.UUID, who *store.Identity, muid store.MUID) store.Outcome {
	switch r := f.refuses[merchant]; {
	case r.removed:
		return store.Removed
	case rules.IsSuppressed(r.persons, who, muid):
		return store.Suppressed
	}
	return 0
}

// allMerchants returns the merchants of the group, sorted.
func (f *flush) allMerchants() []uuid.UUID {
	all := map[uuid.UUID]bool{}
	for _, i := range f.items {
		all[i.merchant] = true
	}
	return slices.SortedFunc(maps.Keys(all), conn.CompareUUIDs)
}
