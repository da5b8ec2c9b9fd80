package rank

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Kept is a merchant, and the time (µs since 1970) from which on its events count.
type Kept struct {
	Merchant store.MerchantKey
	From     int64
}

// Summarize counts the events of some merchants (store.Summary).
//
// The cost depends on the numbers of buckets, series, groups, and names in the filter, but not on that of events.
func (x *Index) Summarize(ctx context.Context, merchants []Kept, q *store.SummaryQuery) (store.Summary, error) {
	return newSummary(q).of(ctx, x, merchants)
}

func newSummary(q *store.SummaryQuery) *summary {
	return &summary{query: q, Selection: NewSelection(store.Query{Tag: q.Tag, Names: q.Names, From: q.From, To: q.To, Bot: q.Bot})}
}

func (s *summary) of(ctx context.Context, x *Index, merchants []Kept) (result store.Summary, err error) {
	keys := make([]store.MerchantKey, len(merchants))
	for i, m := range merchants {
		keys[i] = m.Merchant
	}
	err = x.viewAll(ctx, keys, func(readers []*reader) error {
		for i, r := range readers {
			if len(r.trees) > 0 {
				s.readers = append(s.readers, keptReader{r, merchants[i].From})
			}
		}
		if s.bounds == nil {
			if err := s.divide(); len(s.starts) == 0 || err != nil {
				return err
			}
		}
		result, err = s.count(ctx)
		return err
	})
	return result, err
}

// summary makes one summary:
//
//  1. Count the events of the whole range, to choose the groups.
//  2. Count those of each bucket, by group. So the memory does not grow with the number of names.
type summary struct {
	*Selection
	query   *store.SummaryQuery
	readers []keptReader // of the merchants that have events

	starts []time.Time
	bounds []int64        // of the buckets (µs since 1970), within the range of the query; tests set others
	groups map[string]int // the number of each group, from 0
	counts []uint64       // number of events, by bucket and column
}

// keptReader reads the events of a merchant from a time on.
type keptReader struct {
	*reader
	from int64
}

// boundsOf returns the bounds of the buckets for a merchant: an event before the first one does not count.
func (s *summary) boundsOf(r keptReader) []int64 {
	if r.from <= s.bounds[0] {
		return s.bounds
	}
	bounds := slices.Clone(s.bounds)
	for i := range bounds {
		bounds[i] = max(bounds[i], r.from)
	}
	return bounds
}

// The columns of counts: one for each group, and one more for the selected events that are in no group.
func (s *summary) columns() int { return len(s.groups) + 1 }

// count makes the summary.
func (s *summary) count(ctx context.Context) (store.Summary, error) {
	overflow, err := s.chooseGroups(ctx)
	if err != nil {
		return store.Summary{}, err
	}
	s.counts = make([]uint64, (len(s.bounds)-1)*s.columns())
	for _, r := range s.readers {
		if err := r.countBuckets(s.boundsOf(r), s.adder(r)); err != nil {
			return store.Summary{}, err
		}
	}
	for _, o := range overflow {
		if err := ctx.Err(); err != nil {
			return store.Summary{}, err
		}
		if err := s.addOverflow(o); err != nil {
			return store.Summary{}, err
		}
	}
	return s.result(), nil
}

// divide finds the buckets.
func (s *summary) divide() (err error) {
	var first, last *time.Time
	if s.query.From == nil || s.query.To == nil {
		if first, last, err = s.span(); err != nil {
			return err
		}
	}
	var end time.Time
	s.starts, end, err = s.query.Starts(first, last)
	if len(s.starts) == 0 || err != nil {
		return err
	}
	for _, at := range append(slices.Clip(s.starts), end) {
		s.bounds = append(s.bounds, min(max(at.UnixMicro(), s.lo.Time), s.hi.Time))
	}
	if s.query.From == nil {
		s.bounds[0] = s.lo.Time // the first bucket has all earlier events too
	}
	return nil
}

// span returns the times of the first and the last event; nil when there are none.
func (s *summary) span() (first, last *time.Time, err error) {
	least, greatest := int64(math.MaxInt64), int64(math.MinInt64)
	for _, r := range s.readers {
		for _, root := range r.trees {
			k, err := r.last(root)
			if err != nil {
				return nil, nil, err
			}
			if k.Time >= r.from {
				least, greatest = min(least, max(root.first.Time, r.from)), max(greatest, k.Time)
			}
		}
	}
	if least > greatest {
		return nil, nil, nil
	}
	return new(time.UnixMicro(least).UTC()), new(time.UnixMicro(greatest).UTC()), nil
}

