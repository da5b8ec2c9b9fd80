package rules

import (
	"cmp"
	"slices"
)

// Export returns the records that a move copies, in the order of their kinds and keys: all but sessions, and the id of the
// data directory.
func (d *Data) Export() ([]Record, error) {
	all, err := d.Records()
	d.mu.RLock()
	defer d.mu.RUnlock()
	all = slices.DeleteFunc(all, func(r Record) bool { return r.Kind == Uses || r.Kind == Meta && r.Key == metaID })
	for id := range d.state.keys {
		at := d.dir.LastUse(id) // newer than what is stored
		if at.IsZero() {
			continue
		}
		text, textErr := at.MarshalText()
		err = cmp.Or(err, textErr)
		all = append(all, Record{Uses, string(id), text})
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key)) })
	return all, err
}
