package rank

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Page returns the positions of a page, in the order of the listing, and the number of all selected events, as of one
// moment.
func (x *Index) Page(
	ctx context.Context, m store.MerchantKey, s *Selection,
) (total uint64, page []store.Position, err error) {
	err = x.view(ctx, m, func(r *reader) error {
		var events []entry
		total, events, err = r.page(s)
		page = make([]store.Position, len(events))
		for i, e := range events {
			page[i] = e.Position
		}
		return err
	})
	return total, page, err
}

// page finds a page in the counted trees. These have no names of overflow events: where they are needed, they come from the
// runs.
func (r *reader) page(s *Selection) (total uint64, page []entry, err error) {
	q := pageQuery{reader: r, Selection: s, sections: map[string][]bool{}, sizes: map[string]int{}}
	all := sources{compare: byKey}
	if s.SortBy == store.ByName {
		all.compare = byName
	}
	overflow, err := q.addTrees(&all)
	switch {
	case err != nil || len(q.overflow) == 0:
	case s.names != nil:
		err = q.addNames(&all)
	default:
		trees := all.size()
		if err = q.addRuns(&all); err == nil && all.size() != trees+overflow {
			err = errSelected
		}
	}
	n := all.size()
	if err != nil || s.Offset >= n {
		return uint64(n), nil, err
	}
	from, to := s.Offset, s.Offset+min(s.Limit, n-s.Offset)
	switch {
	case !s.Asc: // also the names: all the other way round
		page, err = all.collect(n-to, n-from)
		slices.Reverse(page)
	case s.SortBy == store.ByName && len(q.overflow) > 0 && s.names == nil:
		page, err = all.newestFirst(from, to)
	case s.SortBy == store.ByName:
		start := 0
		for _, name := range slices.Sorted(maps.Keys(q.sizes)) {
			end := start + q.sizes[name]
			found, failed := all.collect(start+end-min(to, end), start+end-max(from, start)) // nothing, if it ends before it begins
			slices.Reverse(found)
			page, err = append(page, found...), errors.Join(err, failed)
			start = end
		}
	default:
		page, err = all.collect(from, to)
	}
	return uint64(n), page, err
}

// pageQuery is a query for one page.
type pageQuery struct {
	*reader
	*Selection
	sections map[string][]bool // the members (see reader) of each section, among the counted series with events in the time range
	sizes    map[string]int    // the number of selected events of each section, without those of addRuns
	overflow []uint32          // overflow series with events in the time range, if the query needs their names
}

// addTrees adds a source for each tree with events of the selection. It returns how many events of overflow series they
// lack.
func (q *pageQuery) addTrees(to *sources) (overflow int, err error) {
	earlier, within := make([][]uint64, len(q.trees)), make([][]uint64, len(q.trees)) // by tree and series
	selected := make([]uint64, len(q.series))
	for i, root := range q.trees {
		earlier[i], within[i] = make([]uint64, len(q.series)), make([]uint64, len(q.series))
		if err := errors.Join(q.addBefore(earlier[i], root, entry{Key: q.lo}), q.addBefore(within[i], root, entry{Key: q.hi})); err != nil {
			return 0, err
		}
		for id := range selected {
			within[i][id] -= earlier[i][id]
			selected[id] += within[i][id]
		}
	}
	for id, series := range q.series {
		section, ok := q.section(series)
		if !ok || selected[id] == 0 {
			continue
		}
		if _, name := codec.SplitSeries(series); name == "" && (q.names != nil || q.SortBy == store.ByName) {
			q.overflow = append(q.overflow, uint32(id))
			overflow += int(selected[id])
			continue
		}
		if q.sections[section] == nil {
			q.sections[section] = make([]bool, len(q.series))
		}
		q.sections[section][id] = true
	}
	names := slices.Sorted(maps.Keys(q.sections))
	for i, root := range q.trees {
		s := q.source(root)
		for _, name := range names {
			members := q.sections[name]
			n := sum(within[i], members)
			s.add(name, members, sum(earlier[i], members), n)
			q.sizes[name] += int(n)
		}
		to.add(s)
	}
	return overflow, nil
}

