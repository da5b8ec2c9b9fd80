package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

// postgresCommand measures two nodes on PostgreSQL, with a primary and one synchronous standby, all on this machine.
type postgresCommand struct {
	Server           string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure (default ${default})."`
	Out              string        `default:"bench/results" placeholder:"DIR" help:"Directory for postgres.md (default ${default})."`
	Temp             string        `placeholder:"DIR" help:"Directory for temporary data; its disk is measured too (default the system's)."`
	Rounds           int           `default:"5" help:"Rounds; the table has their medians (default ${default})."`
	Round            time.Duration `default:"4s" help:"Length of each part of a round (default ${default})."`
	Connections      int           `default:"512" help:"Connections of single events, to both nodes together (default ${default})."`
	QueueConnections int           `default:"64" help:"Database connections of the peer (default ${default})."`
	Events           int           `placeholder:"N" help:"List a merchant of N events, too (default none)."`
	Queries          int           `default:"100" help:"Listing queries of each kind (default ${default})."`
	Only             []string      `placeholder:"PART" help:"Measure only these parts: single, many, identified, batches, queue (default all)."`
	Profile          string        `placeholder:"DIR" help:"Directory for a CPU profile of the first node in each part, of the first round (default none)."`
	Strict           bool          `help:"Fail if a target is missed."`
}

// Validate is called by kong.
func (c *postgresCommand) Validate() error {
	if c.Rounds < 1 || c.Round < time.Second || c.Connections < nodeCount || c.QueueConnections < nodeCount || c.Events < 0 || c.Queries < 1 {
		return errors.New("--rounds and --queries must be at least 1, --round at least 1s, --connections and --queue-connections at least 2")
	}
	return nil
}

const (
	nodeCount     = 2
	manyMerchants = 100
	foldPoll      = time.Second / 4
)

