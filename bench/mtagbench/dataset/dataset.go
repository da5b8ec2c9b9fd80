package dataset

import (
	"time"

	"mtagd/bench"
)

// Dataset is one merchant's events. Event i occurred at Start + i × Step and belongs to tag i mod len(Tags); its name
// follows from i, too. So the right answer to any query can be computed.
type Dataset struct {
	Merchant string
	Tags     []Tag
	Events   int
	Start    time.Time
	Step     time.Duration
}

// Tag is a tag of a dataset's merchant.
type Tag struct {
	ID   string // escaped for a path
	Host string
}

// Manifest is what Fill made.
type Manifest struct {
	Large, Small Dataset
	Others       int // all merchants except the large one, including the small one
}

// setEvents spreads events over a span. It rounds their number down to a multiple of the cycle, so that each tag has
// each name equally often.
func (d *Dataset) setEvents(events int, start time.Time, span time.Duration) {
	cycle := d.cycle()
	d.Events = max(events/cycle, 1) * cycle
	d.Start, d.Step = start, (span / time.Duration(d.Events)).Truncate(time.Microsecond)
}

// cycle is the number of events after which tags and names repeat.
func (d *Dataset) cycle() int { return len(d.Tags) * len(bench.Names) }

// at is the time of event i.
func (d *Dataset) at(i int) time.Time { return d.Start.Add(time.Duration(i) * d.Step) }

// name is the name of event i.
func (d *Dataset) name(i int) string { return bench.Names[i/len(d.Tags)%len(bench.Names)] }

// count is how many of the events lo to hi-1 have one of the selected names (nil: any) and the tag (-1: any).
func (d *Dataset) count(lo, hi int, selected map[string]bool, tag int) (total int) {
	cycle := d.cycle()
	for residue := range cycle {
		if (selected == nil || selected[d.name(residue)]) && (tag < 0 || residue%len(d.Tags) == tag) {
			total += congruent(hi, residue, cycle) - congruent(lo, residue, cycle)
		}
	}
	return total
}

// congruent counts the numbers from 0 to n-1 that have the residue modulo cycle.
func congruent(n, residue, cycle int) int {
	if n <= residue {
		return 0
	}
	return (n - residue + cycle - 1) / cycle
}
