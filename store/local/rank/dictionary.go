package rank

import (
	"sync"

	"mtagd/store/local/codec"
)

// maxSeries is how many series the counted trees count for each merchant. It bounds the size of root records and inner
// nodes, whatever names visitors make up. Events of further series are counted in their tag's overflow series, and are in
// segments too (segment.go).
const maxSeries = 256

// dictionary numbers a merchant's series, from 1. Only one goroutine may call number; any may call names.
type dictionary struct {
	limit int // how many series to count

	mu     sync.RWMutex
	series []string // by number
	ids    map[string]uint32
}

func newDictionary(series []string, limit int) *dictionary {
	d := &dictionary{limit: limit, series: series, ids: make(map[string]uint32, len(series))}
	for id, s := range series {
		d.ids[s] = uint32(id)
	}
	return d
}

// number returns the number of a series. A new series gets the next number. When there are as many as the limit allows, it
// gets that of its tag's overflow series, and overflow is true.
func (d *dictionary) number(series []byte) (id uint32, overflow bool) {
	if id, ok := d.ids[string(series)]; ok {
		return id, false
	}
	name := string(series)
	if len(d.series) > d.limit {
		tag, _ := codec.SplitSeries(series)
		name, overflow = codec.OverflowSeries(tag), true
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
