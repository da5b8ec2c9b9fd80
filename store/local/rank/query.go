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

// Page returns the positions of the selection's page, in the order of the listing, and the number of all selected events.
// Both are as of one moment.
func (x *Index) Page(
	ctx context.Context, m codec.MerchantKey, s *Selection,
) (total uint64, page []codec.Position, err error) {
	err = x.view(ctx, m, func(r *reader) error {
		var events []entry
		total, events, err = r.page(s)
		page = make([]codec.Position, len(events))
		for i, e := range events {
			page[i] = e.Position
		}
		return err
	})
	return total, page, err
}

// page finds a page. There are three ways:
//
//   - The counted trees suffice, if no events of overflow series are selected by name or sorted by name. So it is for
//     merchants with few series.
//   - With a names filter, the events of a name in each run are a source.
//   - Without, when all names are sorted, each run is a source.
func (r *reader) page(s *Selection) (total uint64, page []entry, err error) {
	q := pageQuery{reader: r, Selection: s, selected: make([]uint64, len(r.series))}
	for _, root := range r.trees {
		low, n := make([]uint64, len(r.series)), make([]uint64, len(r.series))
		if err := errors.Join(r.addBefore(low, root, entry{Key: s.lo}), r.addBefore(n, root, entry{Key: s.hi})); err != nil {
			return 0, nil, err
		}
		for id := range n {
			n[id] -= low[id]
			q.selected[id] += n[id]
		}
		q.earlier, q.within = append(q.earlier, low), append(q.within, n)
	}
	q.findSections()
	switch {
	case len(q.overflow) > 0 && s.names != nil:
		return q.pageOfNames()
	case len(q.overflow) > 0 && s.SortBy == store.ByName:
		return q.pageByName()
	default:
		return q.pageOfSections(map[string]sources{})
	}
}

// pageQuery is a query for one page.
type pageQuery struct {
	*reader
	*Selection
	earlier, within [][]uint64 // by tree and series: the number of events before the time range, and within it
	selected        []uint64   // by series: the number of events within it, over all trees

	sections map[string][]bool // the members (see reader) of each section, among the counted series with events in the time range
	overflow []uint32          // overflow series with events in the time range, if the query needs their names
}

// findSections finds the sections of the selection in the counted trees.
func (q *pageQuery) findSections() {
	q.sections = map[string][]bool{}
	for id, series := range q.series {
		section, ok := q.section(series)
		if !ok || q.selected[id] == 0 {
			continue
		}
		if _, name := codec.SplitSeries(series); name == "" && (q.names != nil || q.SortBy == store.ByName) {
			q.overflow = append(q.overflow, uint32(id))
			continue
		}
		if q.sections[section] == nil {
			q.sections[section] = make([]bool, len(q.series))
		}
		q.sections[section][id] = true
	}
}

// appendTreeSources appends a source for each tree with events of the sections. The sections are sorted.
func (q *pageQuery) appendTreeSources(all []source, sections ...string) []source {
	for i, root := range q.trees {
		s := &treeSource{pages: &q.pages, series: len(q.series), root: root, byName: q.names == nil && len(q.overflow) > 0}
		end := 0
		for _, name := range sections {
			members := q.sections[name]
			if n := int(sum(q.within[i], members)); n > 0 {
				s.sections = append(s.sections, treeSection{name, members, sum(q.earlier[i], members), end, end + n})
				end += n
			}
		}
		if end > 0 {
			all = append(all, s)
		}
	}
	return all
}

// pageOfSections finds a page section by section. further has more sources of sections besides the counted trees.
func (q *pageQuery) pageOfSections(further map[string]sources) (total uint64, page []entry, err error) {
	sections := further
	for name := range q.sections {
		sections[name] = sources{q.appendTreeSources(sections[name].all, name), byKey}
	}
	names := slices.Sorted(maps.Keys(sections))
	if !q.Asc {
		slices.Reverse(names)
	}
	skip, left := q.Offset, q.Limit
	for _, name := range names {
		n := sections[name].size()
		total += uint64(n)
		if skip >= n || left == 0 {
			skip -= min(skip, n)
			continue
		}
		take := min(left, n-skip)
		from := skip
		if q.listsNewestFirst() {
			from = n - skip - take
		}
		found, err := sections[name].collect(from, from+take)
		if err != nil {
			return 0, nil, err
		}
		if q.listsNewestFirst() {
			slices.Reverse(found)
		}
		page = append(page, found...)
		skip, left = 0, left-take
	}
	return total, page, nil
}

