package local

import (
	"sync"

	"mtagd/store"
)

// maxSeries bounds what a merchant's root record and inner nodes hold, whatever names visitors make
// up. Events of further series count in their tag's other series: they are listed all the same, but
// some of their listings are slower (otherseries.go).
const maxSeries = 1024

// A series is a tag and a name, each length-prefixed; a tag's other series has the empty name, which no
// event has.

// splitSeries returns the tag and the name of a series.
func splitSeries(series []byte) (tag store.TagID, name string) {
	d := decoder{b: series}
	tag = store.TagID(d.prefixed())
	return tag, string(d.prefixed())
}

// otherSeries returns the other series of a series' tag.
func otherSeries(series []byte) string {
	tag, _ := splitSeries(series)
	return string(appendPrefixed(appendPrefixed(nil, string(tag)), ""))
}

// dictionary numbers a merchant's series, from 1.
type dictionary struct {
	mu     sync.RWMutex
	series []string // by number
	ids    map[string]uint32
}

func newDictionary(series []string) *dictionary {
	d := &dictionary{series: series, ids: make(map[string]uint32, len(series))}
	for id, s := range series {
		d.ids[s] = uint32(id)
	}
	return d
}

// id returns the number of a series, and gives it one when it is new.
func (d *dictionary) id(series []byte) uint32 {
	if id, ok := d.ids[string(series)]; ok {
		return id
	}
	name := string(series)
	if len(d.series) > maxSeries {
		name = otherSeries(series)
		if id, ok := d.ids[name]; ok {
			return id
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := uint32(len(d.series))
	d.series = append(d.series, name)
	d.ids[name] = id
	return id
}

// names returns the series by number. They do not change; later ones come behind them.
func (d *dictionary) names() []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.series
}