// chooseGroups finds the largest groups, and returns the names of overflow series that have to be counted one by one.
func (s *summary) chooseGroups(ctx context.Context) (overflow []*overflowNames, err error) {
	totals := map[string]uint64{} // by key of the group
	for _, r := range s.readers {
		bounds := s.boundsOf(r)
		n := make([]uint64, len(r.series)) // within the range
		if err := r.countBuckets([]int64{bounds[0], bounds[len(bounds)-1]}, func(bound int, series uint32, more uint64) {
			if bound == 1 {
				n[series] += more
			}
		}); err != nil {
			return nil, err
		}
		for id, n := range n {
			if key, ok := s.group(r.series[id]); ok && n > 0 {
				totals[key] += n
			}
		}
		overflow = append(overflow, s.overflow(r, n)...)
	}
	if s.names == nil && len(overflow) > 0 {
		// A name may be counted for one tag or merchant, and be in the overflow series of another.
		names := slices.Collect(maps.Keys(totals))
		for _, o := range overflow {
			if names, err = o.appendFrequent(names, max(1, maxSamples/len(overflow))); err != nil {
				return nil, err
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)
		for _, o := range overflow {
			o.names = names
		}
	}
	for _, o := range overflow {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := o.addTotals(totals, s); err != nil {
			return nil, err
		}
	}
	s.groups = map[string]int{}
	if s.query.By == store.Ungrouped {
		return overflow, nil
	}
	keys := slices.SortedFunc(maps.Keys(totals), func(a, b string) int {
		return cmp.Or(cmp.Compare(totals[b], totals[a]), strings.Compare(a, b))
	})
	for i, key := range keys[:min(len(keys), store.MaxSummaryGroups)] {
		s.groups[key] = i
	}
	return overflow, nil
}

// group returns the key of the group of a series' events. ok is false when the tree does not say how many of its events are
// in which group, or when none are selected.
func (s *summary) group(series string) (key string, ok bool) {
	tag, name := codec.SplitSeries(series)
	if _, ok := s.section(series); !ok || name == "" && (s.names != nil || s.query.By == store.GroupByName) {
		return "", false
	}
	return s.key(tag, name), true
}

func (s *summary) key(tag, name string) string {
	switch s.query.By {
	case store.GroupByName:
		return name
	case store.GroupByTag:
		return tag
	}
	return ""
}

// adder returns a function that adds events of a merchant's counted series to s.counts.
func (s *summary) adder(r keptReader) useCount {
	rest := len(s.groups)
	columns := make([]int, len(r.series)) // by series; -1: not counted
	for id, series := range r.series {
		columns[id] = -1
		if _, name := codec.SplitSeries(series); name != "" || s.names == nil {
			if _, ok := s.section(series); ok && id > 0 {
				columns[id] = rest
			}
		}
		if key, ok := s.group(series); ok && id > 0 {
			if group, ok := s.groups[key]; ok {
				columns[id] = group
			}
		}
	}
	return func(bound int, series uint32, n uint64) {
		if column := columns[series]; column >= 0 && 0 < bound && bound < len(s.bounds) {
			s.counts[(bound-1)*s.columns()+column] += n
		}
	}
}

// addOverflow adds the counts of names of an overflow series. Without a filter, the last column has them already.
func (s *summary) addOverflow(o *overflowNames) error {
	rest := len(s.groups)
	var names []string
	var groups []int
	for _, name := range o.names {
		group, ok := s.groups[s.key(o.tag, name)]
		if !ok {
			group = rest
		}
		if ok || s.names != nil {
			names, groups = append(names, name), append(groups, group)
		}
	}
	return o.count(names, o.bounds, func(name, i int, n uint64) {
		bucket := s.counts[i*s.columns():]
		bucket[groups[name]] += n
		if s.names == nil {
			bucket[rest] -= n
		}
	})
}

// result turns the counts into a summary.
func (s *summary) result() store.Summary {
	sum := store.Summary{Starts: s.starts, All: store.Counts{ByBuckets: make([]int, len(s.bounds)-1)}}
	column := func(at int) (c store.Counts) {
		c.ByBuckets = make([]int, len(s.bounds)-1)
		for i := range c.ByBuckets {
			n := int(s.counts[i*s.columns()+at])
			c.ByBuckets[i] = n
			c.Total += n
			sum.All.ByBuckets[i] += n
		}
		sum.All.Total += c.Total
		return c
	}
	if s.query.By != store.Ungrouped {
		sum.Groups = make([]store.GroupCounts, len(s.groups))
	}
	for key, at := range s.groups {
		sum.Groups[at] = store.GroupCounts{Key: key, Counts: column(at)}
	}
	sum.Other = column(len(s.groups))
	if s.query.By == store.Ungrouped {
		sum.Other = store.Counts{}
	}
	return sum
}
