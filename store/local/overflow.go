package local

import (
	"context"
	"slices"

	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// A merchant with more than rank.MaxSeries series has overflow series: the index knows the tags of their events, but not
// the names. A query for such a name, or sorted by name, reads these events one by one. The result is exact, but the
// time grows with the number of these events.

// overflowScan finds one page by such a scan.
type overflowScan struct {
	engine    *engine
	merchant  codec.MerchantKey
	selection *rank.Selection
	last      uint64 // events of later chunks are left out, so that all steps see the same events
}

// scanStep is how many candidates one step asks for. Between steps the index can apply new events.
const scanStep = 4096

// page returns the events of the page, and the number of all selected events. A first scan counts the events of each
// section (rank.Selection), a second one picks those of the page.
func (o *overflowScan) page(ctx context.Context) (total uint64, page []journal.Wanted, err error) {
	sizes := map[string]uint64{}
	if err := o.scan(ctx, func(section string, _ rank.Key) { sizes[section]++ }); err != nil {
		return 0, nil, err
	}
	total, runs := o.selection.Runs(sizes)
	seen := map[string]uint64{}
	found := map[string][]codec.Position{}
	if err := o.scan(ctx, func(section string, at rank.Key) {
		i := seen[section]
		seen[section]++
		for _, run := range runs {
			if run.Section == section && run.From <= i && i < run.To {
				found[section] = append(found[section], at.Position)
			}
		}
	}); err != nil {
		return 0, nil, err
	}
	for _, run := range runs {
		if o.selection.NewestFirst() {
			slices.Reverse(found[run.Section])
		}
		for _, at := range found[run.Section] {
			page = append(page, journal.Wanted{Position: at, N: len(page)})
		}
	}
	return total, page, nil
}

// scan calls yield with the key of each selected event and its section, in the order of time.
func (o *overflowScan) scan(ctx context.Context, yield func(section string, at rank.Key)) error {
	for from := o.selection.Start(); ; {
		step, err := o.engine.index.Candidates(ctx, o.merchant, o.selection, from, scanStep)
		if err != nil || len(step) == 0 {
			return err
		}
		from = step[len(step)-1].Key
		from.Index++
		step = slices.DeleteFunc(step, func(c rank.Candidate) bool { return c.Seq > o.last })
		if err := o.readSeries(ctx, step); err != nil {
			return err
		}
		for _, c := range step {
			if section, ok := o.selection.Section(c.Series); ok {
				yield(section, c.Key)
			}
		}
	}
}

// readSeries reads the events of overflow series, and sets the series that each of them really has.
func (o *overflowScan) readSeries(ctx context.Context, candidates []rank.Candidate) error {
	var unknown []journal.Wanted
	for i, c := range candidates {
		if c.Overflow {
			unknown = append(unknown, journal.Wanted{Position: c.Position, N: i})
		}
	}
	return o.engine.journal.Read(ctx, unknown, func(n int, event journal.Event) {
		candidates[n].Series = string(event.Series)
	})
}
