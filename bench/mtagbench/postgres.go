package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

// postgresCommand measures two nodes on PostgreSQL, with a primary and one synchronous standby, all on this machine.
type postgresCommand struct {
	Server      string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure (default ${default})."`
	Out         string        `default:"bench/results" placeholder:"DIR" help:"Directory for postgres.md (default ${default})."`
	Temp        string        `placeholder:"DIR" help:"Directory for temporary data; its disk is measured too (default the system's)."`
	Rounds      int           `default:"5" help:"Rounds; the table has their medians (default ${default})."`
	Round       time.Duration `default:"4s" help:"Length of each part of a round (default ${default})."`
	Connections int           `default:"512" help:"Connections of single events, to both nodes together (default ${default})."`
	Events      int           `placeholder:"N" help:"List a merchant of N events, too (default none)."`
	Queries     int           `default:"100" help:"Listing queries of each kind (default ${default})."`
	Strict      bool          `help:"Fail if a target is missed."`
}

func (c *postgresCommand) Validate() error {
	if c.Rounds < 1 || c.Round < time.Second || c.Connections < nodeCount || c.Events < 0 || c.Queries < 1 {
		return errors.New("--rounds and --queries must be at least 1, --round at least 1s, --connections at least 2")
	}
	return nil
}

const (
	nodeCount        = 2
	manyMerchants    = 100
	queueConnections = 64 // database connections of the queue table's servers together
	foldPoll         = time.Second / 4
)

// postgresBenchmark is the state of a run.
type postgresBenchmark struct {
	*postgresCommand
	*program
	table report.Table

	db           *server.Postgres
	nodes        []*server.Mtagd
	queues       []*server.Process // the peer
	queueTargets []load.Target
	merchants    []dataset.Dataset // the first one has all events of the parts with one merchant
}

