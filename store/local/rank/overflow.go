package rank

import (
	"maps"
	"slices"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// overflowNames counts events of one overflow series by name.
type overflowNames struct {
	*reader
	series  uint32
	tag     string
	bounds  []int64  // of the buckets
	names   []string // the names to count: none of them is counted in the tree
	counted map[string]bool
}

// overflow returns what counts the events of a merchant's overflow series by name, if the summary needs that. n has the
// number of events within the range, by series.
func (s *summary) overflow(r keptReader, n []uint64) (all []*overflowNames) {
	if s.names == nil && s.query.By != store.GroupByName {
		return nil
	}
	for id, series := range r.series {
		tag, _ := codec.SplitSeries(series)
		if _, ok := s.section(series); !ok || !isOverflow(series) || n[id] == 0 {
			continue
		}
		o := &overflowNames{reader: r.reader, series: uint32(id), tag: tag, bounds: s.boundsOf(r), counted: map[string]bool{}}
		all = append(all, o)
		for _, other := range r.series {
			if t, name := codec.SplitSeries(other); t == tag && codec.IsBot(other) == codec.IsBot(series) {
				o.counted[name] = true
			}
		}
		if s.names != nil {
			o.names = slices.Sorted(maps.Keys(s.names))
		}
	}
	return all
}

// maxCandidates is about how many candidates for a group a summary counts.
const maxCandidates = 500

// appendFrequent appends names that may have many events: those of the events at about n quantiles, in the order of names. Names that have
// at least that share of the series' events are always among them. So a flood of made-up names does not hide the names of a shop.
func (o *overflowNames) appendFrequent(names []string, n int) ([]string, error) {
	all := sources{compare: byName}
	for _, run := range o.recent[o.series] {
		all.all = append(all.all, &sliceSource{run, byName})
	}
	if !o.namesRoot.isEmpty() {
		section := treeSection{members: o.member()}
		section.end = int(o.namesRoot.counts.of(section.members))
		all.all = append(all.all, &treeSource[named]{pages: &o.nameNodes, series: len(o.reader.series), root: &o.namesRoot, sections: []treeSection{section}})
	}
	for _, one := range all.all {
		for rank := 0; rank < one.size(); rank += max(1, all.size()/n) {
			found, err := one.collect(nil, rank, 1)
			if err != nil {
				return nil, err
			}
			names = append(names, found[0].name)
		}
	}
	return names, nil
}

// member returns the series alone as members (see reader).
func (o *overflowNames) member() []bool {
	members := make([]bool, len(o.reader.series))
	members[o.series] = true
	return members
}

// addTotals adds the number of events within the summary's range to the totals of their groups. It drops the names that
// have none.
func (o *overflowNames) addTotals(totals map[string]uint64, s *summary) error {
	var kept []string
	for _, name := range o.names {
		if o.counted[name] {
			continue
		}
		n, err := o.count(name, []int64{o.bounds[0], o.bounds[len(o.bounds)-1]})
		if err != nil {
			return err
		}
		if n[0] > 0 {
			totals[s.key(o.tag, name)] += n[0]
			kept = append(kept, name)
		}
	}
	o.names = kept
	return nil
}

// count counts the events of a name between each two neighbouring bounds.
func (o *overflowNames) count(name string, bounds []int64) ([]uint64, error) {
	n := make([]uint64, len(bounds)-1)
	at := make([]named, len(bounds))
	for i, time := range bounds {
		at[i] = named{name, entry{Key: Key{Time: time}}}
	}
	for _, run := range o.recent[o.series] {
		for i := range n {
			n[i] += uint64(len(part(run, at[i], at[i+1])))
		}
	}
	if o.namesRoot.isEmpty() {
		return n, nil
	}
	return n, countBetween(&o.nameNodes, &o.namesRoot, at, len(o.reader.series), func(e bucketEvents) {
		if e.series == o.series && 0 < e.bound && e.bound < len(bounds) {
			n[e.bound-1] += e.n
		}
	})
}
