package write

import (
	"bytes"
	"cmp"
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
	refuses  map[uuid.UUID]bool                       // merchants with refused events: deleted, or with a suppressed person
	removed  map[uuid.UUID]bool                       // merchants that were deleted
	refused  map[uuid.UUID]map[store.IdentityKey]bool // of these, persons whose events are refused
	known    links                                    // links of the database
	changed  links                                    // links that the group makes
	held     heldLinks                                // of held_link: what the group may write again, and what it writes
	kept     map[heldKey]bool                         // those of held that the group makes, or gives a greater source
	linkRows int                                      // that the group's links take, at most
	linked   map[muidKey]bool                         // muids with a linked identifier: those read, and those of the group
	events   []event
	deltas   count.Deltas // of the events

	committed bool          // COMMIT has succeeded
	seen      conn.Snapshot // snapshot of the second commit: this flush and everything before it
}

// item is a mark, or the link of a call of Resolve.
type item struct {
	merchant uuid.UUID
	mark     *store.Mark
	link     *store.Identity
	dedup    dedupKey // of a mark with an event_id
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

// event is an event that the flush writes.
type event struct {
	merchant uuid.UUID
	mark     *store.Mark
	muid     store.MUID
}

func newFlush(node uuid.UUID, now func() time.Time) *flush {
	f := &flush{id: uuid.New(), node: node, fresh: map[dedupKey]freshness{}, known: links{}, changed: links{},
		held: heldLinks{}, kept: map[heldKey]bool{}, linked: map[muidKey]bool{}}
	if now != nil {
		f.now = new(now().UnixMicro())
	}
	return f
}

func (f *flush) addLink(merchant uuid.UUID, id *store.Identity) {
	f.items = append(f.items, item{merchant: merchant, link: id})
}

func (f *flush) addMark(m *store.Mark) {
	merchant, _ := conn.KeyOf(m.Merchant) // Record has checked it
	i := item{merchant: merchant, mark: m}
	if m.DedupeID != "" {
		i.dedup = dedupKey{merchant, store.RememberedKey(m.Name, m.DedupeID)}
		f.fresh[i.dedup] = remembered
	}
	f.items = append(f.items, i)
}

// decide sets the outcome of each mark, in their order (store.Events.Record).
func (f *flush) decide() {
	for _, i := range f.items {
		if i.link != nil {
			if f.refusal(i.merchant, i.link, i.link.MUID) == 0 {
				f.linkTo(i.merchant, i.link)
			}
			continue
		}
		who := &i.mark.Identity
		muid := who.MUID
		i.mark.ByClaim = false
		if muid == "" {
			l := f.linkOfFirst(i.merchant, who)
			muid, i.mark.ByClaim = l.muid, l.source != store.BySecret
		}
		repeats := i.mark.DedupeID != "" && f.fresh[i.dedup] != claimed
		i.mark.Outcome = rules.Outcome(f.refusal(i.merchant, who, muid), muid, repeats)
		if i.mark.Outcome != store.Recorded {
			continue
		}
		if i.mark.DedupeID != "" {
			f.fresh[i.dedup] = used
		}
		if who.MUID != "" {
			f.linkTo(i.merchant, who)
		}
		f.events = append(f.events, event{i.merchant, i.mark, muid})
	}
}

// needsNoCommit reports whether the flush can go without a commit. A duplicate cannot: the first event is visible, but may
// not be on the standbys yet, and the commit of this flush waits for it. The same is true for a link that exists already.
func (f *flush) needsNoCommit() bool {
	return len(f.events)+len(f.changed) == 0 && !slices.ContainsFunc(f.items, func(i item) bool {
		return i.link != nil || i.mark.Outcome == store.Duplicate
	})
}

// linkOfFirst returns the link of the first identifier that has one, in the database or from this group.
func (f *flush) linkOfFirst(merchant uuid.UUID, who *store.Identity) link {
	for _, k := range who.Keys() {
		if l := f.linkOf(linkKey{merchant, k}); l.muid != "" {
			return l
		}
	}
	return link{}
}

func (f *flush) linkOf(at linkKey) link {
	if l, ok := f.changed[at]; ok {
		return l
	}
	return f.known[at]
}

// linkTo links the identifiers to the muid (store.Events, Record). Existing links are not written again.
func (f *flush) linkTo(merchant uuid.UUID, who *store.Identity) {
	muid := newMUIDKey(merchant, who.MUID)
	isLinked := f.linked[muid]
	for _, k := range who.Keys() {
		at := linkKey{merchant, k}
		now := f.linkOf(at)
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
		f.changed[at] = next
		f.linked[muid] = true
	}
}

// refusal returns why events of a person are refused; 0: they are not.
func (f *flush) refusal(merchant uuid.UUID, who *store.Identity, muid store.MUID) store.Outcome {
	switch {
	case !f.refuses[merchant]:
		return 0
	case f.removed[merchant]:
		return store.Removed
	case rules.IsSuppressed(f.refused[merchant], who, muid):
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

func compareDedups(a, b dedupKey) int {
	return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), bytes.Compare(a.key[:], b.key[:]))
}

// identity returns whose item it is.
func (i *item) identity() *store.Identity {
	if i.link != nil {
		return i.link
	}
	return &i.mark.Identity
}
