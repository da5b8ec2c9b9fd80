package dataset

import (
	"context"
	"fmt"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/load"
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

// setEvents spreads events over a span. It rounds their number down, so that each tag has each name equally often.
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

// How Fill sends events, and how many events the small merchant and the others have.
const (
	Batch       = 1000
	Connections = 8
	SmallEvents = 10_000
	OtherEvents = 1_000

	fillTimeout = 30 * time.Minute // for one merchant
)

// Fill creates the small merchant, others-1 more, and then the large one, and sends their events. The large one has the
// given number of events. All are spread over the last days. The result is that of the large one's phase.
func Fill(ctx context.Context, api *Client, events, days, others int) (*Manifest, *load.Result, error) {
	start := time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -days)
	span := time.Duration(days)*24*time.Hour - time.Hour // the last event is an hour ago
	one := func(name string, events int) (Dataset, *load.Result, error) {
		d, err := api.AddMerchant(name)
		if err != nil {
			return d, nil, err
		}
		d.setEvents(events, start, span)
		r, err := load.RunAccepted(ctx, load.Phase{
			Target: api.Target, Connections: Connections, Duration: fillTimeout, Next: newFiller(&d, api.Target).next, Resend: true,
		})
		if err == nil && r.Events != d.Events {
			err = fmt.Errorf("%d of %d events were accepted in %v", r.Events, d.Events, fillTimeout)
		}
		if err != nil {
			return d, nil, fmt.Errorf("fill %q: %w", name, err)
		}
		return d, r, nil
	}
	made := &Manifest{Others: others}
	var err error
	if made.Small, _, err = one("small", SmallEvents); err != nil {
		return nil, nil, err
	}
	for i := 1; i < others; i++ {
		if _, _, err := one(fmt.Sprintf("other %d", i), OtherEvents); err != nil {
			return nil, nil, err
		}
	}
	var r *load.Result
	made.Large, r, err = one("large", events)
	return made, r, err
}

type filler struct {
	*Dataset
	targets []load.Target // of each tag
	batch   int           // number of batches so far
	body    []byte
}

func newFiller(d *Dataset, address load.Target) *filler {
	f := &filler{Dataset: d}
	for _, tag := range d.Tags {
		t := address
		t.Host, t.Path = tag.Host, "/mark/"+tag.ID
		f.targets = append(f.targets, t)
	}
	return f
}

// next is a Phase's Next. Each batch goes to one tag, and the tags take turns.
func (f *filler) next(b []byte) (request []byte, events int) {
	tags := len(f.Tags)
	tag, perTag := f.batch%tags, f.Events/tags
	first := f.batch / tags * Batch
	if first >= perTag {
		return b, 0
	}
	f.batch++
	events = min(Batch, perTag-first)
	f.body = f.body[:0]
	for k := first; k < first+events; k++ {
		f.body = append(f.body, "[,"[min(k-first, 1)])
		i := k*tags + tag
		f.body = bench.AppendEvent(f.body, uint64(i), f.name(i), f.at(i), false)
	}
	f.body = append(f.body, ']')
	b = fmt.Appendf(b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", f.targets[tag].Path, f.targets[tag].Host, len(f.body))
	return append(b, f.body...), events
}
