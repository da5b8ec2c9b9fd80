package dataset

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"mtagd/bench"
)

type summaryKind struct {
	name   string
	bucket string
	byName bool
	ranged bool // of a part of all days
}

var summaryKinds = []summaryKind{
	{name: "total"},
	{name: "total of a range", ranged: true},
	{name: "days", bucket: "day"},
	{name: "days by name", bucket: "day", byName: true},
	{name: "hours of a range by name", bucket: "hour", byName: true, ranged: true},
}

func (k summaryKind) String() string { return k.name }

// summaryDays is how long a range with hours is.
const summaryDays = 10

// draw makes a random summary. Datasets of different sizes get the same fraction of their time.
func (k summaryKind) draw(d *Dataset, random *rand.Rand) (path string, check func(body []byte) error) {
	v := url.Values{"merchantId": {d.Merchant}}
	lo, hi := 0, d.Events
	if k.ranged {
		lo = int(random.Float64() * float64(d.Events))
		if hi = lo + 1 + int(random.Float64()*float64(d.Events-lo)); k.bucket == "hour" {
			hi = lo + 1 + int(summaryDays*24*time.Hour/d.Step)
		}
		hi = min(hi, d.Events)
		v.Set("startDate", d.at(lo).Format(time.RFC3339Nano))
		v.Set("endDate", d.at(hi-1).Format("2006-01-02T15:04:05.000000Z"))
	}
	if k.bucket != "" {
		v.Set("bucket", k.bucket)
	}
	if k.byName {
		v.Set("by", "event_name")
	}
	path = "/v1/partners/events/summary?" + v.Encode()
	return path, func(body []byte) error { return k.check(d, lo, hi, body) }
}

// check returns an error if a summary of the events lo to hi-1 is wrong: its total, the sum of its buckets, or a group.
func (k summaryKind) check(d *Dataset, lo, hi int, body []byte) error {
	type counts struct {
		Name   string `json:"event_name"`
		Total  int
		Counts []int
	}
	var s struct {
		counts
		Groups []counts
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return err
	}
	expect := func(c counts, want int) error {
		sum := 0
		for _, n := range c.Counts {
			sum += n
		}
		if c.Total != want || k.bucket != "" && sum != want {
			return fmt.Errorf("%d events %s, %d in buckets, want %d", c.Total, c.Name, sum, want)
		}
		return nil
	}
	if err := expect(s.counts, hi-lo); err != nil || !k.byName {
		return err
	}
	groups := 0
	for _, name := range bench.Names {
		if d.count(lo, hi, map[string]bool{name: true}, -1) > 0 {
			groups++
		}
	}
	if len(s.Groups) != groups {
		return fmt.Errorf("%d names, want %d", len(s.Groups), groups)
	}
	for _, g := range s.Groups {
		if err := expect(g, d.count(lo, hi, map[string]bool{g.Name: true}, -1)); err != nil {
			return err
		}
	}
	return nil
}