// addNames adds sources for the events in the runs that have a name of the filter and are in the time range.
func (q *pageQuery) addNames(to *sources) error {
	members := q.overflowOf(q.series)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(q.names)), func(name string) bool {
		return !slices.ContainsFunc(q.overflow, func(id uint32) bool { return !q.counts(id, name) })
	})
	for _, r := range q.runs {
		if !r.overlaps(q.lo, q.hi) {
			continue
		}
		s := q.source(&r.root)
		for _, name := range names {
			earlier, upTo := make([]uint64, len(q.series)), make([]uint64, len(q.series))
			if err := errors.Join(q.addBefore(earlier, &r.root, entry{Key: q.lo, name: name}),
				q.addBefore(upTo, &r.root, entry{Key: q.hi, name: name})); err != nil {
				return err
			}
			n := sum(upTo, members) - sum(earlier, members)
			s.add(name, members, sum(earlier, members), n)
			q.sizes[name] += int(n)
			if q.SortBy != store.ByName { // the events of several names are not in the order of keys
				to.add(s)
				s = q.source(&r.root)
			}
		}
		to.add(s)
	}
	return nil
}

// addRuns adds what is within the time range of each run.
func (q *pageQuery) addRuns(to *sources) error {
	members := q.overflowOf(q.series)
	for _, r := range q.runs {
		switch {
		case !r.overlaps(q.lo, q.hi):
		case r.within(q.lo, q.hi):
			to.add(q.runSource(r, members))
		default:
			of, err := q.readRange(r, members)
			if err != nil {
				return err
			}
			to.add(of)
		}
	}
	return nil
}

// source returns a source of events of a tree, to which sections are added.
func (q *pageQuery) source(root *child) *treeSource {
	return &treeSource{pages: &q.pages, series: len(q.series), root: root, byName: q.SortBy == store.ByName}
}

// runSource returns all events of some series in a run.
func (r *reader) runSource(of *run, members []bool) *treeSource {
	s := &treeSource{pages: &r.pages, series: len(r.series), root: &of.root}
	s.add("", members, 0, of.root.counts.of(members))
	return s
}

// newestFirst returns the events at the places from to to-1 of an order in which names ascend and the events of each name
// are newest first. The sources must be in the order byName, and have at least to events.
//
// In the order of the sources, a name has the same places, but its oldest events come first. So the events of a name whose
// places are all in the range are collected and reversed. Only of the first and the last name other events may be needed.
func (s sources) newestFirst(from, to int) (page []entry, err error) {
	if page, err = s.collect(from, to); err != nil {
		return nil, err
	}
	for i, next := 0, 0; i < len(page); i = next {
		for next < len(page) && page[next].name == page[i].name {
			next++
		}
		if i == 0 || next == len(page) {
			start, end, err := s.bounds(page[i].name)
			if err != nil {
				return nil, err
			}
			if start < from || end > to {
				found, err := s.collect(start+end-from-next, start+end-from-i)
				if err != nil {
					return nil, err
				}
				copy(page[i:next], found)
			}
		}
		slices.Reverse(page[i:next])
	}
	return page, nil
}

// bounds returns where the events of a name begin and end.
func (s sources) bounds(name string) (start, end int, err error) {
	least := entry{Key: Key{Time: math.MinInt64}, name: name}
	if start, err = s.below(&least); err != nil {
		return 0, 0, err
	}
	least.name += "\x00" // the least name that is greater
	end, err = s.below(&least)
	return start, end, err
}

// Selection is a query in the terms of the index. Its events are listed section by section. When they are sorted by name,
// the events of each name are a section; when they are sorted by time, all events are one section.
type Selection struct {
	store.Query
	names  map[string]bool // nil: all
	lo, hi Key             // lo ≤ key < hi
}

// NewSelection converts a query.
func NewSelection(q store.Query) *Selection {
	s := &Selection{Query: q, lo: Key{Time: math.MinInt64}, hi: Key{Time: math.MaxInt64}}
	if q.From != nil {
		s.lo.Time = q.From.UnixMicro()
		if q.From.Nanosecond()%1000 != 0 {
			s.lo.Time++ // events are stored to the microsecond, so the first one in the range is in the next microsecond
		}
	}
	if q.To != nil {
		s.hi.Time = max(q.To.UnixMicro()+1, s.lo.Time) // a range that ends before it starts is empty
	}
	if q.Names != nil {
		s.names = make(map[string]bool, len(q.Names))
		for _, n := range q.Names {
			s.names[n] = true
		}
	}
	return s
}

// section returns the section of a series; ok is false when none of its events are selected. For an overflow series, ok
// means that some of its events may be selected.
func (s *Selection) section(series string) (section string, ok bool) {
	tag, name := codec.SplitSeries(series)
	if s.Tag != "" && string(s.Tag) != tag || s.names != nil && name != "" && !s.names[name] ||
		s.Bot != nil && codec.IsBot(series) != *s.Bot {
		return "", false
	}
	if s.SortBy == store.ByName {
		return name, true
	}
	return "", true
}
