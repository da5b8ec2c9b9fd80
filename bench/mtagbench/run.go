package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// runCommand is the whole measurement.
type runCommand struct {
	Server    string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure (default ${default})."`
	Out       string        `default:"bench/results" placeholder:"DIR" help:"Where table.md and latency.svg go (default ${default})."`
	Temp      string        `placeholder:"DIR" help:"Where the data directory is made: its disk is measured too (default the system's)."`
	Events    int           `default:"1000000" help:"Events to list; the targets are meant for 10000000 (default ${default})."`
	Order     order         `default:"ordered" enum:"ordered,shuffled" help:"Order of their arrival: ordered or shuffled (default ${default})."`
	Merchants int           `default:"100" help:"Merchants beside the one that is listed (default ${default})."`
	Queries   int           `default:"300" help:"Listing queries of each kind (default ${default})."`
	Rounds    int           `default:"3" help:"Rounds of each comparison (default ${default})."`
	Round     time.Duration `default:"3s" help:"Length of a round (default ${default})."`
	Steady    time.Duration `default:"20s" help:"How long half of the maximum rate is kept up; the target is meant for 10m (default ${default})."`
	Strict    bool          `help:"Fail when a target is missed."`
}

// Validate is called by kong.
func (c *runCommand) Validate() error {
	if c.Events < 1 || c.Merchants < 1 || c.Queries < 1 || c.Rounds < 1 || c.Round < time.Second || c.Steady < time.Second {
		return errors.New("--events, --merchants, --queries and --rounds must be at least 1, --round and --steady at least 1s")
	}
	return nil
}

// The connections of the two headline comparisons, and those of the other phases.
const (
	manyConnections     = 256
	fewConnections      = 64
	batchConnections    = 16
	overloadConnections = 1024
	floodConnections    = 8192
	batchOverload       = 512
	batchEvents         = 100
)

// benchmark is a run under way.
type benchmark struct {
	*runCommand
	*program
	report report
	dir    string // its own; removed at the end

	service      *service
	bare         *process
	ceiling      target    // of bare
	loaded       dataset   // the merchant that takes the load
	data         *manifest // what is listed
	maximum      float64   // events/s of mtagd with many connections
	batchMaximum float64   // the same of batches
	peaks        []peak
}

// peak is the most anonymous memory in a part of the run.
type peak struct {
	part  string
	bytes int64
}

// Run measures, and writes what it saw.
func (c *runCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp(c.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	b := &benchmark{runCommand: c, program: &program{ctx: ctx, stdout: p.stdout, stderr: p.stderr}, dir: dir}
	defer func() {
		cancel()
		for _, child := range b.children() {
			<-child.exited
		}
	}()
	if b.bare, b.ceiling, err = startBare(ctx); err != nil {
		return err
	}
	if b.service, err = newService(ctx, c.Server, filepath.Join(dir, "data")); err != nil {
		return err
	}
	for _, part := range []struct {
		name string // as the memory is told by
		run  func() error
	}{
		{"", b.machine},
		{"filling", b.fill},
		{"started again, once killed", b.starts},
		{"listing", b.list},
		{"single events", b.compare},
		{"batches", b.batches},
		{"half of the maximum", b.steady},
		{"offered loads", b.curve},
		{"listing under ingest", b.listUnderLoad},
		{"overload", b.overload},
	} {
		if err := part.run(); err != nil {
			return err
		}
		if part.name != "" {
			b.peaks = append(b.peaks, peak{part.name, b.service.takePeak()})
		}
	}
	b.memory()
	if err := b.service.stop(); err != nil {
		return err
	}
	if err := b.write(); err != nil {
		return err
	}
	if c.Strict && b.report.missed > 0 {
		return fmt.Errorf("%d targets were missed", b.report.missed)
	}
	return nil
}

func (b *benchmark) children() (all []*process) {
	if b.bare != nil {
		all = append(all, b.bare)
	}
	if b.service != nil && b.service.process != nil {
		all = append(all, b.service.process)
	}
	return all
}

// machine tells what the others on this machine leave to the run: two synced writes are what every group of
// events waits for.
func (b *benchmark) machine() error {
	const writes, size = 200, 64 << 10
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(b.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	took := newHistogram()
	for range writes {
		began := time.Now()
		if _, err := file.Write(make([]byte, size)); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		record(took, time.Since(began))
	}
	b.report.section("Machine", "Before the run.")
	b.report.tell("load average of the last minute, other work included", strings.Fields(string(load))[0])
	for _, p := range []float64{50, 99} {
		b.report.tell(fmt.Sprintf("a synced write of %d KiB, p%.0f", size>>10, p), milliseconds(quantile(took, p).Seconds()))
	}
	return nil
}

// memoryTarget is for mtagd's anonymous memory throughout, in bytes.
const memoryTarget = 512 << 20

func (b *benchmark) memory() {
	b.report.section("Memory", "The most of mtagd's RssAnon in each part of the run, looked at ten times a second.")
	for _, p := range b.peaks {
		b.report.atMost(p.part, float64(p.bytes), memoryTarget, mebibytes)
	}
}

// write writes the table to the results and to standard output.
func (b *benchmark) write() error {
	var table bytes.Buffer
	fmt.Fprintf(&table, "Measured %s on %d cores, %s, %s/%s, client and servers on one machine.\n\n![Latency against offered load](latency.svg)\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if err := b.report.write(&table); err != nil {
		return err
	}
	if _, err := b.stdout.Write(table.Bytes()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Out, "table.md"), table.Bytes(), 0o666)
}
