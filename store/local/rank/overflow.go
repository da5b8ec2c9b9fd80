package rank

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// overflowNames counts events of one overflow series by name.
type overflowNames struct {
	*reader
	series uint32
	tag    string
	bounds []int64  // of the buckets
	names  []string // the names to count
}

// countsNames reports whether the summary needs the names of events of overflow series.
func (s *summary) countsNames() bool { return s.names != nil || s.query.By == store.GroupByName }

// overflow returns what counts the events of a merchant's overflow series by name, if the summary needs that. n has the
// number of events within the range, by series.
func (s *summary) overflow(r keptReader, n []uint64) (all []*overflowNames) {
	if !s.countsNames() {
		return nil
	}
	for id, series := range r.series {
		tag, _ := codec.SplitSeries(series)
		if _, ok := s.section(series); !ok || !isOverflow(series) || n[id] == 0 {
			continue
		}
		o := &overflowNames{reader: r.reader, series: uint32(id), tag: tag, bounds: s.boundsOf(r)}
		all = append(all, o)
		if s.names != nil {
			o.names = slices.Sorted(maps.Keys(s.names))
		}
	}
	return all
}

// maxSamples is about how many events a summary looks at to find candidates for groups.
const maxSamples = 2000

// maxCandidates is how many names of an overflow series are candidates.
const maxCandidates = 2 * store.MaxSummaryGroups

// appendFrequent appends names that may have many events. It looks at about n events, at equal distances in the order of
// names of each run, and takes the names that it meets most often, at least twice. If there are not more events, it takes
// all names. So a flood of made-up names does not hide the names of a shop. It begins at another place in each run: so it
// also meets a name that has few events in each run, but many in all of them.
func (o *overflowNames) appendFrequent(names []string, n int) ([]string, error) {
	members := make([]bool, len(o.reader.series))
	members[o.series] = true
	all := sources{compare: byName}
	for _, r := range o.runs {
		all.add(o.runSource(r, members))
	}
	step := max(1, all.size()/n)
	met := map[string]int{}
	for i, one := range all.all {
		for rank := i * step / len(all.all); rank < one.size(); rank += step {
			found, err := one.collect(nil, rank, 1)
			if err != nil {
				return nil, err
			}
			met[found[0].name]++
		}
	}
	candidates := slices.SortedFunc(maps.Keys(met), func(a, b string) int { return cmp.Or(met[b]-met[a], strings.Compare(a, b)) })
	if step > 1 {
		candidates = slices.DeleteFunc(candidates[:min(len(candidates), maxCandidates)], func(name string) bool { return met[name] < 2 })
	}
	return append(names, candidates...), nil
}

// addTotals adds the events within the summary's range to the totals of their groups. It drops names without any.
func (o *overflowNames) addTotals(totals map[string]uint64, s *summary) error {
	names := slices.DeleteFunc(slices.Clone(o.names), func(name string) bool { return o.counts(o.series, name) })
	n := make([]uint64, len(names))
	if err := o.count(names, []int64{o.bounds[0], o.bounds[len(o.bounds)-1]}, func(name, _ int, more uint64) { n[name] += more }); err != nil {
		return err
	}
	o.names = nil
	for i, name := range names {
		if n[i] > 0 {
			totals[s.key(o.tag, name)] += n[i]
			o.names = append(o.names, name)
		}
	}
	return nil
}

// countedAtOnce is how many places between names and bounds a walk through a run counts.
const countedAtOnce = 10_000

// count counts the events of sorted names between each two neighbouring bounds. use gets the numbers of name and bucket.
func (o *overflowNames) count(names []string, bounds []int64, use func(name, bucket int, n uint64)) error {
	first := 0
	for some := range slices.Chunk(names, max(1, countedAtOnce/len(bounds))) {
		var at []entry
		for _, name := range some {
			for _, time := range bounds {
				at = append(at, entry{Key: Key{Time: time}, name: name})
			}
		}
		for _, r := range o.runs {
			if !r.overlaps(Key{Time: bounds[0]}, Key{Time: bounds[len(bounds)-1]}) {
				continue
			}
			if err := countBetween(&o.pages, &r.root, at, len(o.reader.series), func(bound int, series uint32, n uint64) {
				if bucket := bound % len(bounds); series == o.series && bucket > 0 && bound < len(at) {
					use(first+bound/len(bounds), bucket-1, n)
				}
			}); err != nil {
				return err
			}
		}
		first += len(some)
	}
	return nil
}
