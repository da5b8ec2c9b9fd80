package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"
)

// dataset is one merchant's events for listing. Event i of Events occurred at Start + i × Step,
// belongs to tag i mod len(Tags), and its name follows from i as well: whatever a query selects,
// the exact total is known without asking anyone.
type dataset struct {
	Merchant string        `json:"merchantId"`
	Tags     []datasetTag  `json:"tags"`
	Events   int           `json:"events"`
	Start    time.Time     `json:"start"`
	Step     time.Duration `json:"step"`
}

type datasetTag struct {
	ID   string `json:"tagId"`
	Host string `json:"host"`
}

// manifest is what fill made, and what list asks about.
type manifest struct {
	Large  dataset `json:"large"`
	Small  dataset `json:"small"`
	Others int     `json:"otherMerchants"`
}

// at is the time of event i.
func (d *dataset) at(i int) time.Time { return d.Start.Add(time.Duration(i) * d.Step) }

func (d *dataset) name(i int) string { return names[i/len(d.Tags)%len(names)] }

// count is the number of events from the lo-th to before the hi-th that have one of some names (nil: any)
// and a tag (-1: any).
func (d *dataset) count(lo, hi int, selected map[string]bool, tag int) (total int) {
	cycle := len(d.Tags) * len(names)
	for residue := range cycle {
		if (selected == nil || selected[d.name(residue)]) && (tag < 0 || residue%len(d.Tags) == tag) {
			total += congruent(hi, residue, cycle) - congruent(lo, residue, cycle)
		}
	}
	return total
}

// congruent counts the numbers below n that leave the residue when divided by cycle.
func congruent(n, residue, cycle int) int {
	if n <= residue {
		return 0
	}
	return (n - residue + cycle - 1) / cycle
}

// order is how a dataset's events arrive.
type order string

const (
	ordered  order = "ordered"
	shuffled order = "shuffled"
)

// filler makes the batches of a dataset.
type filler struct {
	*dataset
	targets []target // of each tag
	stride  int      // coprime to a tag's number of events; 1 keeps their order
	batch   int      // batches made
	body    []byte
}

const fillBatch = 1000

