package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
)

type loadCommand struct {
	URL         string        `arg:"" help:"Loopback URL, such as http://127.0.0.1:8080/mark/TAG_ID."`
	Host        string        `placeholder:"HOST" help:"Host header and SNI (default the URL's)."`
	Rate        float64       `placeholder:"N" help:"Requests per second, at fixed times that do not wait for answers (default as fast as answers come)."`
	Connections int           `default:"256" help:"Keep-alive connections (default ${default})."`
	Duration    time.Duration `default:"10s" help:"How long to send (default ${default})."`
	Batch       int           `default:"1" help:"Events per request (default ${default})."`
	Identified  bool          `help:"Send events with an email and an event_id."`
	Browser     bool          `help:"Send events as the browser tag does, with an email, an event_id and what it knows about the page."`
}

// Validate is called by kong.
func (c *loadCommand) Validate() error {
	switch {
	case c.Connections < 1:
		return fmt.Errorf("--connections must be at least 1")
	case c.Batch < 1 || c.Batch > 1000:
		return fmt.Errorf("--batch must be 1 to 1000")
	}
	return validatePace(c.Rate, c.Duration)
}

// Run runs one phase and prints its result.
func (c *loadCommand) Run(p *program) error {
	t, err := load.ParseTarget(c.URL, c.Host)
	if err != nil {
		return err
	}
	r, err := load.Run(p.ctx, load.Phase{
		Target: t, Connections: c.Connections, Duration: c.Duration, Rate: c.Rate,
		Next: c.requests().To(t),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d requests in %v, %.0f accepted events/s\n", r.Requests, r.Took.Round(time.Millisecond), r.Rate())
	fmt.Fprintf(p.stdout, "latency from the intended time: p50 %v  p90 %v  p99 %v  p99.9 %v  max %v\n",
		r.Latency.At(50), r.Latency.At(90), r.Latency.At(99), r.Latency.At(99.9), r.Latency.Max())
	fmt.Fprintf(p.stdout, "refused %d (without Retry-After %d), failed %d, never sent %d\n", r.Refused, r.NoRetryAfter, r.Failed, r.Unsent)
	if r.FirstFailure != nil {
		fmt.Fprintf(p.stdout, "first failure: %v\n", r.FirstFailure)
	}
	return nil
}

func (c *loadCommand) requests() load.Requests {
	kind := load.Plain
	switch {
	case c.Browser:
		kind = load.Browser
	case c.Identified:
		kind = load.Identified
	}
	return load.Requests{Batch: c.Batch, Kind: kind}
}

type fillCommand struct {
	access
	TagHost   string        `placeholder:"HOST" help:"Host of client-side tags (default the base host)."`
	Events    int           `default:"1000000" help:"Events of the large merchant (default ${default})."`
	Days      int           `default:"400" help:"Days that they are spread over (default ${default})."`
	Merchants int           `default:"100" help:"Merchants beside the large one (default ${default})."`
	Order     dataset.Order `default:"ordered" enum:"ordered,shuffled" help:"Order in which events arrive: ordered or shuffled (default ${default})."`
}

// Validate is called by kong.
func (c *fillCommand) Validate() error {
	if c.Events < 1 || c.Days < 1 || c.Merchants < 1 {
		return errors.New("--events, --days and --merchants must be at least 1")
	}
	return nil
}

// Run makes the events and writes the manifest.
func (c *fillCommand) Run(p *program) error {
	api, err := c.client(c.TagHost)
	if err != nil {
		return err
	}
	made, r, err := dataset.Fill(p.ctx, api, c.Events, c.Days, c.Merchants, c.Order)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d events in %v, %.0f/s\n", r.Events, r.Took.Round(time.Millisecond), r.Rate())
	return made.Write(c.Manifest)
}

type listCommand struct {
	access
	Queries  int           `default:"300" help:"Queries of each kind (default ${default})."`
	Rate     float64       `placeholder:"N" help:"List the large merchant at N queries per second instead, the kinds in turn, without checking answers. Prints how long each took."`
	Duration time.Duration `default:"10s" help:"How long to list with --rate (default ${default})."`
}

// Validate is called by kong.
func (c *listCommand) Validate() error {
	if c.Queries < 1 {
		return errors.New("--queries must be at least 1")
	}
	return validatePace(c.Rate, c.Duration)
}

// Run times the queries and prints the table, or with --rate each time.
func (c *listCommand) Run(p *program) error {
	api, err := c.client("")
	if err != nil {
		return err
	}
	m, err := dataset.ReadManifest(c.Manifest)
	if err != nil {
		return err
	}
	if c.Rate > 0 {
		return dataset.ListSteadily(p.ctx, api, &m.Large, c.Rate, c.Duration, func(took time.Duration) {
			fmt.Fprintln(p.stdout, took)
		})
	}
	all, err := dataset.ListEachKind(p.ctx, api, m, c.Queries)
	if err != nil {
		return err
	}
	var table report.Table
	addListings(&table, all, m, embeddedListing)
	if err := addSummaries(&table, p, api, m, c.Queries); err != nil {
		return err
	}
	return table.Write(p.stdout)
}

// access is how fill and list reach a running server.
type access struct {
	URL      string `required:"" placeholder:"URL" help:"Loopback URL of the server, such as http://127.0.0.1:8080."`
	BaseHost string `placeholder:"HOST" help:"Host header of the partner API (default the URL's)."`
	KeyFile  string `required:"" placeholder:"FILE" help:"File with an API key of the partner, such as data/demo.key of mtagd dev."`
	Manifest string `default:"manifest.json" placeholder:"FILE" help:"File in which fill describes what it made, for list (default ${default})."`
}

func (a *access) client(tagHost string) (*dataset.Client, error) {
	t, err := load.ParseTarget(a.URL, a.BaseHost)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(a.KeyFile)
	if err != nil {
		return nil, err
	}
	return dataset.NewClient(t, strings.TrimSpace(string(key)), tagHost), nil
}

// validatePace checks --rate and --duration.
func validatePace(rate float64, duration time.Duration) error {
	switch {
	case rate < 0:
		return errors.New("--rate must not be negative")
	case duration <= 0 || duration > time.Hour:
		return errors.New("--duration must be more than 0 and at most an hour")
	}
	return nil
}

type bareCommand struct {
	HTTP string `name:"http" default:"127.0.0.1:0" placeholder:"ADDR" help:"Loopback address to listen on (default ${default})."`
	TLS  bool   `name:"tls" help:"Serve HTTPS, with a new self-signed certificate."`
	File string `placeholder:"FILE" help:"Answer when the body is in this new file and the file is synced, by groups."`
}

// Run prints the address and serves until a signal ends it.
func (c *bareCommand) Run(p *program) error {
	if _, err := load.ParseTarget("http://"+c.HTTP, ""); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.HTTP)
	if err != nil {
		return err
	}
	if c.TLS {
		certificate, err := selfSigned()
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}})
	}
	bare := bench.NewBareServer()
	if c.File != "" {
		file, err := os.OpenFile(c.File, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		synced, err := bench.NewSyncedServer(file)
		if err != nil {
			return err
		}
		bare = synced.Server
	}
	stop := context.AfterFunc(p.ctx, func() { _ = bare.Shutdown() }) // errors of the listener are Serve's result
	defer stop()
	fmt.Fprintln(p.stdout, listener.Addr())
	return bare.Serve(listener)
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
