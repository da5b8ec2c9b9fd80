package dataset

import (
	"context"
	"fmt"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/load"
)

// How Fill sends events, and how many events the small merchant and the others have.
const (
	Batch       = 1000
	Connections = 8
	SmallEvents = 10_000
	OtherEvents = 1_000

	fillTimeout = 30 * time.Minute // for one merchant
)

// Fill creates the small merchant, others-1 more, and then the large one, and sends their events. The large one has the
// given number of events. All are spread over the last days. The result is that of the phase that sent the large
// merchant's events.
func Fill(ctx context.Context, api *Client, events, days, others int) (*Manifest, *load.Result, error) {
	start := time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -days)
	span := time.Duration(days)*24*time.Hour - time.Hour // the last event is an hour ago
	one := func(name string, events int) (Dataset, *load.Result, error) {
		d, err := api.AddMerchant(name)
		if err != nil {
			return d, nil, err
		}
		d.setEvents(events, start, span)
		r, err := load.Run(ctx, load.Phase{
			Target: api.Target, Connections: Connections, Duration: fillTimeout, Next: newFiller(&d, api.Target).next, Resend: true,
		})
		if err == nil {
			err = r.AllAccepted()
		}
		if err == nil && r.Events != d.Events {
			err = fmt.Errorf("%d of %d events were accepted in %v", r.Events, d.Events, fillTimeout)
		}
		if err != nil {
			err = fmt.Errorf("fill %q: %w", name, err)
		}
		return d, r, err
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

// filler makes the requests that send a dataset.
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
