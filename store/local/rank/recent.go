package rank

import (
	"sync"

	"mtagd/store/local/codec"
)

// recentEvents is a merchant's events in memory.
type recentEvents struct {
	covered uint64 // of the stored tree; a merge updates it a moment after its commit
	series  *dictionary
	active  eventsInMemory // takes new events
	frozen  eventsInMemory // is being merged
}

// eventsInMemory is a merchant's events that are not stored yet.
type eventsInMemory struct {
	root  child // of their tree
	names run   // those of overflow series (names.go)
}

// snapshot returns what is in memory now, for readers. The caller holds Index.mu.
func (r *recentEvents) snapshot() *recentEvents {
	return &recentEvents{r.covered, r.series, r.active.snapshot(), r.frozen.snapshot()}
}

func (e *eventsInMemory) snapshot() eventsInMemory {
	return eventsInMemory{e.root.share(), run{e.names.root.share(), e.names.from, e.names.to}}
}

// maxSeries is how many series the counted trees count for each merchant, besides those of bots. It bounds the size of root
// records and inner nodes, whatever names visitors make up. Events of further series are counted in their tag's overflow
// series, and are in runs too (names.go). There may be a quarter as many series of bots, which have overflow series of
// their own: so bots do not use up the series of the others.
const maxSeries = 256

// dictionary numbers a merchant's series, from 1. Only one goroutine may call number; any may call names.
type dictionary struct {
	limits [2]int // how many series to count, and how many of bots

	counted [2]int // how many there are

	mu     sync.RWMutex
	series []string // by number
	ids    map[string]uint32
}

func newDictionary(series []string, limit int) *dictionary {
	d := &dictionary{limits: [2]int{limit, max(1, limit/4)}, series: series, ids: make(map[string]uint32, len(series))}
	for id, s := range series {
		d.ids[s] = uint32(id)
		if _, name := codec.SplitSeries(s); name != "" {
			d.counted[kindOf(s)]++
		}
	}
	return d
}

// kindOf returns which of the limits is for a series.
func kindOf[T string | []byte](series T) int {
	if codec.IsBot(series) {
		return 1
	}
	return 0
}

// number returns the number of a series. A new series gets the next number. When there are as many as the limit allows, it
// gets that of its tag's overflow series, and overflow is true.
func (d *dictionary) number(series []byte) (id uint32, overflow bool) {
	if id, ok := d.ids[string(series)]; ok {
		return id, false
	}
	name := string(series)
	if kind := kindOf(series); d.counted[kind] < d.limits[kind] {
		d.counted[kind]++
	} else {
		name, overflow = codec.OverflowSeries(name), true
		if id, ok := d.ids[name]; ok {
			return id, true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id = uint32(len(d.series))
	d.series = append(d.series, name)
	d.ids[name] = id
	return id, overflow
}

// names returns the series by number. The result does not change when series are added.
func (d *dictionary) names() []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.series
}
