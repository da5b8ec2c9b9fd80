package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

func (b *benchmark) steady() error {
	rate := b.maximum / 2
	b.progress("half of the maximum, %s, for %v", perSecond(rate), b.Steady)
	t := b.service.mark(&b.loaded)
	r, err := b.healthyTurn(b.service.process, offering(t, manyConnections, 1, b.Steady, rate))
	if err != nil {
		return err
	}
	b.report.section(fmt.Sprintf("Half of the maximum rate for %v", b.Steady),
		fmt.Sprintf("%s offered at fixed times on %d connections; latency from the intended time.", perSecond(rate), manyConnections))
	b.report.tell("p50", milliseconds(r.at(50).Seconds()))
	b.report.atMost("p99", r.at(99).Seconds(), 0.010, milliseconds)
	b.report.tell("p99.9", milliseconds(r.at(99.9).Seconds()))
	b.report.atMost("slowest", r.max().Seconds(), 0.100, milliseconds)
	return nil
}

// curve measures latency against offered load, bare and mtagd in turns, and draws it.
func (b *benchmark) curve() error {
	c := chart{
		title:    "Latency against offered load",
		subtitle: fmt.Sprintf("POST /mark, durable, %d connections, from the intended time; %d cores shared with the client", manyConnections, runtime.NumCPU()),
		x:        "offered events per second", y: "milliseconds",
	}
	percentiles := []struct {
		label, dash string
		of          func(*result) time.Duration
	}{
		{"p50", "", func(r *result) time.Duration { return r.at(50) }},
		{"p99", "7 4", func(r *result) time.Duration { return r.at(99) }},
		{"max", "2 4", func(r *result) time.Duration { return r.max() }},
	}
	sides := []struct {
		name, colour string
		target       target
	}{{"bare", "#8a8f98", b.ceiling}, {"mtagd", "#1565c0", b.service.mark(&b.loaded)}}
	for _, s := range sides {
		for _, p := range percentiles {
			c.lines = append(c.lines, line{label: s.name + " " + p.label, colour: s.colour, dash: p.dash})
		}
	}
	b.report.section("Latency against offered load", "In the picture, beside the bare server under the same load.")
	for _, part := range []float64{0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1} {
		rate := part * b.maximum
		b.progress("offered %s: bare, then mtagd", perSecond(rate))
		for i, s := range sides {
			r, err := load(b.ctx, offering(s.target, manyConnections, 1, b.Round, rate))
			if err != nil {
				return err
			}
			for j, p := range percentiles {
				l := &c.lines[i*len(percentiles)+j]
				l.points = append(l.points, point{rate, p.of(r).Seconds() * 1000})
			}
			b.report.tell(fmt.Sprintf("%.0f %% of mtagd's maximum, %s, %s: p50, p99, slowest", 100*part, perSecond(rate), s.name),
				fmt.Sprintf("%s, %s, %s", milliseconds(r.at(50).Seconds()), milliseconds(r.at(99).Seconds()), milliseconds(r.max().Seconds())))
		}
	}
	var picture bytes.Buffer
	if err := c.write(&picture); err != nil {
		return err
	}
	if err := os.MkdirAll(b.Out, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Out, "latency.svg"), picture.Bytes(), 0o666)
}

// overload offers twice the maximum: single events from more connections than the maximum took and from very many, then
// batches.
func (b *benchmark) overload() error {
	t := b.service.mark(&b.loaded)
	b.report.section("Overload", "Twice the maximum rates above. The time that a refusal takes is from its sending.")
	for _, o := range []struct {
		what    string
		batch   int
		conns   int
		maximum float64
	}{
		{"single events", 1, overloadConnections, b.maximum},
		{"single events", 1, floodConnections, b.maximum},
		{fmt.Sprintf("batches of %d", batchEvents), batchEvents, batchOverload, b.batchMaximum},
	} {
		what := fmt.Sprintf("%s, %s connections", o.what, grouped(o.conns))
		b.progress("overload: %s", what)
		r, err := b.turn(b.service.process, offering(t, o.conns, o.batch, 2*b.Round, 2*o.maximum))
		if err != nil {
			return err
		}
		b.report.tell(what+": offered", perSecond(2*o.maximum))
		b.report.atLeast(what+": accepted, of the maximum", r.rate()/o.maximum, 0.9, percent)
		b.report.judge(what+": refused with 503 and Retry-After", fmt.Sprintf("%s of %s", grouped(r.refused-r.rude), grouped(r.refused)), "all", r.rude == 0)
		b.report.judge(what+": answered otherwise or not at all", grouped(r.failed), "0", r.failed == 0)
		if r.refused > 0 {
			b.report.atMost(what+": a refusal takes, p99", quantile(r.refusal, 99).Seconds(), 0.1, milliseconds)
		}
		b.report.tell(what+": requests for which no connection was free in time", grouped(r.unsent))
	}
	return nil
}
