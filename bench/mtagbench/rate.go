package main

import (
	"fmt"
	"time"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
)

// compareWithFile finds the maximum rates of single events. The synced file and mtagd take turns, and each round of mtagd is
// compared with the round of the file before it.
func compareWithFile(b *benchmark) error {
	b.table.Section("Single events against a synced file",
		fmt.Sprintf("As fast as answers come, 201 after the synced commit. The file is fasthttp that syncs the bodies to a file, by groups. Medians of %d rounds of %v, file and mtagd in turns.", b.Rounds, b.Round))
	target := b.mtagd.MarkTarget(&b.loaded)
	for _, c := range []struct {
		events      string
		loop        func(load.Target, int, time.Duration) load.Phase
		connections int
		target      float64
	}{
		{"as browsers send", load.BrowserClosedLoop, manyConnections, 0.75},
		{"as browsers send", load.BrowserClosedLoop, fewConnections, 0.70},
		{"plain", plainClosedLoop, manyConnections, 0.95},
		{"plain", plainClosedLoop, fewConnections, 0.90},
	} {
		var rates, fileRates, rateRatios, costs, costRatios, p99s, fileP99s []float64
		for round := range b.Rounds {
			b.progress("events %s, %d connections, round %d of %d: file, then mtagd", c.events, c.connections, round+1, b.Rounds)
			file, err := b.acceptedTurn(b.synced, c.loop(b.syncedTarget, c.connections, b.Round))
			if err != nil {
				return err
			}
			mtagd, err := b.acceptedTurn(b.mtagd.Process, c.loop(target, c.connections, b.Round))
			if err != nil {
				return err
			}
			rates, fileRates = append(rates, mtagd.Rate()), append(fileRates, file.Rate())
			rateRatios = append(rateRatios, mtagd.Rate()/file.Rate())
			costs = append(costs, mtagd.cpu.Seconds())
			costRatios = append(costRatios, mtagd.cpu.Seconds()/file.cpu.Seconds())
			p99s, fileP99s = append(p99s, mtagd.Latency.At(99).Seconds()), append(fileP99s, file.Latency.At(99).Seconds())
		}
		at := fmt.Sprintf("%s, %d connections: ", c.events, c.connections)
		b.table.Figure(at+"file", report.PerSecond(median(fileRates)))
		b.table.Figure(at+"mtagd", report.PerSecond(median(rates)))
		b.table.AtLeast(at+"ratio of rates", median(rateRatios), c.target, report.Ratio)
		b.table.Figure(at+"server CPU per event, mtagd", report.Microseconds(median(costs)))
		if c.events == "plain" {
			b.table.AtMost(at+"ratio of CPU", median(costRatios), 1.05, report.Ratio)
		} else {
			b.table.Figure(at+"ratio of CPU", report.Ratio(median(costRatios)))
		}
		b.table.AtMost(at+"p99, target the file's", median(p99s), median(fileP99s), report.Milliseconds)
		if c.events == "plain" && c.connections == manyConnections {
			b.maximum = median(rates)
		}
	}
	return measureWriteAmplification(b, target)
}

func plainClosedLoop(t load.Target, connections int, d time.Duration) load.Phase {
	return load.ClosedLoop(t, connections, 1, d)
}

func measureWriteAmplification(b *benchmark, target load.Target) error {
	before, err := b.mtagd.DiskWrites()
	if err != nil {
		return err
	}
	r, err := b.turn(b.mtagd.Process, load.ClosedLoop(target, manyConnections, 1, max(b.Round, 2*time.Second)))
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
	target := b.mtagd.MarkTarget(&b.loaded)
	var rates, costs []float64
	for range b.Rounds {
		r, err := b.acceptedTurn(b.mtagd.Process, load.ClosedLoop(target, batchConnections, batchEvents, b.Round))
		if err != nil {
			return err
		}
		rates, costs = append(rates, r.Rate()), append(costs, r.cpu.Seconds())
	}
	b.batchMaximum = median(rates)
	b.table.Section(fmt.Sprintf("Batches of %d events", batchEvents), fmt.Sprintf("%d connections, medians of %d rounds.", batchConnections, b.Rounds))
	b.table.AtLeast("durable events", b.batchMaximum, 200_000, report.PerSecond)
	b.table.Figure("server CPU per event", report.Microseconds(median(costs)))
	return nil
}