// pageOfNames finds a page of a selection with a names filter.
func (q *pageQuery) pageOfNames() (total uint64, page []entry, err error) {
	further := map[string]sources{}
	for name := range q.names {
		if !slices.ContainsFunc(q.overflow, func(id uint32) bool { return !q.counts(id, name) }) {
			continue
		}
		section := ""
		if q.SortBy == store.ByName {
			section = name
		}
		s := further[section]
		s.compare = byKey
		if s.all, err = q.appendNameSources(s.all, name); err != nil {
			return 0, nil, err
		}
		further[section] = s
	}
	return q.pageOfSections(further)
}

// appendNameSources appends a source for each run with events of a name in the time range.
func (q *pageQuery) appendNameSources(all []source, name string) ([]source, error) {
	from, to := entry{Key: q.lo, name: name}, entry{Key: q.hi, name: name}
	members := q.overflowOf(q.series)
	for _, r := range q.runs {
		if !r.overlaps(q.lo, q.hi) {
			continue
		}
		earlier, upTo := make([]uint64, len(q.series)), make([]uint64, len(q.series))
		if err := errors.Join(q.pages.addBefore(earlier, &r.root, from), q.pages.addBefore(upTo, &r.root, to)); err != nil {
			return nil, err
		}
		section := treeSection{name: name, members: members, earlier: sum(earlier, members)}
		if section.end = int(sum(upTo, members) - section.earlier); section.end > 0 {
			all = append(all, q.runSource(r, section))
		}
	}
	return all, nil
}

// runSource returns a section of a run.
func (r *reader) runSource(of *run, section treeSection) source {
	return &treeSource{pages: &r.pages, series: len(r.series), root: &of.root, sections: []treeSection{section}}
}

// pageByName finds a page of all names, sorted by name.
func (q *pageQuery) pageByName() (total uint64, page []entry, err error) {
	s := sources{q.appendTreeSources(nil, slices.Sorted(maps.Keys(q.sections))...), byName}
	all := s.size()
	for _, id := range q.overflow {
		all += int(q.selected[id])
	}
	if s.all, err = q.appendRuns(s.all); err != nil {
		return 0, nil, err
	}
	if s.size() != all {
		return 0, nil, errSelected
	}
	if q.Offset >= all {
		return uint64(all), nil, nil
	}
	from, to := q.Offset, q.Offset+min(q.Limit, all-q.Offset)
	if q.Asc {
		page, err = s.newestFirst(from, to)
		return uint64(all), page, err
	}
	page, err = s.collect(all-to, all-from) // the names descend and the events of each are newest first: all the other way round
	slices.Reverse(page)
	return uint64(all), page, err
}

// appendRuns appends what is within the time range of each run.
func (q *pageQuery) appendRuns(all []source) ([]source, error) {
	members := q.overflowOf(q.series)
	for _, r := range q.runs {
		if !r.overlaps(q.lo, q.hi) {
			continue
		}
		var of source
		if r.within(q.lo, q.hi) {
			of = q.runSource(r, treeSection{members: members, end: int(r.root.counts.of(members))})
		} else {
			var err error
			if of, err = q.readRange(r, members); err != nil {
				return nil, err
			}
		}
		if of.size() > 0 {
			all = append(all, of)
		}
	}
	return all, nil
}

// newestFirst returns the events with from ≤ place < to, where names ascend and the events of each name are newest first.
// The sources must be in the order byName, and have so many events.
//
// Each name has the same places as in the sources' order. Only within the name the order is the other way round. So the
// events of a name that lies completely between the bounds are the same in both orders, and are reversed. Of the first and
// the last name, others may have to be collected.
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
