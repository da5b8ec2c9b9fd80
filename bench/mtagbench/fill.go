package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"mtagd/bench"
)

// sizes of the data beside the large merchant.
const (
	smallEvents = 10_000
	otherEvents = 1_000
)

// fillTimeout bounds one dataset.
const fillTimeout = 30 * time.Minute

// fill makes the large merchant and others beside it, of which the first is the small one. It returns what it made, and
// what came of sending the large one's events.
func fill(ctx context.Context, api *client, events, days, others int, o order) (*manifest, *result, error) {
	start := time.Now().UTC().Truncate(time.Second).AddDate(0, 0, -days)
	span := time.Duration(days)*24*time.Hour - time.Hour // over before now
	made := &manifest{Others: others}
	one := func(name string, events int) (dataset, *result, error) {
		d, err := api.newDataset(name)
		if err != nil {
			return d, nil, err
		}
		whole := len(d.Tags) * len(bench.Names)
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
	for i := 1; i < others; i++ {
		if _, _, err := one(fmt.Sprintf("other %d", i), otherEvents); err != nil {
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
	Merchants int    `default:"100" help:"Merchants beside it (default ${default})."`
	Order     order  `default:"ordered" enum:"ordered,shuffled" help:"Order of arrival: ordered or shuffled (default ${default})."`
}

// Validate is called by kong.
func (c *fillCommand) Validate() error {
	if c.Events < 1 || c.Days < 1 || c.Merchants < 1 {
		return errors.New("--events, --days and --merchants must be at least 1")
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
	made, r, err := fill(p.ctx, api, c.Events, c.Days, c.Merchants, c.Order)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d events in %v, %.0f/s\n", r.events, r.took.Round(time.Millisecond), r.rate())
	return made.write(c.Manifest)
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
	type place struct{ kind, host string }
	places := []place{{"client-side", cmp.Or(c.tagHost, c.target.host)}}
	if config.PreverifiedEnabled {
		places = append(places, place{"preverified", config.PreverifiedDomain})
	}
	for _, p := range places {
		var tag struct{ TagID string }
		if err := c.call("POST", "/v1/partners/tracktag/generate", map[string]string{"merchantId": d.Merchant, "type": p.kind}, &tag); err != nil {
			return d, err
		}
		d.Tags = append(d.Tags, datasetTag{url.PathEscape(tag.TagID), p.host})
	}
	return d, nil
}
