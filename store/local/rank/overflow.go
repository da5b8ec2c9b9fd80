package rank

import (
	"maps"
	"slices"
	"sort"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// overflowNames counts events of one overflow series by name, with its segments.
type overflowNames struct {
	tag      string
	segments []*segmentReader
	bounds   []int64  // of the buckets
	names    []string // the names to count: none of them is counted in the tree
	counted  map[string]bool
}

// overflow returns what counts the events of a merchant's overflow series by name, if the summary needs that. n has the
// number of events within the range, by series.
func (s *summary) overflow(r keptReader, n []uint64) (all []*overflowNames, err error) {
	if s.names == nil && s.query.By != store.GroupByName {
		return nil, nil
	}
	found := map[uint32]*overflowNames{}
	for id, series := range r.series {
		tag, name := codec.SplitSeries(series)
		if _, ok := s.section(series); !ok || id == 0 || name != "" || n[id] == 0 {
			continue
		}
		o := &overflowNames{tag: tag, bounds: s.boundsOf(r), counted: map[string]bool{}}
		found[uint32(id)] = o
		for _, other := range r.series {
			if t, name := codec.SplitSeries(other); t == tag && codec.IsBot(other) == codec.IsBot(series) {
				o.counted[name] = true
			}
		}
		if s.names != nil {
			o.names = slices.Sorted(maps.Keys(s.names))
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	segments, err := r.openSegments(func(segment *segment) bool { return found[segment.tag] != nil })
	if err != nil {
		return nil, err
	}
	for _, segment := range segments {
		found[segment.tag].segments = append(found[segment.tag].segments, segment)
	}
	return slices.Collect(maps.Values(found)), nil
}

// Each candidate for a group is counted in each segment. So the segments of a summary have at most
// about maxCandidates of them together: a summary of one merchant finds the same groups as ever, and one of a hundred
// merchants with made-up names only the largest.
const (
	maxCandidates = 500
	minCandidates = 4 // of a segment
	maxQuantiles  = 50
)

// appendFrequent appends names that may have many events within the buckets, about limit for each segment. Where a segment
// has fewer events within the range, these are the names of all of them. Else they are those of its events at so many
// quantiles, in the order of names: names that have at least that share of its events are always among them. So a flood of
// made-up names does not hide the names of a shop.
func (o *overflowNames) appendFrequent(names []string, limit int) ([]string, error) {
	lo, hi := o.bounds[0], o.bounds[len(o.bounds)-1]
	quantiles := min(limit, maxQuantiles)
	for _, segment := range o.segments {
		from, to, err := segment.window(lo, hi)
		if err != nil {
			return nil, err
		}
		var ranks []uint32
		if to-from <= limit {
			if ranks, err = segment.ranks(from, to); err != nil {
				return nil, err
			}
			slices.Sort(ranks)
		} else {
			for rank := 0; rank < segment.n; rank += max(1, segment.n/quantiles) {
				ranks = append(ranks, uint32(rank))
			}
		}
		for _, rank := range ranks {
			e, err := segment.event(int(rank))
			if err != nil {
				return nil, err
			}
			names = append(names, e.name)
		}
	}
	return names, nil
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
	for _, segment := range o.segments {
		if err := segment.addCounts(n, name, bounds); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// addCounts adds to n the number of events of a name between each two neighbouring bounds. It skips empty buckets.
func (s *segmentReader) addCounts(n []uint64, name string, bounds []int64) error {
	at, err := s.rank(&named{name, entry{Key: s.from(Key{Time: bounds[0]})}})
	for err == nil && at < s.n {
		var e named
		if e, err = s.event(at); err != nil {
			break
		}
		bucket := sort.Search(len(bounds), func(i int) bool { return bounds[i] > e.Time }) - 1
		if e.name != name || bucket == len(n) {
			break
		}
		from := at
		at, err = s.rankFrom(from, &named{name, entry{Key: Key{Time: bounds[bucket+1]}}})
		n[bucket] += uint64(at - from)
	}
	return err
}
