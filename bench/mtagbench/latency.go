package main

import (
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
)

// holdHalfOfMaximum measures latency at half of the maximum rate for a longer time. Much of it is the machine's: the file shows how much.
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
		{"p99", "7 4", func(r *load.Result) time.Duration { return r.Latency.At(99) }},
		{"slowest", "2 4", func(r *load.Result) time.Duration { return r.Latency.Max() }},
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
	text, err := picture.SVG()
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(b.Out, pictureFile), text)
}

// measureOverload offers twice the maximum rate: single events from more connections than reached the maximum, then from
// thousands, then batches.
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
