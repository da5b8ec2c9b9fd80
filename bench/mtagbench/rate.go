package main

import (
	"fmt"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
)

// compareWithBare finds the maximum rates of single events. Bare and mtagd take turns, and each round of mtagd is
// compared with the round of bare before it.
func compareWithBare(b *benchmark) error {
	b.table.Section("Single events against the bare ceiling",
		fmt.Sprintf("As fast as answers come, bodies of %d bytes, 201 after the synced commit. Medians of %d rounds of %v, bare and mtagd in turns.", bench.EventSize, b.Rounds, b.Round))
	target := b.mtagd.MarkTarget(&b.loaded)
	for _, c := range []struct {
		connections int
		target      float64
	}{{manyConnections, 0.70}, {fewConnections, 0.45}} {
		var rates, bareRates, rateRatios, costs, bareCosts, costRatios []float64
		for round := range b.Rounds {
			b.progress("%d connections, round %d of %d: bare, then mtagd", c.connections, round+1, b.Rounds)
			bare, err := b.turn(b.bare, load.ClosedLoop(b.bareTarget, c.connections, 1, b.Round))
			if err != nil {
				return err
			}
			mtagd, err := b.acceptedTurn(b.mtagd.Process, load.ClosedLoop(target, c.connections, 1, b.Round))
			if err != nil {
				return err
			}
			rates, bareRates = append(rates, mtagd.Rate()), append(bareRates, bare.Rate())
			rateRatios = append(rateRatios, mtagd.Rate()/bare.Rate())
			costs, bareCosts = append(costs, mtagd.cpu.Seconds()), append(bareCosts, bare.cpu.Seconds())
			costRatios = append(costRatios, mtagd.cpu.Seconds()/bare.cpu.Seconds())
		}
		at := fmt.Sprintf("%d connections: ", c.connections)
		b.table.Figure(at+"bare", report.PerSecond(median(bareRates)))
		b.table.Figure(at+"mtagd", report.PerSecond(median(rates)))
		b.table.AtLeast(at+"ratio of rates", median(rateRatios), c.target, report.Ratio)
		b.table.Figure(at+"server CPU per event, bare", report.Microseconds(median(bareCosts)))
		b.table.Figure(at+"server CPU per event, mtagd", report.Microseconds(median(costs)))
		b.table.AtMost(at+"ratio of CPU", median(costRatios), 1.6, report.Ratio)
		if c.connections == manyConnections {
			b.maximum = median(rates)
		}
	}
	if err := measureIdentified(b, target); err != nil {
		return err
	}
	return measureWriteAmplification(b, target)
}

// measureIdentified sends events with an email and an event_id. The engine links and deduplicates these.
func measureIdentified(b *benchmark, target load.Target) error {
	b.progress("%d connections, events with email and event_id", manyConnections)
	r, err := b.acceptedTurn(b.mtagd.Process, load.IdentifiedClosedLoop(target, manyConnections, b.Round))
	if err != nil {
		return err
	}
	b.table.Figure("with email and event_id, as browsers send: mtagd", report.PerSecond(r.Rate()))
	b.table.Figure("with email and event_id: server CPU per event", report.Microseconds(r.cpu.Seconds()))
	return nil
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
