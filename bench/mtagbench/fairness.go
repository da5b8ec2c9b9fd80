package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

// fairnessCommand measures how much slower a merchant's single events become while another merchant of the same server
// sends as much as it can.
type fairnessCommand struct {
	Server    []string      `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure. Several are measured in turns (default ${default})."`
	Temp      string        `placeholder:"DIR" help:"Directory for temporary data; its disk is measured too (default the system's)."`
	Rounds    int           `default:"3" help:"Rounds; the table has their medians (default ${default})."`
	Round     time.Duration `default:"2s" help:"Length of a round (default ${default})."`
	Neighbour []int         `default:"1,4,16" help:"Connections of the merchant whose latency is measured (default ${default})."`
	Heavy     []string      `default:"batches,large-batches,single,duplicates,unresolved,links" enum:"batches,large-batches,single,duplicates,unresolved,links" help:"What the other merchant sends (default ${default})."`
}

// Validate is called by kong.
func (c *fairnessCommand) Validate() error {
	if c.Rounds < 1 || c.Round < 100*time.Millisecond {
		return errors.New("--rounds must be at least 1, --round at least 100ms")
	}
	return nil
}

// heavyLoads are what the heavy merchant may send, by name.
var heavyLoads = map[string]struct {
	connections int
	requests    load.Requests
}{
	"batches":       {8, load.Requests{Batch: 1000}},
	"large-batches": {8, load.Requests{Batch: 1000, Size: 1000}},
	"single":        {1024, load.Requests{Batch: 1}},
	"duplicates":    {8, load.Requests{Batch: 1000, Kind: load.Duplicates}},
	"unresolved":    {8, load.Requests{Batch: 1000, Kind: load.Unresolved}},
	"links":         {256, load.Requests{Batch: 1, Kind: load.Links}},
}

// Run measures and prints the table.
func (c *fairnessCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp(c.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	var servers []*sharedServer
	defer func() {
		cancel()
		for _, s := range servers {
			s.process.Wait()
		}
	}()
	for i, file := range c.Server {
		s, err := startShared(ctx, file, filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	// The neighbour of the bare server is slowed down only by the machine, which the heavy load on mtagd keeps busy.
	bare, target, err := server.StartBare(ctx)
	if err != nil {
		return err
	}
	servers = append(servers, &sharedServer{name: "bare", process: bare, neighbour: target, heavy: servers[0].heavy})

	table := tabwriter.NewWriter(p.stdout, 0, 0, 1, ' ', 0)
	fmt.Fprint(table, "| heavy load\t| connections\t| server\t| p50 alone, beside\t| ratio\t| p99 alone, beside\t| ratio\t| refused, failed\t| rate alone, beside\t| heavy rate beside; refused\t|\n"+
		"|---\t|---:\t|---\t|---:\t|---:\t|---:\t|---:\t|---:\t|---:\t|---:\t|\n")
	for _, heavy := range c.Heavy {
		for _, connections := range c.Neighbour {
			rounds := make([][]besides, len(servers))
			for round := range c.Rounds {
				p.progress("%s, neighbour on %d connections, round %d of %d", heavy, connections, round+1, c.Rounds)
				for i, s := range servers {
					r, err := s.measure(ctx, heavy, connections, c.Round)
					if err != nil {
						return err
					}
					rounds[i] = append(rounds[i], r)
				}
			}
			for i, s := range servers {
				fmt.Fprintf(table, "| %s\t| %d\t| %s\t", heavy, connections, s.name)
				writeBesides(table, heavyLoads[heavy].requests.Batch, rounds[i])
			}
			if err := table.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// sharedServer is a server with a heavy merchant and its neighbour.
type sharedServer struct {
	name             string
	process          interface{ Wait() }
	heavy, neighbour load.Target
}

func startShared(ctx context.Context, file, dir string) (*sharedServer, error) {
	mtagd, err := server.StartMtagd(ctx, file, dir)
	if err != nil {
		return nil, err
	}
	s := &sharedServer{name: filepath.Base(file), process: mtagd}
	for _, target := range []*load.Target{&s.heavy, &s.neighbour} {
		merchant, err := mtagd.API.AddMerchant("shop")
		if err != nil {
			return nil, err
		}
		*target = mtagd.MarkTarget(&merchant)
	}
	return s, nil
}

// besides are the results of a neighbour alone and beside a heavy merchant, and those of the heavy merchant.
type besides struct{ alone, beside, heavy *load.Result }

// warmUp is how long the heavy merchant sends before its neighbour begins. It stops after the neighbour.
const warmUp = 300 * time.Millisecond

func (s *sharedServer) measure(ctx context.Context, heavy string, connections int, round time.Duration) (r besides, err error) {
	neighbour := load.ClosedLoop(s.neighbour, connections, 1, round)
	if r.alone, err = load.Run(ctx, neighbour); err != nil {
		return r, err
	}
	var heavyErr error
	var all sync.WaitGroup
	all.Go(func() {
		h := heavyLoads[heavy]
		r.heavy, heavyErr = load.Run(ctx, load.Phase{
			Target: s.heavy, Connections: h.connections, Duration: round + 2*warmUp, Next: h.requests.To(s.heavy),
		})
	})
	select {
	case <-ctx.Done():
	case <-time.After(warmUp):
	}
	r.beside, err = load.Run(ctx, neighbour)
	all.Wait()
	return r, errors.Join(err, heavyErr)
}

// writeBesides writes the medians of some rounds as a part of a row. heavyBatch is the number of events in a request of the
// heavy merchant: its rate counts events that were answered, as not all kinds are recorded.
func writeBesides(table *tabwriter.Writer, heavyBatch int, rounds []besides) {
	medianOf := func(value func(besides) float64) float64 {
		var values []float64
		for _, r := range rounds {
			values = append(values, value(r))
		}
		return median(values)
	}
	for _, percentile := range []float64{50, 99} {
		alone := medianOf(func(r besides) float64 { return r.alone.Latency.At(percentile).Seconds() })
		beside := medianOf(func(r besides) float64 { return r.beside.Latency.At(percentile).Seconds() })
		ratio := medianOf(func(r besides) float64 {
			return float64(r.beside.Latency.At(percentile)) / float64(r.alone.Latency.At(percentile))
		})
		fmt.Fprintf(table, "| %s, %s\t| %s\t", report.Milliseconds(alone), report.Milliseconds(beside), report.Times(ratio))
	}
	refused, failed, heavyRefused := 0, 0, 0
	for _, r := range rounds {
		refused, failed, heavyRefused = refused+r.beside.Refused, failed+r.beside.Failed, heavyRefused+r.heavy.Refused
	}
	fmt.Fprintf(table, "| %d, %d\t| %s, %s\t| %s; %d\t|\n", refused, failed,
		report.PerSecond(medianOf(func(r besides) float64 { return r.alone.Rate() })),
		report.PerSecond(medianOf(func(r besides) float64 { return r.beside.Rate() })),
		report.PerSecond(medianOf(func(r besides) float64 {
			return float64((r.heavy.Requests-r.heavy.Refused)*heavyBatch) / r.heavy.Took.Seconds()
		})), heavyRefused)
}
