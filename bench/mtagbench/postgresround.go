package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/server"
)

// source makes the requests of one node's connections.
func (b *postgresBenchmark) source(p postgresPart, node int) (load.Target, func([]byte) ([]byte, int)) {
	requests := load.Requests{Batch: p.batch, Kind: p.kind}
	if p.merchants == 0 {
		return b.queueTargets[node], requests.To(b.queueTargets[node])
	}
	var next []func([]byte) ([]byte, int)
	of := b.merchants[:1]
	if p.merchants > 1 {
		of = b.merchants[1 : 1+p.merchants]
	}
	for i := range of {
		next = append(next, requests.To(b.nodes[node].MarkTarget(&of[i])))
	}
	n := 0
	return b.nodes[node].API.Target, func(buf []byte) ([]byte, int) {
		n++
		return next[n%len(next)](buf)
	}
}

// The parts of the machine whose processor time is measured.
var postgresSides = []string{"primary", "standby", "node 1", "node 2", "load"}

// processorTimes returns the processor time of each side.
func (b *postgresBenchmark) processorTimes(servers []*server.Process) (times []time.Duration, err error) {
	for _, s := range []func() (time.Duration, error){
		func() (time.Duration, error) { return server.CPUTime(b.db.Primary) },
		func() (time.Duration, error) { return server.CPUTime(b.db.Standby) },
		servers[0].CPUTime, servers[1].CPUTime, ownCPUTime,
	} {
		t, err := s()
		if err != nil {
			return nil, err
		}
		times = append(times, t)
	}
	return times, nil
}

func ownCPUTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// round is what was measured of one part in one round.
type round struct {
	rate     float64
	p50, p99 float64
	costs    []float64 // of each side, seconds of processor time per event
	wal      float64   // bytes per event
	disk     float64   // bytes of tables and indexes per event
}

// measure runs one part on both nodes at once.
func (b *postgresBenchmark) measure(p postgresPart) (r round, err error) {
	servers := b.processes()
	if p.merchants == 0 {
		servers = b.queues
	}
	before, err := b.processorTimes(servers)
	if err != nil {
		return r, err
	}
	wal, err := b.writtenLog()
	if err != nil {
		return r, err
	}
	size, err := b.relationsSize()
	if err != nil {
		return r, err
	}
	results := make([]*load.Result, nodeCount)
	errs := make([]error, nodeCount)
	var running sync.WaitGroup
	for i := range nodeCount {
		running.Go(func() {
			t, next := b.source(p, i)
			results[i], errs[i] = load.Run(b.ctx, load.Phase{Target: t, Connections: p.connections / nodeCount, Duration: b.Round, Next: next})
			if errs[i] == nil {
				errs[i] = results[i].AllAccepted()
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("%s: %w", p.title, err)
	}
	latency := load.NewHistogram()
	events := 0
	for _, one := range results {
		events += one.Events
		r.rate += one.Rate()
		latency.Add(one.Latency)
	}
	r.p50, r.p99 = latency.At(50).Seconds(), latency.At(99).Seconds()
	after, err := b.processorTimes(servers)
	if err != nil {
		return r, err
	}
	for i := range after {
		r.costs = append(r.costs, (after[i]-before[i]).Seconds()/float64(events))
	}
	walAfter, err := b.writtenLog()
	if err != nil {
		return r, err
	}
	r.wal = float64(walAfter-wal) / float64(events)
	sizeAfter, err := b.relationsSize()
	r.disk = float64(sizeAfter-size) / float64(events)
	return r, err
}

// writtenLog is how much write-ahead log the primary has written, in bytes.
func (b *postgresBenchmark) writtenLog() (n int64, err error) {
	return n, b.db.Query(b.ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&n)
}

// relationsSize returns the size of all tables and indexes together, in bytes.
func (b *postgresBenchmark) relationsSize() (size int64, err error) {
	err = b.db.Query(b.ctx, `SELECT sum(pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0))::bigint
		FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i')`).Scan(&size)
	return size, err
}

// profile takes a CPU profile of the first node while a part of the first round runs.
func (b *postgresBenchmark) profile(p postgresPart, round int) (stop func() error, err error) {
	if b.Profile == "" || round > 0 || p.merchants == 0 {
		return func() error { return nil }, nil
	}
	done := make(chan error, 1)
	go func() {
		taken, err := b.nodes[0].AdminPage(b.ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(b.Round.Seconds())))
		if err == nil {
			err = os.WriteFile(filepath.Join(b.Profile, p.name+".pprof"), taken, 0o666)
		}
		done <- err
	}()
	return func() error { return <-done }, nil
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

func formatCosts(costs []float64) string {
	var all []string
	for i, c := range costs {
		all = append(all, fmt.Sprintf("%s %.1f", postgresSides[i], c*1e6))
	}
	return strings.Join(all, ", ")
}

func sum(values []float64) (all float64) {
	for _, v := range values {
		all += v
	}
	return all
}
