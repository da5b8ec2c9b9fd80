// Package dataset sends events whose listings are known beforehand to a server, and then times and checks queries.
//
// Read in this order:
//
//	listing.go  draws random queries, times them, and knows what their answers must be
//	summary.go  the same for summaries
//	dataset.go  the formula that every event follows, and how the events of a dataset are sent
//	client.go   the partner API
package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/load"
	"mtagd/store"
)

// Listing is how long the queries of one kind took.
type Listing struct {
	Kind         string
	Large, Small *load.Histogram
}

// ListEachKind times n queries of each kind on both datasets in turns, and checks every answer.
func ListEachKind(ctx context.Context, api *Client, m *Manifest, n int) ([]Listing, error) {
	return timeEach(ctx, api, m, n, 0, kinds)
}

// SummarizeEachKind does the same for summaries.
func SummarizeEachKind(ctx context.Context, api *Client, m *Manifest, n int) ([]Listing, error) {
	return timeEach(ctx, api, m, n, 100, summaryKinds)
}

type drawing interface {
	fmt.Stringer
	draw(d *Dataset, random *rand.Rand) (path string, check func(body []byte) error)
}

func timeEach[K drawing](ctx context.Context, api *Client, m *Manifest, n int, seed uint64, kinds []K) (all []Listing, err error) {
	for number, k := range kinds {
		l := Listing{Kind: k.String(), Large: load.NewHistogram(), Small: load.NewHistogram()}
		all = append(all, l)
		for i := range n {
			for _, of := range []struct {
				data  *Dataset
				times *load.Histogram
			}{{&m.Large, l.Large}, {&m.Small, l.Small}} {
				path, check := k.draw(of.data, rand.New(rand.NewPCG(seed+uint64(number), uint64(i))))
				began := time.Now()
				body, err := api.ask("GET", path, nil)
				took := time.Since(began)
				if err != nil {
					return nil, err
				}
				if err := check(body); err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				of.times.Record(took)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return all, nil
}

// ListSteadily sends rate queries per second at fixed times, the kinds in turn, and reports how long each took from its
// intended time. It does not check answers, because new events may be arriving.
func ListSteadily(ctx context.Context, api *Client, d *Dataset, rate float64, duration time.Duration, report func(took time.Duration)) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	began := time.Now()
	for n := 0; ; n++ {
		intended := load.IntendedTime(n, rate)
		if intended >= duration {
			return nil
		}
		if err := store.Sleep(ctx, intended-time.Since(began)); err != nil {
			return err
		}
		path, _ := kinds[n%len(kinds)].draw(d, random)
		if _, err := api.ask("GET", path, nil); err != nil {
			return err
		}
		report(time.Since(began) - intended)
	}
}

// kind is a kind of query. Each has its own rows in the table.
type kind struct {
	name string

	filter bool // one to three names
	byName bool // sorted by name
	ranged bool // from startDate to endDate
	tagged bool // one tag
	first  bool // the first page
	last   bool // the last page
}

var kinds = []kind{
	{name: "first page", first: true},
	{name: "any page"},
	{name: "last page", last: true},
	{name: "some names", filter: true},
	{name: "one tag", tagged: true},
	{name: "range", ranged: true},
	{name: "by name", byName: true},
	{name: "by name, range", byName: true, ranged: true},
	{name: "names, range, one tag", filter: true, ranged: true, tagged: true},
	{name: "by name, names, range, one tag", byName: true, filter: true, ranged: true, tagged: true},
}

func (k kind) String() string { return k.name }

func (k kind) draw(d *Dataset, random *rand.Rand) (path string, check func(body []byte) error) {
	q := k.query(d, random)
	return q.path, q.check
}

// query makes a random query. From the same random numbers it makes comparable queries for datasets of different sizes:
// its range and its page are at the same fraction of the whole.
func (k kind) query(d *Dataset, random *rand.Rand) query {
	q := query{byName: k.byName, asc: random.IntN(2) == 0}
	limit := []int{1, 12, 100}[random.IntN(3)]
	v := url.Values{"merchantId": {d.Merchant}, "limit": {strconv.Itoa(limit)}}
	if q.asc {
		v.Set("sortOrder", "asc")
	}
	if k.byName {
		v.Set("sortBy", "event_name")
	}
	if k.filter {
		q.names = map[string]bool{}
		var list []string
		for _, i := range random.Perm(len(bench.Names))[:1+random.IntN(3)] {
			q.names[bench.Names[i]] = true
			list = append(list, bench.Names[i])
		}
		v.Set("events", strings.Join(list, ","))
	}
	lo, hi := 0, d.Events
	if k.ranged {
		a, b := random.Float64(), random.Float64()
		lo = int(min(a, b) * float64(d.Events))
		hi = min(int(max(a, b)*float64(d.Events))+1, d.Events)
		v.Set("startDate", d.at(lo).Format(time.RFC3339Nano))
		v.Set("endDate", d.at(hi-1).Format("2006-01-02T15:04:05.000000Z"))
	}
	tag := -1
	if k.tagged {
		tag = random.IntN(len(d.Tags))
		v.Set("tagId", d.Tags[tag].ID)
	}
	q.total = d.count(lo, hi, q.names, tag)
	pages := max((q.total+limit-1)/limit, 1)
	page := 1 + int(random.Float64()*float64(pages))
	switch {
	case k.first:
		page = 1
	case k.last:
		page = pages
	}
	v.Set("page", strconv.Itoa(page))
	q.returned = min(max(q.total-(page-1)*limit, 0), limit)
	q.path = "/v1/partners/events?" + v.Encode()
	return q
}

// query is a listing query, and what its answer must be.
type query struct {
	path     string
	names    map[string]bool // nil: any
	byName   bool
	asc      bool
	total    int
	returned int // events on the page
}

// check returns an error if an answer's total, length, order or names are wrong.
func (q *query) check(body []byte) error {
	var page struct {
		Events []struct {
			ID        string
			Name      string `json:"event_name"`
			EventTime string `json:"event_time"`
		}
		Pagination struct{ TotalItems int }
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return err
	}
	if page.Pagination.TotalItems != q.total || len(page.Events) != q.returned {
		return fmt.Errorf("%d events of %d, want %d of %d", len(page.Events), page.Pagination.TotalItems, q.returned, q.total)
	}
	seen := map[string]bool{}
	for i, e := range page.Events {
		if seen[e.ID] {
			return fmt.Errorf("event %s is listed twice", e.ID)
		}
		seen[e.ID] = true
		if q.names != nil && !q.names[e.Name] {
			return fmt.Errorf("event name %s is not in the filter", e.Name)
		}
		if i == 0 {
			continue
		}
		before := page.Events[i-1]
		// All times have the same form, so comparing their texts compares the times.
		first, second := before.EventTime, e.EventTime
		switch {
		case q.byName && before.Name != e.Name:
			first, second = before.Name, e.Name
			if !q.asc {
				first, second = second, first
			}
		case q.byName || !q.asc:
			first, second = second, first
		}
		if first > second {
			return fmt.Errorf("event %s is out of order", e.ID)
		}
	}
	return nil
}