// Run measures and writes the table.
func (c *postgresCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp(c.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	b := &postgresBenchmark{postgresCommand: c, program: &program{ctx: ctx, stdout: p.stdout, stderr: p.stderr}}
	b.progress("starting a primary, a standby and %d nodes", nodeCount)
	if b.db, err = server.StartPostgres(c.Temp); err != nil {
		cancel()
		return err
	}
	defer func() { err = errors.Join(err, b.db.Close()) }()
	defer func() {
		cancel()
		for _, s := range slices.Concat(b.processes(), b.queues) {
			s.Wait()
		}
	}()
	if b.nodes, err = server.StartNodes(ctx, c.Server, b.db.URL(), dir, nodeCount); err != nil {
		return err
	}
	if b.queues, b.queueTargets, err = server.StartQueues(ctx, b.db, nodeCount, c.QueueConnections/nodeCount); err != nil {
		return err
	}
	for i := range 1 + manyMerchants {
		d, err := b.nodes[0].API.AddMerchant(fmt.Sprintf("load %d", i))
		if err != nil {
			return err
		}
		b.merchants = append(b.merchants, d)
	}
	if err := b.measureIngest(); err != nil {
		return err
	}
	if c.Events > 0 {
		if err := b.measureListing(); err != nil {
			return err
		}
	}
	return b.write()
}

// postgresBenchmark is the state of a run.
type postgresBenchmark struct {
	*postgresCommand
	*program
	table report.Table

	db           *server.Postgres
	nodes        []*server.Mtagd
	queues       []*server.Process
	queueTargets []load.Target
	merchants    []dataset.Dataset // the first one has all events of the parts with one merchant
}

func (b *postgresBenchmark) processes() (all []*server.Process) {
	for _, n := range b.nodes {
		all = append(all, n.Process)
	}
	return all
}

// postgresPart is a part of each round.
type postgresPart struct {
	name, title string
	connections int
	batch       int
	kind        load.Kind
	merchants   int // 0: the peer
	target      float64
}

func (b *postgresBenchmark) parts() []postgresPart {
	all := []postgresPart{
		{name: "single", title: "single events of one merchant", connections: b.Connections, batch: 1, merchants: 1, target: 15_000},
		{name: "many", title: fmt.Sprintf("single events of %d merchants", manyMerchants), connections: b.Connections, batch: 1, merchants: manyMerchants},
		{name: "identified", title: "single events with email and event_id", connections: b.Connections, batch: 1, kind: load.Identified, merchants: 1},
		{name: "batches", title: fmt.Sprintf("batches of %d", batchEvents), connections: batchConnections, batch: batchEvents, merchants: 1, target: 40_000},
		{name: "queue", title: "queue table, one row per commit", connections: b.Connections, batch: 1},
	}
	return slices.DeleteFunc(all, func(p postgresPart) bool { return len(b.Only) > 0 && !slices.Contains(b.Only, p.name) })
}

// measureIngest measures all parts in turns.
func (b *postgresBenchmark) measureIngest() error {
	rounds := map[string][]round{}
	for n := range b.Rounds {
		for _, p := range b.parts() {
			stop, err := b.profile(p, n)
			if err != nil {
				return err
			}
			r, err := b.measure(p)
			if err := errors.Join(err, stop()); err != nil {
				return err
			}
			b.progress("round %d of %d, %s: %s, p50 %s, p99 %s; µs %s; WAL %.0f bytes; disk %.0f bytes; load average %s", n+1, b.Rounds, p.title,
				report.PerSecond(r.rate), report.Milliseconds(r.p50), report.Milliseconds(r.p99), formatCosts(r.costs), r.wal, r.disk, loadAverage())
			rounds[p.name] = append(rounds[p.name], r)
		}
	}
	of := func(p postgresPart, value func(round) float64) float64 {
		var all []float64
		for _, r := range rounds[p.name] {
			all = append(all, value(r))
		}
		return median(all)
	}
	for _, p := range b.parts() {
		where := fmt.Sprintf("%d connections to two nodes", p.connections)
		if p.merchants == 0 {
			where = fmt.Sprintf("%d connections to two small servers, with %d database connections together", p.connections, b.QueueConnections)
		}
		b.table.Section(strings.ToUpper(p.title[:1])+p.title[1:], fmt.Sprintf("%s. Medians of %d rounds of %v.", where, b.Rounds, b.Round))
		rate := of(p, func(r round) float64 { return r.rate })
		if p.target > 0 {
			b.table.AtLeast("events", rate, p.target, report.PerSecond)
		} else {
			b.table.Figure("events", report.PerSecond(rate))
		}
		b.table.Figure("acknowledgement, p50", report.Milliseconds(of(p, func(r round) float64 { return r.p50 })))
		b.table.Figure("acknowledgement, p99", report.Milliseconds(of(p, func(r round) float64 { return r.p99 })))
		all := of(p, func(r round) float64 { return sum(r.costs[:len(r.costs)-1]) })
		b.table.Figure("processor time per event, all but the load generator", report.Microseconds(all))
		for i, side := range postgresSides {
			b.table.Figure("… "+side, report.Microseconds(of(p, func(r round) float64 { return r.costs[i] })))
		}
		b.table.Figure("write-ahead log per event, which each standby gets, too", report.Bytes(of(p, func(r round) float64 { return r.wal })))
		b.table.Figure("tables and indexes per event", report.Bytes(of(p, func(r round) float64 { return r.disk })))
		if len(rounds["queue"]) > 0 && p.merchants > 0 {
			var ratios []float64
			for i, r := range rounds[p.name] {
				ratios = append(ratios, r.rate/rounds["queue"][i].rate)
			}
			b.table.Figure("rate compared with the queue table in the same round", report.Times(median(ratios)))
		}
	}
	b.table.Section("Memory", "Anonymous memory at its highest; PostgreSQL has 2 GB of shared buffers beside it, in each server.")
	for i, n := range b.nodes {
		b.table.Figure(fmt.Sprintf("node %d", i+1), report.Mebibytes(float64(n.TakePeakMemory())))
	}
	return nil
}

// measureListing fills a merchant through both nodes' engines, and times queries.
func (b *postgresBenchmark) measureListing() error {
	b.progress("filling: %s events", report.Grouped(b.Events))
	m, r, err := dataset.Fill(b.ctx, b.nodes[0].API, b.Events, fillDays, 10, dataset.Ordered)
	if err != nil {
		return err
	}
	b.progress("filled: %s; counting and vacuum", report.PerSecond(r.Rate()))
	for left := int64(1); left > 0; time.Sleep(foldPoll) { // until all events are in the counters
		if err := b.db.Query(b.ctx, "SELECT count(*) FROM tally").Scan(&left); err != nil {
			return err
		}
	}
	if err := b.db.Exec(b.ctx, "mtagd", "VACUUM ANALYZE"); err != nil {
		return err
	}
	b.progress("listing")
	all, err := dataset.ListEachKind(b.ctx, b.nodes[1].API, m, b.Queries)
	if err != nil {
		return err
	}
	addListings(&b.table, all, m, postgresListing)
	return addSummaries(&b.table, b.program, b.nodes[1].API, m, b.Queries)
}

// write writes the table.
func (b *postgresBenchmark) write() error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Measured %s on %d cores, %s, %s/%s: primary, standby, two nodes and the load generator on one machine. Events of %d bytes. Load average at the end: %s.\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, bench.EventSize, loadAverage())
	if err := b.table.Write(&text); err != nil {
		return err
	}
	if _, err := b.stdout.Write(text.Bytes()); err != nil {
		return err
	}
	if err := os.MkdirAll(b.Out, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Out, "postgres.md"), text.Bytes(), 0o666); err != nil {
		return err
	}
	if b.Strict && b.table.Missed > 0 {
		return fmt.Errorf("%d targets were missed", b.table.Missed)
	}
	return nil
}
