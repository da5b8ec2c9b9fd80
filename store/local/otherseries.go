package local

import (
	"context"
	"slices"
)

// A merchant whose visitors make up more than maxSeries names has events of which the index knows
// the tag, but not the name. What asks for such a name, or sorts by name, is found by looking at these
// events one by one: exact, but in time that grows with their number.

// scanStep is how many entries are looked at before applying may go on.
const scanStep = 4096

// scanPage does for such a merchant what reader.page does for the others, as of the chunk upTo.
func (e *Engine) scanPage(ctx context.Context, m merchantKey, s *selection, upTo uint64) (total uint64, page []entry, err error) {
	sizes := map[string]uint64{}
	err = e.scan(ctx, m, s, upTo, func(group string, _ entry) { sizes[group]++ })
	if err != nil {
		return 0, nil, err
	}
	total, stretches := s.stretches(sizes)
	seen := map[string]uint64{}
	found := map[string][]entry{}
	err = e.scan(ctx, m, s, upTo, func(group string, at entry) {
		i := seen[group]
		seen[group]++
		for _, run := range stretches {
			if run.group == group && run.from <= i && i < run.to {
				found[group] = append(found[group], at)
			}
		}
	})
	if err != nil {
		return 0, nil, err
	}
	for _, run := range stretches {
		if s.newestFirst() {
			slices.Reverse(found[run.group])
		}
		page = append(page, found[run.group]...)
	}
	return total, page, nil
}

// scan yields the selected entries in the order of time.
func (e *Engine) scan(ctx context.Context, m merchantKey, s *selection, upTo uint64, yield func(group string, at entry)) error {
	for from := s.lo; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var step []entry
		var names []string
		var doubtful []bool
		err := e.index.view(m, func(r *reader) (err error) {
			names = r.series
			step, doubtful, err = r.after(s, from, scanStep)
			return err
		})
		if err != nil || len(step) == 0 {
			return err
		}
		from = step[len(step)-1].entryKey
		from.index++
		step = slices.DeleteFunc(step, func(at entry) bool { return at.seq > upTo }) // committed after the query was
		series, err := e.seriesOf(step, names, doubtful)
		if err != nil {
			return err
		}
		for i, at := range step {
			if group, ok := s.takes(series[i]); ok {
				yield(group, at)
			}
		}
	}
}

// seriesOf returns the series of each entry; those of doubtful ones it reads from the events.
func (e *Engine) seriesOf(entries []entry, names []string, doubtful []bool) ([]string, error) {
	series := make([]string, len(entries))
	var unknown []wanted
	for i, at := range entries {
		series[i] = names[at.series]
		if doubtful[at.series] {
			unknown = append(unknown, wanted{at.position, i})
		}
	}
	err := e.readEvents(unknown, func(w wanted, event chunkEvent) { series[w.i] = string(event.series) })
	return series, err
}

// after returns up to limit of the selection's entries from k on: those of the series that it takes, and of the doubtful
// ones.
func (r *reader) after(s *selection, k entryKey, limit uint64) (entries []entry, doubtful []bool, err error) {
	groups, doubtful := r.groups(s)
	series := slices.Clone(doubtful)
	for _, members := range groups {
		for id, member := range members {
			series[id] = series[id] || member
		}
	}
	earlier, err := r.before(k)
	if err != nil {
		return nil, nil, err
	}
	all, err := r.before(s.hi)
	if err != nil {
		return nil, nil, err
	}
	from, to := sum(earlier, series), sum(all, series)
	entries, err = r.slice(nil, series, from, min(from+limit, to))
	return entries, doubtful, err
}
