package local

import (
	"context"
	"math"
	"slices"

	"mtagd/store"
)

// Events implements store.Events. It waits until the index has what was committed when it was
// called, counts and finds the page's entries in the tree, and then reads their events from the chunks.
func (e *Engine) Events(ctx context.Context, q store.Query) (store.Page, error) {
	m, err := newMerchantKey(q.Merchant)
	if err != nil {
		return store.Page{}, err
	}
	committed, _ := e.committer.state()
	if err := e.index.wait(committed); err != nil {
		return store.Page{}, err
	}
	s := newSelection(q)
	var total uint64
	var found []entry
	counted := true
	err = e.index.view(m, func(r *reader) (err error) {
		total, found, counted, err = r.page(s)
		return err
	})
	if err == nil && !counted {
		total, found, err = e.scanPage(ctx, m, s, committed)
	}
	if err != nil {
		return store.Page{}, err
	}
	page := store.Page{Events: make([]store.Event, len(found)), Total: int(total)}
	events := make([]wanted, len(found))
	for i, entry := range found {
		events[i] = wanted{entry.position, i}
	}
	if err := e.readEvents(events, func(w wanted, event chunkEvent) {
		page.Events[w.i] = event.listed(w.position)
	}); err != nil {
		return store.Page{}, err
	}
	return page, nil
}

// selection is a query in the terms of the index.
type selection struct {
	store.Query
	names  map[string]bool // nil: all
	lo, hi entryKey        // lo ≤ key < hi
}

func newSelection(q store.Query) *selection {
	s := &selection{Query: q, lo: entryKey{time: math.MinInt64}, hi: entryKey{time: math.MaxInt64}}
	if !q.From.IsZero() {
		s.lo.time = q.From.UnixMicro()
		if q.From.Nanosecond()%1000 != 0 {
			s.lo.time++ // events are kept to the microsecond, and From itself is not before it
		}
	}
	if !q.To.IsZero() {
		s.hi.time = max(q.To.UnixMicro()+1, s.lo.time) // a range that ends before it starts is empty
	}
	if q.Names != nil {
		s.names = make(map[string]bool, len(q.Names))
		for _, n := range q.Names {
			s.names[n] = true
		}
	}
	return s
}

// takes reports whether events of a series are selected, those of an other series perhaps not all, and the
// group they are listed in: events sorted by name are listed name by name, events sorted by time in
// one group.
func (s *selection) takes(series string) (group string, ok bool) {
	tag, name := splitSeries([]byte(series))
	if s.Tag != "" && s.Tag != tag || s.names != nil && name != "" && !s.names[name] {
		return "", false
	}
	if s.SortBy == store.ByName {
		return name, true
	}
	return "", true
}

// newestFirst reports the order within a group.
func (s *selection) newestFirst() bool { return s.SortBy == store.ByName || !s.Asc }

// stretch is a run of a group's selected events: those from the from-th to before the to-th in the
// order of time.
type stretch struct {
	group    string
	from, to uint64
}

// stretches finds the page among groups of known sizes.
func (s *selection) stretches(sizes map[string]uint64) (total uint64, page []stretch) {
	groups := make([]string, 0, len(sizes))
	for g, n := range sizes {
		groups = append(groups, g)
		total += n
	}
	slices.Sort(groups)
	if !s.Asc {
		slices.Reverse(groups)
	}
	skip, want := uint64(s.Offset), uint64(s.Limit)
	for _, g := range groups {
		n := sizes[g]
		if skip >= n {
			skip -= n
			continue
		}
		if want == 0 {
			break
		}
		take := min(want, n-skip)
		from := skip
		if s.newestFirst() {
			from = n - skip - take
		}
		page = append(page, stretch{g, from, from + take})
		skip, want = 0, want-take
	}
	return total, page
}
