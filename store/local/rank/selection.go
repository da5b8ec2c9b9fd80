package rank

import (
	"math"

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
