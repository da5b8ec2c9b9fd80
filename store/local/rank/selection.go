package rank

import (
	"math"
	"slices"

	"mtagd/store"
	"mtagd/store/local/codec"
)

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

// newestFirst reports whether the events of a section are listed newest first.
func (s *Selection) newestFirst() bool { return s.SortBy == store.ByName || !s.Asc }

// run is the selected events of a section with from ≤ rank < to. Ranks count from 0, in the order of time.
type run struct {
	section  string
	from, to uint64
}

// runs returns the runs of the page, in the order of the listing, and the number of all selected events. sizes has the
// number of selected events of each section.
func (s *Selection) runs(sizes map[string]uint64) (total uint64, page []run) {
	sections := make([]string, 0, len(sizes))
	for section, n := range sizes {
		sections = append(sections, section)
		total += n
	}
	slices.Sort(sections)
	if !s.Asc {
		slices.Reverse(sections)
	}
	skip, left := uint64(s.Offset), uint64(s.Limit)
	for _, section := range sections {
		n := sizes[section]
		if skip >= n {
			skip -= n
			continue
		}
		if left == 0 {
			break
		}
		take := min(left, n-skip)
		from := skip
		if s.newestFirst() {
			from = n - skip - take
		}
		page = append(page, run{section, from, from + take})
		skip, left = 0, left-take
	}
	return total, page
}
