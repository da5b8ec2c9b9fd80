package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mtagd/bench"
)

// turn is one round of one server.
type turn struct {
	*result
	cpu time.Duration // of the server, per event
}

func (b *benchmark) turn(server *process, p phase) (turn, error) {
	before, err := server.cpu()
	if err != nil {
		return turn{}, err
	}
	r, err := load(b.ctx, p)
	if err != nil {
		return turn{}, err
	}
	after, err := server.cpu()
	if err != nil {
		return turn{}, err
	}
	if r.events == 0 {
		return turn{}, fmt.Errorf("no event was accepted: %w", errors.Join(r.healthy(), server.failure("took none")))
	}
	return turn{r, (after - before) / time.Duration(r.events)}, nil
}

// healthyTurn is a turn in which every event has to be accepted.
func (b *benchmark) healthyTurn(server *process, p phase) (turn, error) {
	t, err := b.turn(server, p)
	if err == nil {
		err = t.healthy()
	}
	return t, err
}

// compare runs bare and mtagd in turns and compares each round with the one beside it.
func (b *benchmark) compare() error {
	b.report.section("Single events against the bare ceiling",
		fmt.Sprintf("As fast as answers come, a body of %d bytes, 201 after the synced commit; medians of %d interleaved rounds of %v.", bench.EventSize, b.Rounds, b.Round))
	target := b.service.mark(&b.loaded)
	for _, c := range []struct {
		conns  int
		target float64
	}{{manyConnections, 0.70}, {fewConnections, 0.45}} {
		var rates, ceilings, ratios, costs, bareCosts, costRatios []float64
		for round := range b.Rounds {
			b.progress("%d connections, round %d of %d: bare, then mtagd", c.conns, round+1, b.Rounds)
			bare, err := b.turn(b.bare, marking(b.ceiling, c.conns, 1, b.Round))
			if err != nil {
				return err
			}
			ours, err := b.healthyTurn(b.service.process, marking(target, c.conns, 1, b.Round))
			if err != nil {
				return err
			}
			rates, ceilings = append(rates, ours.rate()), append(ceilings, bare.rate())
			ratios = append(ratios, ours.rate()/bare.rate())
			costs, bareCosts = append(costs, ours.cpu.Seconds()), append(bareCosts, bare.cpu.Seconds())
			costRatios = append(costRatios, ours.cpu.Seconds()/bare.cpu.Seconds())
		}
		at := fmt.Sprintf("%d connections: ", c.conns)
		b.report.tell(at+"bare", perSecond(median(ceilings)))
		b.report.tell(at+"mtagd", perSecond(median(rates)))
		b.report.atLeast(at+"ratio of rates", median(ratios), c.target, ratio)
		b.report.tell(at+"server CPU per event, bare", microseconds(median(bareCosts)))
		b.report.tell(at+"server CPU per event, mtagd", microseconds(median(costs)))
		b.report.atMost(at+"ratio of CPU", median(costRatios), 1.6, ratio)
		if c.conns == manyConnections {
			b.maximum = median(rates)
		}
	}
	return b.identified(target)
}

// identified measures what an email and an event_id add, and counts what is written.
func (b *benchmark) identified(target target) error {
	b.progress("%d connections, events with email and event_id", manyConnections)
	r, err := b.healthyTurn(b.service.process, identifying(target, manyConnections, b.Round))
	if err != nil {
		return err
	}
	b.report.tell("with email and event_id, as browsers send: mtagd", perSecond(r.rate()))
	b.report.tell("with email and event_id: server CPU per event", microseconds(r.cpu.Seconds()))

	before, err := b.service.written()
	if err != nil {
		return err
	}
	if r, err = b.turn(b.service.process, marking(target, manyConnections, 1, max(b.Round, 2*time.Second))); err != nil {
		return err
	}
	after, err := b.service.written()
	if err != nil {
		return err
	}
	b.report.tell("write amplification, single events", times(float64(after-before)/float64(r.bodyBytes)))
	return nil
}

func (b *benchmark) batches() error {
	b.progress("batches of %d", batchEvents)
	target := b.service.mark(&b.loaded)
	var rates, costs []float64
	for range b.Rounds {
		r, err := b.healthyTurn(b.service.process, marking(target, batchConnections, batchEvents, b.Round))
		if err != nil {
			return err
		}
		rates, costs = append(rates, r.rate()), append(costs, r.cpu.Seconds())
	}
	b.report.section(fmt.Sprintf("Batches of %d events", batchEvents), fmt.Sprintf("%d connections, medians of %d rounds.", batchConnections, b.Rounds))
	b.batchMaximum = median(rates)
	b.report.atLeast("durable events", b.batchMaximum, 200_000, perSecond)
	b.report.tell("server CPU per event", microseconds(median(costs)))
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
