package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

// runCommand runs all parts, one after the other.
type runCommand struct {
	Server    string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure (default ${default})."`
	Out       string        `default:"bench/results" placeholder:"DIR" help:"Directory for table.md and latency.svg (default ${default})."`
	Temp      string        `placeholder:"DIR" help:"Directory for temporary data; its disk is measured too (default the system's)."`
	Events    int           `default:"1000000" help:"Events to list; the targets are for 10000000 (default ${default})."`
	Merchants int           `default:"100" help:"Merchants beside the one that is listed (default ${default})."`
	Queries   int           `default:"300" help:"Listing queries of each kind (default ${default})."`
	Rounds    int           `default:"3" help:"Rounds of each comparison (default ${default})."`
	Round     time.Duration `default:"3s" help:"Length of a round (default ${default})."`
	Steady    time.Duration `default:"20s" help:"How long to hold half of the maximum rate; the target is for 10m (default ${default})."`
	Strict    bool          `help:"Fail if a target is missed."`
}

// Connections of each kind of phase.
const (
	manyConnections     = 256
	fewConnections      = 64
	batchConnections    = 16
	overloadConnections = 1024
	floodConnections    = 8192
	batchOverload       = 512
)

const batchEvents = 100

// benchmark is the state of a run. Each part adds to it what later parts need.
type benchmark struct {
	*runCommand
	*program
	table report.Table

	mtagd        *server.Mtagd
	synced       *server.Process // the synced file
	syncedTarget load.Target
	data         *dataset.Manifest // the events that are listed
	loaded       dataset.Dataset   // another merchant, which gets the load
	maximum      float64           // mtagd's events/s, single events on many connections
	batchMaximum float64           // mtagd's events/s in batches
	stored       int               // events of all merchants, as of the kill
}

func (c *runCommand) Validate() error {
	if c.Events < 1 || c.Merchants < 1 || c.Queries < 1 || c.Rounds < 1 || c.Round < time.Second || c.Steady < time.Second {
		return errors.New("--events, --merchants, --queries and --rounds must be at least 1, --round and --steady at least 1s")
	}
	_, err := exec.LookPath("gnuplot") // not only when the chart is due
	return err
}

// memoryTarget is in bytes, for every part.
const memoryTarget = 512 << 20

func (c *runCommand) Run(p *program) error {
	return p.measure(c.Temp, func(dir string, servers *server.Group) (err error) {
		b := &benchmark{runCommand: c, program: p}
		busy := loadAverage()
		if b.synced, b.syncedTarget, err = servers.StartOwn("file", filepath.Join(dir, "synced")); err != nil {
			return err
		}
		if b.mtagd, err = servers.StartMtagd(c.Server, filepath.Join(dir, "data")); err != nil {
			return err
		}
		parts := []struct {
			name    string // in the table of memory
			measure func(*benchmark) error
			memory  int64 // the peak, in bytes
		}{
			{name: "filling", measure: fillData},
			{name: "restarted after a kill", measure: measureStarts},
			{name: "listing", measure: measureListing},
			{name: "packing", measure: measureDisk},
			{name: "single events", measure: compareWithFile},
			{name: "batches", measure: measureBatches},
			{name: "half of the maximum", measure: holdHalfOfMaximum},
			{name: "offered loads", measure: measureLatencyCurve},
			{name: "listing under ingest", measure: measureListingUnderIngest},
			{name: "beside another merchant", measure: measureFairness},
			{name: "overload", measure: measureOverload},
		}
		for i, part := range parts {
			if err := part.measure(b); err != nil {
				return err
			}
			parts[i].memory = b.mtagd.TakePeakMemory()
		}
		b.table.Section("Memory", "mtagd's peak RssAnon in each part of the run, sampled ten times a second.")
		for _, part := range parts {
			b.table.AtMost(part.name, float64(part.memory), memoryTarget, report.Mebibytes)
		}
		if err := b.mtagd.Stop(); err != nil {
			return err
		}
		return b.write(&b.table, filepath.Join(c.Out, "table.md"),
			fmt.Sprintf(", client and servers on one machine. Load average at the start: %s.\n\n![Latency against offered load](%s)", busy, pictureFile), c.Strict)
	})
}

// turn runs a phase on a server. It also returns the server's processor time per accepted event, in seconds.
func (b *benchmark) turn(s *server.Process, p load.Phase) (r *load.Result, cpu float64, err error) {
	before, err := s.CPUTime()
	if err != nil {
		return nil, 0, err
	}
	if r, err = load.Run(b.ctx, p); err != nil {
		return nil, 0, err
	}
	after, err := s.CPUTime()
	if err == nil && r.Events == 0 {
		err = errors.Join(s.Failure("accepted no event"), r.AllAccepted())
	}
	return r, (after - before).Seconds() / float64(r.Events), err
}

// acceptedTurn is a turn that fails unless every event was accepted.
func (b *benchmark) acceptedTurn(s *server.Process, p load.Phase) (*load.Result, float64, error) {
	r, cpu, err := b.turn(s, p)
	if err == nil {
		err = r.AllAccepted()
	}
	return r, cpu, err
}

// target is the server's current address: a restart changes it.
func (b *benchmark) target() load.Target { return b.mtagd.MarkTarget(&b.loaded) }

func (b *benchmark) addPercentile(what string, h *load.Histogram, percentile float64) {
	b.table.Figure(what, report.Milliseconds(h.At(percentile).Seconds()))
}
