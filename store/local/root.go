package local

import (
	"encoding/binary"
	"sync"

	"mtagd/store"
)

// tree is a merchant's stored tree. Its zero value is that of a merchant without events.
type tree struct {
	root    child    // id 0: no events
	nextID  uint64   // ids from here on were never used in a tree that was finished
	applied uint64   // chunks up to this seq are in the tree
	series  []string // by number, from 1
}

// The root record: next id, root id, applied (uvarints), first key, counts of the root, series (number, each
// length-prefixed).
func (t *tree) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, t.nextID)
	b = binary.AppendUvarint(b, t.root.id)
	b = binary.AppendUvarint(b, t.applied)
	b = appendEntryKey(b, &entryKey{}, t.root.first)
	b = t.root.counts.encode(b)
	b = binary.AppendUvarint(b, uint64(len(t.series)))
	for _, s := range t.series {
		b = appendPrefixed(b, s)
	}
	return b
}

func decodeTree(b []byte) (*tree, error) {
	d := decoder{b: b}
	t := &tree{nextID: d.uvarint(), root: child{id: d.uvarint()}, applied: d.uvarint()}
	t.root.first = d.entryKey(&entryKey{})
	t.root.counts = d.counts(nil)
	t.series = make([]string, d.count())
	for i := range t.series {
		t.series[i] = string(d.prefixed())
	}
	return t, d.err("root record")
}

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
