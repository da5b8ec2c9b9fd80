package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/store"
)

// compareWithFile finds the maximum rates of single events. Each round of mtagd is compared with the file's before it.
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
	var r *load.Result
	written, err := b.written(func() (err error) {
		r, _, err = b.turn(b.mtagd.Process, load.ClosedLoop(b.target(), load.Plain, manyConnections, 1, max(b.Round, 2*time.Second)))
		return err
	})
	if err == nil {
		b.table.Figure("write amplification, single events", report.Times(written/float64(r.Events*bench.EventSize)))
	}
	return err
}

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

// holdHalfOfMaximum measures latency at half of the maximum rate for longer. The file shows how much is the machine's.
func holdHalfOfMaximum(b *benchmark) error {
	rate := b.maximum / 2
	b.progress("half of the maximum, %s, for %v: file, then mtagd", report.PerSecond(rate), b.Steady)
	b.table.Section(fmt.Sprintf("Half of the maximum rate for %v", b.Steady),
		fmt.Sprintf("%s offered at fixed times on %d connections; latency from the intended time. First the synced file.", report.PerSecond(rate), manyConnections))
	file, fileCPU, err := b.acceptedTurn(b.synced, load.OpenLoop(b.syncedTarget, manyConnections, 1, b.Steady, rate))
	if err != nil {
		return err
	}
	r, cpu, err := b.acceptedTurn(b.mtagd.Process, load.OpenLoop(b.target(), manyConnections, 1, b.Steady, rate))
	if err != nil {
		return err
	}
	b.table.Figure("file: CPU per event", report.Microseconds(fileCPU))
	b.table.Figure("CPU per event", report.Microseconds(cpu))
	b.addPercentile("file: p50", file.Latency, 50)
	b.addPercentile("p50", r.Latency, 50)
	b.addPercentile("file: p99", file.Latency, 99)
	b.table.AtMost("p99", r.Latency.At(99).Seconds(), 0.010, report.Milliseconds)
	b.table.Figure("file: slowest", report.Milliseconds(file.Latency.Max().Seconds()))
	b.table.AtMost("slowest", r.Latency.Max().Seconds(), 0.100, report.Milliseconds)
	return nil
}

// pictureFile is the chart's file, in the directory of the table.
const pictureFile = "latency.svg"

// measureLatencyCurve measures latency at rising load, the synced file and mtagd in turns, and draws it.
func measureLatencyCurve(b *benchmark) error {
	percentiles := []struct {
		label, dash string
		of          func(*load.Result) time.Duration
	}{
		{"median", "", func(r *load.Result) time.Duration { return r.Latency.At(50) }},
		{"p99", "2", func(r *load.Result) time.Duration { return r.Latency.At(99) }},
		{"slowest", "3", func(r *load.Result) time.Duration { return r.Latency.Max() }},
	}
	sides := []struct {
		label, colour string
		target        load.Target
	}{
		{"synced file", "#6b7280", b.syncedTarget},
		{"mtagd", "#1565c0", b.target()},
	}
	picture := report.Chart{
		Title:    "Latency against offered load",
		Subtitle: fmt.Sprintf("POST /mark on %d connections; mtagd answers once the event is on disk; client and server share %d cores", manyConnections, runtime.NumCPU()),
		X:        "events offered per second", Y: "latency in milliseconds",
	}
	for _, s := range sides {
		for _, p := range percentiles {
			picture.Lines = append(picture.Lines, report.Line{Label: s.label + ", " + p.label, Colour: s.colour, Dash: p.dash})
		}
	}
	for _, part := range []float64{0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1} {
		rate := part * b.maximum
		b.progress("offered %s: file, then mtagd", report.PerSecond(rate))
		for i, s := range sides {
			r, err := load.Run(b.ctx, load.OpenLoop(s.target, manyConnections, 1, b.Round, rate))
			if err != nil {
				return err
			}
			for j, p := range percentiles {
				line := &picture.Lines[i*len(percentiles)+j]
				line.Points = append(line.Points, report.Point{X: rate, Y: p.of(r).Seconds() * 1000})
			}
		}
	}
	if err := os.MkdirAll(b.Out, 0o777); err != nil {
		return err
	}
	return picture.Draw(b.ctx, filepath.Join(b.Out, pictureFile))
}

// measureOverload offers twice the maximum rate: single events from more connections, then from thousands, then batches.
func measureOverload(b *benchmark) error {
	b.table.Section("Overload", "Twice the maximum rates above, offered at fixed times. Accepted is the share of the maximum; what found no free connection was never sent.")
	for _, o := range []struct {
		what        string
		batch       int
		connections int
		maximum     float64
	}{
		{"single events", 1, overloadConnections, b.maximum},
		{"single events", 1, floodConnections, b.maximum},
		{fmt.Sprintf("batches of %d", batchEvents), batchEvents, batchOverload, b.batchMaximum},
	} {
		what := fmt.Sprintf("%s, %s connections", o.what, report.Grouped(o.connections))
		b.progress("overload: %s", what)
		r, _, err := b.turn(b.mtagd.Process, load.OpenLoop(b.target(), o.connections, o.batch, 2*b.Round, 2*o.maximum))
		if err != nil {
			return err
		}
		b.table.Figure(what+": offered", report.PerSecond(2*o.maximum))
		b.table.AtLeast(what+": accepted", r.Rate()/o.maximum, 0.9, report.Percent)
		b.table.Judge(what+": refused with Retry-After", fmt.Sprintf("%s of %s", report.Grouped(r.Refused-r.NoRetryAfter), report.Grouped(r.Refused)), "all", r.NoRetryAfter == 0)
		b.table.Judge(what+": failed", report.Grouped(r.Failed), "0", r.Failed == 0)
		if r.Refused > 0 {
			b.table.AtMost(what+": time to a refusal, p99", r.RefusalTime.At(99).Seconds(), 0.1, report.Milliseconds)
		}
		b.table.Figure(what+": never sent", report.Grouped(r.Unsent))
	}
	return nil
}
