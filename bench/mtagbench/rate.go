package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/store"
)

// compareWithFile finds the maximum rates of single events. The synced file and mtagd take turns, and each round of mtagd is
// compared with the round of the file before it.
func compareWithFile(b *benchmark) error {
	b.table.Section("Single events against a synced file",
		fmt.Sprintf("As fast as answers come, 201 after the synced commit. The file is fasthttp that syncs the bodies to a file, by groups, on 256 and 64 connections; its p99 is the target. Medians of %d rounds of %v, in turns.", b.Rounds, b.Round))
	for _, c := range []struct {
		events      string
		kind        load.Kind
		connections int
		target      float64
	}{
		{"as browsers send", load.Browser, manyConnections, 0.75},
		{"as browsers send", load.Browser, fewConnections, 0.70},
		{"plain", load.Plain, manyConnections, 0.95},
		{"plain", load.Plain, fewConnections, 0.90},
	} {
		r := rounds{}
		for round := range b.Rounds {
			b.progress("events %s, %d connections, round %d of %d: file, then mtagd", c.events, c.connections, round+1, b.Rounds)
			file, fileCPU, err := b.acceptedTurn(b.synced, load.ClosedLoop(b.syncedTarget, c.kind, c.connections, 1, b.Round))
			if err != nil {
				return err
			}
			mtagd, cpu, err := b.acceptedTurn(b.mtagd.Process, load.ClosedLoop(b.target(), c.kind, c.connections, 1, b.Round))
			if err != nil {
				return err
			}
			r.add("rate", mtagd.Rate())
			r.add("file's rate", file.Rate())
			r.add("ratio of rates", mtagd.Rate()/file.Rate())
			r.add("CPU", cpu)
			r.add("ratio of CPU", cpu/fileCPU)
			r.add("p99", mtagd.Latency.At(99).Seconds())
			r.add("file's p99", file.Latency.At(99).Seconds())
		}
		at := fmt.Sprintf("%s, %d: ", c.events, c.connections)
		b.table.Figure(at+"file", report.PerSecond(r.median("file's rate")))
		b.table.Figure(at+"mtagd", report.PerSecond(r.median("rate")))
		b.table.AtLeast(at+"ratio of rates", r.median("ratio of rates"), c.target, report.Ratio)
		b.table.Figure(at+"CPU per event", report.Microseconds(r.median("CPU")))
		if c.kind == load.Plain {
			b.table.AtMost(at+"ratio of CPU", r.median("ratio of CPU"), 1.05, report.Ratio)
		} else {
			b.table.Figure(at+"ratio of CPU", report.Ratio(r.median("ratio of CPU")))
		}
		b.table.AtMost(at+"p99", r.median("p99"), r.median("file's p99"), report.Milliseconds)
		if c.kind == load.Plain && c.connections == manyConnections {
			b.maximum = r.median("rate")
		}
	}
	return measureWriteAmplification(b)
}

func measureWriteAmplification(b *benchmark) error {
	before, err := b.mtagd.DiskWrites()
	if err != nil {
		return err
	}
	r, _, err := b.turn(b.mtagd.Process, load.ClosedLoop(b.target(), load.Plain, manyConnections, 1, max(b.Round, 2*time.Second)))
	if err != nil {
		return err
	}
	after, err := b.mtagd.DiskWrites()
	if err != nil {
		return err
	}
	b.table.Figure("write amplification, single events", report.Times(float64(after-before)/float64(r.BodyBytes)))
	return nil
}

// measureBatches finds the maximum rate of events in batches.
func measureBatches(b *benchmark) error {
	b.progress("batches of %d", batchEvents)
	r := rounds{}
	for range b.Rounds {
		result, cpu, err := b.acceptedTurn(b.mtagd.Process, load.ClosedLoop(b.target(), load.Plain, batchConnections, batchEvents, b.Round))
		if err != nil {
			return err
		}
		r.add("rate", result.Rate())
		r.add("CPU", cpu)
	}
	b.batchMaximum = r.median("rate")
	b.table.Section(fmt.Sprintf("Batches of %d events", batchEvents), fmt.Sprintf("%d connections, medians of %d rounds.", batchConnections, b.Rounds))
	b.table.AtLeast("durable events", b.batchMaximum, 200_000, report.PerSecond)
	b.table.Figure("server CPU per event", report.Microseconds(r.median("CPU")))
	return nil
}

// The heavy merchant of measureFairness sends batches. It starts before the other merchant, and stops after it.
const (
	heavyBatch       = 1000
	heavyConnections = 8
	heavyWarmUp      = 300 * time.Millisecond
)

// measureFairness measures how much slower a merchant's single events become while another merchant sends as much as it can.
func measureFairness(b *benchmark) error {
	shop, err := b.mtagd.API.AddMerchant("neighbour")
	if err != nil {
		return err
	}
	target := b.mtagd.MarkTarget(&shop)
	b.table.Section("A merchant beside another one",
		fmt.Sprintf("Single events of a merchant, alone and while another one sends batches of %s on %d connections. Medians of %d rounds.",
			report.Grouped(heavyBatch), heavyConnections, b.Rounds))
	for _, connections := range []int{1, 4, 16} {
		r := rounds{}
		for round := range b.Rounds {
			b.progress("beside another merchant, %d connections, round %d of %d", connections, round+1, b.Rounds)
			neighbour := load.ClosedLoop(target, load.Plain, connections, 1, b.Round)
			alone, err := load.Run(b.ctx, neighbour)
			if err != nil {
				return err
			}
			beside, err := runBeside(b.ctx, load.ClosedLoop(b.target(), load.Plain, heavyConnections, heavyBatch, b.Round+2*heavyWarmUp), neighbour)
			if err != nil {
				return err
			}
			for _, p := range []float64{50, 99} {
				r.add(fmt.Sprint("alone ", p), alone.Latency.At(p).Seconds())
				r.add(fmt.Sprint("beside ", p), beside.Latency.At(p).Seconds())
				r.add(fmt.Sprint("ratio ", p), beside.Latency.At(p).Seconds()/alone.Latency.At(p).Seconds())
			}
			r.add("refused", float64(beside.Refused+beside.Failed))
		}
		for _, p := range []float64{50, 99} {
			b.table.AtMost(fmt.Sprintf("%d connections, p%.0f %s against %s", connections, p,
				report.Milliseconds(r.median(fmt.Sprint("beside ", p))), report.Milliseconds(r.median(fmt.Sprint("alone ", p)))),
				r.median(fmt.Sprint("ratio ", p)), 5, report.Times)
		}
		b.table.Judge(fmt.Sprintf("%d connections, refused or failed", connections), report.Grouped(int(r.median("refused"))), "0", r.median("refused") == 0)
	}
	return nil
}

// runBeside runs a phase while a longer one runs.
func runBeside(ctx context.Context, long, short load.Phase) (r *load.Result, err error) {
	var failed error
	var running sync.WaitGroup
	running.Go(func() { _, failed = load.Run(ctx, long) })
	if err = store.Sleep(ctx, heavyWarmUp); err == nil {
		r, err = load.Run(ctx, short)
	}
	running.Wait()
	return r, errors.Join(err, failed)
}
