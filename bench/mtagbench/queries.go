package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/valyala/fasthttp"

	"mtagd/bench"
)

// client asks the partner API, one request at a time.
type client struct {
	target  target
	tagHost string // of client-side tags; empty: the base host
	key     string
	http    *fasthttp.HostClient
}

func newClient(t target, key string) *client {
	return &client{target: t, key: key, http: &fasthttp.HostClient{Addr: t.address.String(), MaxConns: 4}}
}

const callTimeout = 30 * time.Second

func (c *client) ask(method, path string, body []byte) ([]byte, error) {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.SetRequestURI("http://" + c.target.address.String() + path)
	request.UseHostHeader = true
	request.Header.SetHost(c.target.host)
	request.Header.SetMethod(method)
	request.Header.Set("Authorization", "Bearer "+c.key)
	if body != nil {
		request.Header.SetContentType("application/json")
		request.SetBody(body)
	}
	if err := c.http.DoTimeout(request, response, callTimeout); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if code := response.StatusCode(); code >= 300 {
		return nil, fmt.Errorf("%s %s: %d %.200s", method, path, code, response.Body())
	}
	return append([]byte(nil), response.Body()...), nil
}

// call asks with a value for JSON and reads the answer into another.
func (c *client) call(method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	answer, err := c.ask(method, path, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// query is a listing query and what its answer has to be.
type query struct {
	path     string
	names    map[string]bool // nil: any
	byName   bool
	asc      bool
	total    int
	returned int // events on the page
}

// kind is a way of asking that gets its own line in the table.
type kind struct {
	name string

	filter  bool // one to three names
	byName  bool
	ranged  bool
	tagged  bool
	deepest bool // the last page
	first   bool // the first page
}

var kinds = []kind{
	{name: "first page", first: true},
	{name: "any page"},
	{name: "last page", deepest: true},
	{name: "some names", filter: true},
	{name: "one tag", tagged: true},
	{name: "range", ranged: true},
	{name: "by name", byName: true},
	{name: "by name, range", byName: true, ranged: true},
	{name: "names, range, one tag", filter: true, ranged: true, tagged: true},
	{name: "by name, names, range, one tag", byName: true, filter: true, ranged: true, tagged: true},
}

// query draws a query of a kind. Relative to the size of the data, the n-th draws from equal random numbers
// ask the same of every dataset.
func (k kind) query(d *dataset, random *rand.Rand) query {
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
		hi = int(max(a, b)*float64(d.Events)) + 1
		hi = min(hi, d.Events)
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
	case k.deepest:
		page = pages
	}
	v.Set("page", strconv.Itoa(page))
	q.returned = min(max(q.total-(page-1)*limit, 0), limit)
	q.path = "/v1/partners/events?" + v.Encode()
	return q
}

// check says what is wrong with an answer: its total, its length, its order or its names.
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
		return fmt.Errorf("%s: %w", q.path, err)
	}
	if page.Pagination.TotalItems != q.total || len(page.Events) != q.returned {
		return fmt.Errorf("%s: %d events of %d, want %d of %d", q.path, len(page.Events), page.Pagination.TotalItems, q.returned, q.total)
	}
	seen := map[string]bool{}
	for i, e := range page.Events {
		if seen[e.ID] {
			return fmt.Errorf("%s: event %s is listed twice", q.path, e.ID)
		}
		seen[e.ID] = true
		if q.names != nil && !q.names[e.Name] {
			return fmt.Errorf("%s: an event named %s", q.path, e.Name)
		}
		if i == 0 {
			continue
		}
		before := page.Events[i-1]
		// Times have one form, so that their order is that of their texts.
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
			return fmt.Errorf("%s: event %s is out of order", q.path, e.ID)
		}
	}
	return nil
}

// listing is how long the queries of one kind took.
type listing struct {
	kind         kind
	large, small *hdrhistogram.Histogram
}

// listAll times n queries of each kind on both datasets in turns, and checks every answer.
func listAll(ctx context.Context, api *client, m *manifest, n int) ([]listing, error) {
	var all []listing
	for number, k := range kinds {
		l := listing{kind: k, large: newHistogram(), small: newHistogram()}
		for i := range n {
			for _, side := range []struct {
				data *dataset
				took *hdrhistogram.Histogram
			}{{&m.Large, l.large}, {&m.Small, l.small}} {
				q := k.query(side.data, rand.New(rand.NewPCG(uint64(number), uint64(i))))
				began := time.Now()
				body, err := api.ask("GET", q.path, nil)
				took := time.Since(began)
				if err == nil {
					err = q.check(body)
				}
				if err != nil {
					return nil, err
				}
				record(side.took, took)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// listSteadily lists for a while at fixed times, and tells how long each took from its intended time. Answers are
// not checked: events may be coming in beside it.
func listSteadily(ctx context.Context, api *client, d *dataset, rate float64, duration time.Duration, took func(time.Duration)) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	began := time.Now()
	for n := 0; ; n++ {
		intended := intendedTime(n, rate)
		if intended >= duration {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(intended - time.Since(began)):
		}
		q := kinds[n%len(kinds)].query(d, random)
		if _, err := api.ask("GET", q.path, nil); err != nil {
			return err
		}
		took(time.Since(began) - intended)
	}
}

type listCommand struct {
	access
	Queries  int           `default:"300" help:"Queries of each kind (default ${default})."`
	Rate     float64       `placeholder:"N" help:"Instead, list the large merchant at N queries per second, the kinds in turn, unchecked, and print how long each took."`
	Duration time.Duration `default:"10s" help:"How long to list with --rate (default ${default})."`
}

// Validate is called by kong.
func (c *listCommand) Validate() error {
	if c.Queries < 1 {
		return errors.New("--queries must be at least 1")
	}
	return validatePace(c.Rate, c.Duration)
}

// Run lists and prints.
func (c *listCommand) Run(p *program) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	m, err := readManifest(c.Manifest)
	if err != nil {
		return err
	}
	if c.Rate > 0 {
		return listSteadily(p.ctx, api, &m.Large, c.Rate, c.Duration, func(took time.Duration) {
			fmt.Fprintln(p.stdout, took)
		})
	}
	all, err := listAll(p.ctx, api, m, c.Queries)
	if err != nil {
		return err
	}
	var table report
	table.listings(all, m)
	return table.write(p.stdout)
}
