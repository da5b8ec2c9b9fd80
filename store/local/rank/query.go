package rank

import (
	"context"
	"slices"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Page returns the positions of the selection's page, in the order of the listing, and the number of all selected events.
// Both are as of one moment. When the time range has events of an uncounted series (reader.sections), it returns only
// counted false: then the caller has to find the page with Candidates.
func (x *Index) Page(
	ctx context.Context, m codec.MerchantKey, s *Selection,
) (total uint64, page []codec.Position, counted bool, err error) {
	counted = true // view does not call read for a merchant without events
	err = x.view(ctx, m, func(r *reader) (err error) {
		var entries []entry
		total, entries, counted, err = r.page(s)
		page = make([]codec.Position, len(entries))
		for i, e := range entries {
			page[i] = e.Position
		}
		return err
	})
	return total, page, counted, err
}

// Candidate is an event that is selected, or may be.
type Candidate struct {
	Key
	Series   string
	Overflow bool // Series is an overflow series, so only the event's name decides whether and where it is listed
}

// Candidates returns up to limit candidates of a selection, in the order of time, beginning with the key from.
func (x *Index) Candidates(
	ctx context.Context, m codec.MerchantKey, s *Selection, from Key, limit uint64,
) (found []Candidate, err error) {
	err = x.view(ctx, m, func(r *reader) error {
		entries, uncounted, err := r.candidates(s, from, limit)
		if err != nil {
			return err
		}
		found = make([]Candidate, len(entries))
		for i, e := range entries {
			found[i] = Candidate{e.Key, r.series[e.series], uncounted[e.series]}
		}
		return nil
	})
	return found, err
}

func (r *reader) page(s *Selection) (total uint64, page []entry, counted bool, err error) {
	low, err := r.before(s.lo)
	if err != nil {
		return 0, nil, false, err
	}
	high, err := r.before(s.hi)
	if err != nil {
		return 0, nil, false, err
	}
	sections, uncounted := r.sections(s)
	for id := range uncounted {
		if uncounted[id] && high[id] > low[id] {
			return 0, nil, false, nil
		}
	}
	sizes := map[string]uint64{}
	for section, members := range sections {
		for id, member := range members {
			if member {
				sizes[section] += high[id] - low[id]
			}
		}
	}
	total, runs := s.Runs(sizes)
	for _, run := range runs {
		members := sections[run.Section]
		var earlier uint64
		for id, member := range members {
			if member {
				earlier += low[id]
			}
		}
		start := len(page)
		if page, err = r.appendRun(page, members, earlier+run.From, earlier+run.To); err != nil {
			return 0, nil, false, err
		}
		if s.NewestFirst() {
			slices.Reverse(page[start:])
		}
	}
	return total, page, true, nil
}

func (r *reader) candidates(s *Selection, from Key, limit uint64) (entries []entry, uncounted []bool, err error) {
	sections, uncounted := r.sections(s)
	members := slices.Clone(uncounted)
	for _, section := range sections {
		for id, member := range section {
			members[id] = members[id] || member
		}
	}
	earlier, err := r.before(from)
	if err != nil {
		return nil, nil, err
	}
	upTo, err := r.before(s.hi)
	if err != nil {
		return nil, nil, err
	}
	first, end := sum(earlier, members), sum(upTo, members)
	entries, err = r.appendRun(nil, members, first, min(first+limit, end))
	return entries, uncounted, err
}

// sections returns the members of each section of the selection. It also returns the uncounted series: overflow series
// whose events may be only partly selected, or in different sections, so that their counts do not help.
func (r *reader) sections(s *Selection) (sections map[string][]bool, uncounted []bool) {
	sections = map[string][]bool{}
	uncounted = make([]bool, len(r.series))
	known := map[store.TagID]int{} // for each tag: how many of the selected names have a series
	for id, series := range r.series {
		section, ok := s.Section(series)
		if !ok {
			continue
		}
		tag, name := codec.SplitSeries([]byte(series))
		if name == "" && (s.names != nil || s.SortBy == store.ByName) {
			uncounted[id] = true
			continue
		}
		known[tag]++
		if sections[section] == nil {
			sections[section] = make([]bool, len(r.series))
		}
		sections[section][id] = true
	}
	for id, series := range r.series {
		// The events of a name that has a series are never in the tag's overflow series. So when all selected names have one,
		// the overflow series has no selected events.
		if tag, _ := codec.SplitSeries([]byte(series)); s.names != nil && known[tag] == len(s.names) {
			uncounted[id] = false
		}
	}
	return sections, uncounted
}
