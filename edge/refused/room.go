package refused

import (
	stdheap "container/heap"
	"time"

	"mtagd/store"
)

// About how many bytes an entry and a merchant take besides their texts.
const (
	entryBytes    = 400
	merchantBytes = 900
)

func size(e *Entry) int {
	return entryBytes + 2*(len(e.Tag)+len(e.Code)+len(e.Path)+len(e.Name)) + len(e.Suggestion) + len(e.Origin) + len(e.Sample) + len(e.Message)
}

// makeRoom evicts entries until there is room for a new entry of a merchant. The caller holds mu.
func (m *Memory) makeRoom(owner *merchant, k key, bytes int, now time.Time) {
	differsInName := func(other key) bool { other.name = k.name; return other == k }
	anything := func(key) bool { return true }
	names := 0
	for other := range owner.entries {
		if differsInName(other) {
			names++
		}
	}
	switch {
	case names >= maxOthers:
		m.evict(owner, now, differsInName)
	case len(owner.entries) >= MaxEntries:
		m.evict(owner, now, anything)
	}
	for m.bytes+bytes > m.most && len(m.largest) > 0 {
		m.evict(m.largest[0], now, anything)
	}
}

// evict removes one of a merchant's entries. It chooses the sender with most entries, of these the ones with the fewest
// events, and of these the one whose last event is the oldest. When there is none, it removes the merchant.
func (m *Memory) evict(owner *merchant, now time.Time, among func(key) bool) {
	senders, most := map[uint64]int{}, 0
	for k, e := range owner.entries {
		if among(k) {
			senders[e.sender]++
			most = max(most, senders[e.sender])
		}
	}
	var worst key
	var of *Entry
	for k, e := range owner.entries {
		if among(k) && senders[e.sender] == most && (of == nil || e.Count < of.Count || e.Count == of.Count && e.Last.Before(of.Last)) {
			worst, of = k, e
		}
	}
	if of == nil {
		m.forget(owner)
		return
	}
	owner.drop(of.Count, now)
	m.remove(owner, worst)
}

// merchant returns a merchant, a new one if there is none. The caller holds mu.
func (m *Memory) merchant(id store.MerchantID) *merchant {
	owner := m.merchants[id]
	if owner == nil {
		owner = &merchant{id: id, entries: map[key]*Entry{}}
		m.merchants[id] = owner
		stdheap.Push(&m.largest, owner)
		m.grow(owner, merchantBytes)
	}
	return owner
}

// remove removes an entry, and its merchant with the last one. The caller holds mu.
func (m *Memory) remove(owner *merchant, k key) {
	m.grow(owner, -size(owner.entries[k]))
	delete(owner.entries, k)
	if len(owner.entries) == 0 {
		m.forget(owner)
	}
}

func (m *Memory) forget(owner *merchant) {
	m.bytes -= owner.bytes
	stdheap.Remove(&m.largest, owner.place)
	delete(m.merchants, owner.id)
}

func (m *Memory) grow(owner *merchant, bytes int) {
	owner.bytes += bytes
	m.bytes += bytes
	stdheap.Fix(&m.largest, owner.place)
}

// heap orders merchants by their bytes (container/heap).
type heap []*merchant

func (h heap) Len() int           { return len(h) }
func (h heap) Less(i, j int) bool { return h[i].bytes > h[j].bytes }
func (h heap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *heap) Push(x any) {
	owner := x.(*merchant)
	owner.place = len(*h)
	*h = append(*h, owner)
}

func (h *heap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