func (c *postgresCommand) Run(p *program) error {
	return p.measure(c.Temp, func(dir string, servers *server.Group) (err error) {
		b := &postgresBenchmark{postgresCommand: c, program: p}
		b.progress("starting a primary, a standby and %d nodes", nodeCount)
		if b.db, err = server.StartPostgres(c.Temp); err != nil {
			return err
		}
		defer func() { servers.Stop(); err = errors.Join(err, b.db.Close()) }()
		if b.nodes, err = servers.StartNodes(c.Server, b.db.URL(), dir, nodeCount); err != nil {
			return err
		}
		if b.queues, b.queueTargets, err = servers.StartQueues(b.db, nodeCount, queueConnections/nodeCount); err != nil {
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
		return b.write(&b.table, filepath.Join(c.Out, "postgres.md"),
			fmt.Sprintf(": primary, standby, two nodes and the load generator on one machine. Events of %d bytes. Load average at the end: %s.",
				bench.EventSize, loadAverage()), c.Strict)
	})
}

// postgresPart is a part of each round.
type postgresPart struct {
	title       string
	connections int
	batch       int
	kind        load.Kind
	merchants   []dataset.Dataset // none: the peer
	target      float64
	measured    rounds
}

// measureIngest measures all parts in turns.
func (b *postgresBenchmark) measureIngest() error {
	queue := &postgresPart{title: "queue table, one row per commit", connections: b.Connections, batch: 1}
	one, many := b.merchants[:1], b.merchants[1:]
	parts := []*postgresPart{
		{title: "single events of one merchant", connections: b.Connections, batch: 1, merchants: one, target: 15_000},
		{title: fmt.Sprintf("single events of %d merchants", manyMerchants), connections: b.Connections, batch: 1, merchants: many},
		{title: "single events with email and event_id", connections: b.Connections, batch: 1, kind: load.Identified, merchants: one},
		{title: fmt.Sprintf("batches of %d", batchEvents), connections: batchConnections, batch: batchEvents, merchants: one, target: 40_000},
		queue,
	}
	for _, p := range parts {
		p.measured = rounds{}
	}
	for n := range b.Rounds {
		for _, p := range parts {
			if err := b.measureRound(p); err != nil {
				return fmt.Errorf("%s: %w", p.title, err)
			}
			b.progress("round %d of %d, %s: %s; load average %s", n+1, b.Rounds, p.title, report.PerSecond(p.measured["rate"][n]), loadAverage())
		}
	}
	for _, p := range parts {
		where := fmt.Sprintf("%d connections to two nodes", p.connections)
		if p == queue {
			where = fmt.Sprintf("%d connections to two small servers, with %d database connections together", p.connections, queueConnections)
		}
		r := p.measured
		b.table.Section(strings.ToUpper(p.title[:1])+p.title[1:], fmt.Sprintf("%s. Medians of %d rounds of %v.", where, b.Rounds, b.Round))
		if p.target > 0 {
			b.table.AtLeast("events", r.median("rate"), p.target, report.PerSecond)
		} else {
			b.table.Figure("events", report.PerSecond(r.median("rate")))
		}
		b.table.Figure("acknowledgement, p50", report.Milliseconds(r.median("p50")))
		b.table.Figure("acknowledgement, p99", report.Milliseconds(r.median("p99")))
		b.table.Figure("CPU per event", report.Microseconds(r.median("servers")))
		for _, side := range postgresSides {
			b.table.Figure("… "+side, report.Microseconds(r.median(side)))
		}
		b.table.Figure("write-ahead log per event", report.Bytes(r.median("WAL")))
		b.table.Figure("tables and indexes per event", report.Bytes(r.median("disk")))
		if p != queue {
			for i, rate := range r["rate"] {
				r.add("ratio", rate/queue.measured["rate"][i])
			}
			b.table.Figure("rate against the queue table", report.Times(r.median("ratio")))
		}
	}
	b.table.Section("Memory", "Anonymous memory at its highest; PostgreSQL has 2 GB of shared buffers beside it, in each server.")
	for i, n := range b.nodes {
		b.table.Figure(fmt.Sprintf("node %d", i+1), report.Mebibytes(float64(n.TakePeakMemory())))
	}
	return nil
}

// The parts of the machine whose processor time is measured.
var postgresSides = []string{"primary", "standby", "node 1", "node 2", "load"}

// usage is what the machine and the database have used so far.
type usage struct {
	processor [5]float64 // seconds, for each of postgresSides
	wal, disk float64    // bytes of write-ahead log written, and of tables and indexes
}

func (b *postgresBenchmark) usage(servers [nodeCount]*server.Process) (u usage, err error) {
	for i, time := range []func() (time.Duration, error){
		func() (time.Duration, error) { return server.CPUTime(b.db.Primary) },
		func() (time.Duration, error) { return server.CPUTime(b.db.Standby) },
		servers[0].CPUTime, servers[1].CPUTime, ownCPUTime,
	} {
		used, err := time()
		if err != nil {
			return u, err
		}
		u.processor[i] = used.Seconds()
	}
	err = b.db.QueryRow(b.ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8,
		sum(pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0))::float8
		FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i')`).Scan(&u.wal, &u.disk)
	return u, err
}

func ownCPUTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

func (b *postgresBenchmark) measureRound(p *postgresPart) error {
	servers := [nodeCount]*server.Process{b.nodes[0].Process, b.nodes[1].Process}
	if p.merchants == nil {
		copy(servers[:], b.queues)
	}
	before, err := b.usage(servers)
	if err != nil {
		return err
	}
	var results [nodeCount]*load.Result
	var errs [nodeCount]error
	var running sync.WaitGroup
	for i := range nodeCount {
		running.Go(func() {
			t, next := b.source(p, i)
			results[i], errs[i] = load.RunAccepted(b.ctx, load.Phase{Target: t, Connections: p.connections / nodeCount, Duration: b.Round, Next: next})
		})
	}
	running.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	after, err := b.usage(servers)
	if err != nil {
		return err
	}
	latency, events, rate := load.NewHistogram(), 0.0, 0.0
	for _, r := range results {
		latency.Add(r.Latency)
		events += float64(r.Events)
		rate += r.Rate()
	}
	p.measured.add("rate", rate)
	p.measured.add("p50", latency.At(50).Seconds())
	p.measured.add("p99", latency.At(99).Seconds())
	all := 0.0
	for i, side := range postgresSides {
		cost := (after.processor[i] - before.processor[i]) / events
		p.measured.add(side, cost)
		if side != "load" {
			all += cost
		}
	}
	p.measured.add("servers", all)
	p.measured.add("WAL", (after.wal-before.wal)/events)
	p.measured.add("disk", (after.disk-before.disk)/events)
	return nil
}

// source makes the requests of one node's connections. Merchants take turns.
func (b *postgresBenchmark) source(p *postgresPart, node int) (load.Target, func([]byte) ([]byte, int)) {
	if p.merchants == nil {
		return b.queueTargets[node], load.Marks(b.queueTargets[node], p.kind, p.batch)
	}
	var next []func([]byte) ([]byte, int)
	for i := range p.merchants {
		next = append(next, load.Marks(b.nodes[node].MarkTarget(&p.merchants[i]), p.kind, p.batch))
	}
	n := 0
	return b.nodes[node].API.Target, func(buf []byte) ([]byte, int) {
		n++
		return next[n%len(next)](buf)
	}
}

// measureListing fills a merchant through both nodes' engines, and times queries.
func (b *postgresBenchmark) measureListing() error {
	b.progress("filling: %s events", report.Grouped(b.Events))
	m, r, err := dataset.Fill(b.ctx, b.nodes[0].API, b.Events, fillDays, 10)
	if err != nil {
		return err
	}
	b.progress("filled: %s; counting and vacuum", report.PerSecond(r.Rate()))
	for left := int64(1); left > 0; time.Sleep(foldPoll) { // until all events are in the counters
		if err := b.db.QueryRow(b.ctx, "SELECT count(*) FROM tally").Scan(&left); err != nil {
			return err
		}
	}
	if _, err := b.db.Exec(b.ctx, "VACUUM ANALYZE"); err != nil {
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
