package rank

import (
	"sync"

	"mtagd/store/local/codec"
)

// MaxSeries is how many series the index counts for each merchant. It bounds the size of root records and inner nodes,
// whatever names visitors make up. Events of further series are counted in their tag's overflow series. They are listed
// like all others, but some of these listings are slower.
const MaxSeries = 1024

// dictionary numbers a merchant's series, from 1. Only one goroutine may call number; any may call names.
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

// number returns the number of a series. A new series gets the next number, or that of its tag's overflow series when
// there are MaxSeries already.
func (d *dictionary) number(series []byte) uint32 {
	if id, ok := d.ids[string(series)]; ok {
		return id
	}
	name := string(series)
	if len(d.series) > MaxSeries {
		name = codec.OverflowSeries(series)
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

// names returns the series by number. The result does not change when series are added.
func (d *dictionary) names() []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.series
}
