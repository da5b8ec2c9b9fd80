package main

import (
	"errors"
	"slices"
	"time"

	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

// runFlags are the flags of the run command.
type runFlags struct {
	Server    string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure (default ${default})."`
	Out       string        `default:"bench/results" placeholder:"DIR" help:"Directory for table.md and latency.svg (default ${default})."`
	Temp      string        `placeholder:"DIR" help:"Directory for temporary data; its disk is measured too (default the system's)."`
	Events    int           `default:"1000000" help:"Events to list; the targets are for 10000000 (default ${default})."`
	Order     dataset.Order `default:"ordered" enum:"ordered,shuffled" help:"Order in which they arrive: ordered or shuffled (default ${default})."`
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

// batchEvents is the number of events in a batch.
const batchEvents = 100

// benchmark is the state of a run. Each part adds to it what later parts need.
type benchmark struct {
	*runFlags
	*program
	table report.Table
	dir   string // removed after the run

	mtagd        *server.Mtagd
	bare         *server.Process
	bareTarget   load.Target
	synced       *server.Process // bare with a file that is synced
	syncedTarget load.Target
	data         *dataset.Manifest // the events that are listed
	loaded       dataset.Dataset   // another merchant, which gets the load
	maximum      float64           // mtagd's events/s, single events on many connections
	batchMaximum float64           // mtagd's events/s in batches
}

// turn is one phase on one server.
type turn struct {
	*load.Result
	cpu time.Duration // of the server, per accepted event
}

// turn runs a phase and measures the server's CPU time.
func (b *benchmark) turn(s *server.Process, p load.Phase) (turn, error) {
	before, err := s.CPUTime()
	if err != nil {
		return turn{}, err
	}
	r, err := load.Run(b.ctx, p)
	if err != nil {
		return turn{}, err
	}
	after, err := s.CPUTime()
	if err != nil {
		return turn{}, err
	}
	if r.Events == 0 {
		return turn{}, errors.Join(s.Failure("accepted no event"), r.AllAccepted())
	}
	return turn{r, (after - before) / time.Duration(r.Events)}, nil
}

// acceptedTurn is a turn that fails unless every event was accepted.
func (b *benchmark) acceptedTurn(s *server.Process, p load.Phase) (turn, error) {
	t, err := b.turn(s, p)
	if err == nil {
		err = t.AllAccepted()
	}
	return t, err
}

// addPercentile adds a percentile to the table.
func (b *benchmark) addPercentile(what string, h *load.Histogram, percentile float64) {
	b.table.Figure(what, report.Milliseconds(h.At(percentile).Seconds()))
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