func newFiller(d *dataset, address target, o order) *filler {
	f := &filler{dataset: d, stride: 1}
	for _, tag := range d.Tags {
		t := address
		t.host, t.path = tag.Host, "/mark/"+tag.ID
		f.targets = append(f.targets, t)
	}
	if o == shuffled {
		// About the golden section of the whole: neighbours in arrival are far apart in time.
		perTag := d.Events / len(d.Tags)
		for f.stride = max(perTag*618/1000, 1); gcd(f.stride, perTag) != 1; f.stride++ {
		}
	}
	return f
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// next is the source of a phase. Each batch goes to one tag, the tags take turns.
func (f *filler) next(b []byte) (request []byte, events int) {
	tags := len(f.Tags)
	tag, perTag := f.batch%tags, f.Events/tags
	first := f.batch / tags * fillBatch
	if first >= perTag {
		return b, 0
	}
	f.batch++
	events = min(fillBatch, perTag-first)
	f.body = f.body[:0]
	for k := first; k < first+events; k++ {
		f.body = append(f.body, "[,"[min(k-first, 1)])
		i := k*f.stride%perTag*tags + tag
		f.body = appendEvent(f.body, uint64(i), f.name(i), f.at(i), false)
	}
	f.body = append(f.body, ']')
	b = fmt.Appendf(b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", f.targets[tag].path, f.targets[tag].host, len(f.body))
	return append(b, f.body...), events
}

// sizes of the data beside the large merchant.
const (
	smallEvents = 10_000
	otherEvents = 1_000
)

// fillTimeout bounds one dataset.
const fillTimeout = 30 * time.Minute

// fill makes the large merchant, the small one and the others, and returns what it made and sent.
func fill(ctx context.Context, api *client, events, days, others int, o order) (*manifest, *result, error) {
	start := time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -days)
	span := time.Duration(days)*24*time.Hour - time.Hour // over before now
	made := &manifest{Others: others}
	one := func(name string, events int) (dataset, *result, error) {
		d, err := api.newDataset(name)
		if err != nil {
			return d, nil, err
		}
		whole := len(d.Tags) * len(names)
		d.Events = max(events/whole, 1) * whole
		d.Start, d.Step = start, (span / time.Duration(d.Events)).Truncate(time.Microsecond)
		r, err := load(ctx, phase{target: api.target, conns: 8, duration: fillTimeout, next: newFiller(&d, api.target, o).next})
		if err == nil {
			err = r.healthy()
		}
		if err == nil && r.events != d.Events {
			err = fmt.Errorf("%d of %d events were taken in %v", r.events, d.Events, fillTimeout)
		}
		if err != nil {
			err = fmt.Errorf("fill %q: %w", name, err)
		}
		return d, r, err
	}
	var err error
	if made.Small, _, err = one("small", smallEvents); err != nil {
		return nil, nil, err
	}
	for i := range others {
		if _, _, err := one(fmt.Sprintf("other %d", i+1), otherEvents); err != nil {
			return nil, nil, err
		}
	}
	var r *result
	made.Large, r, err = one("large", events)
	return made, r, err
}

// access is how a command reaches a running server.
type access struct {
	URL      string `required:"" placeholder:"URL" help:"Loopback URL of the server, such as http://127.0.0.1:8080."`
	BaseHost string `placeholder:"HOST" help:"Host header of the partner API (default the URL's)."`
	KeyFile  string `required:"" placeholder:"FILE" help:"File with an API key of the partner, such as data/demo.key of mtagd dev."`
	Manifest string `default:"manifest.json" placeholder:"FILE" help:"What fill made and list asks about (default ${default})."`
}

func (a *access) client() (*client, error) {
	t, err := parseTarget(a.URL, a.BaseHost)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(a.KeyFile)
	if err != nil {
		return nil, err
	}
	return newClient(t, strings.TrimSpace(string(key))), nil
}

type fillCommand struct {
	access
	TagHost   string `placeholder:"HOST" help:"Host of client-side tags (default the base host)."`
	Events    int    `default:"1000000" help:"Events of the large merchant (default ${default})."`
	Days      int    `default:"400" help:"Days that they are spread over (default ${default})."`
	Merchants int    `default:"100" help:"Other merchants beside it (default ${default})."`
	Order     order  `default:"ordered" enum:"ordered,shuffled" help:"Order of arrival: ordered or shuffled (default ${default})."`
}

// Validate is called by kong.
func (c *fillCommand) Validate() error {
	if c.Events < 1 || c.Days < 1 || c.Merchants < 0 {
		return errors.New("--events and --days must be at least 1, --merchants must not be negative")
	}
	return nil
}

// Run fills and writes the manifest.
func (c *fillCommand) Run(p *program) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	api.tagHost = c.TagHost
	made, r, err := fill(p.ctx, api, c.Events, c.Days, c.Merchants-1, c.Order)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d events in %v, %.0f/s\n", r.events, r.took.Round(time.Millisecond), r.rate())
	text, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.Manifest, append(text, '\n'), 0o666)
}

// newDataset makes a merchant with a client-side tag and, where the partner may, a preverified one.
func (c *client) newDataset(name string) (d dataset, err error) {
	var merchant struct{ MerchantID string }
	if err := c.call("POST", "/v1/partners/merchant", map[string]string{"name": name}, &merchant); err != nil {
		return d, err
	}
	d.Merchant = merchant.MerchantID
	var config struct {
		PreverifiedEnabled bool
		PreverifiedDomain  string
	}
	if err := c.call("GET", "/v1/partners/config", nil, &config); err != nil {
		return d, err
	}
	hosts := map[string]string{"client-side": c.tagHost}
	if c.tagHost == "" {
		hosts["client-side"] = c.target.host
	}
	if config.PreverifiedEnabled {
		hosts["preverified"] = config.PreverifiedDomain
	}
	for _, kind := range []string{"client-side", "preverified"} {
		if hosts[kind] == "" {
			continue
		}
		var tag struct{ TagID string }
		if err := c.call("POST", "/v1/partners/tracktag/generate", map[string]string{"merchantId": d.Merchant, "type": kind}, &tag); err != nil {
			return d, err
		}
		d.Tags = append(d.Tags, datasetTag{url.PathEscape(tag.TagID), hosts[kind]})
	}
	return d, nil
}
