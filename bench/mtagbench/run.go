package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// runCommand is the whole measurement.
type runCommand struct {
	Server    string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to measure (default ${default})."`
	Out       string        `default:"bench/results" placeholder:"DIR" help:"Where table.md and latency.svg go (default ${default})."`
	Temp      string        `placeholder:"DIR" help:"Where the data directory is made: its disk is measured too (default the system's)."`
	Events    int           `default:"1000000" help:"Events to list; the targets are meant for 10000000 (default ${default})."`
	Order     order         `default:"ordered" enum:"ordered,shuffled" help:"Order of their arrival: ordered or shuffled (default ${default})."`
	Merchants int           `default:"100" help:"Merchants beside the one that is listed (default ${default})."`
	Queries   int           `default:"300" help:"Listing queries of each kind (default ${default})."`
	Rounds    int           `default:"3" help:"Rounds of each comparison (default ${default})."`
	Round     time.Duration `default:"3s" help:"Length of a round (default ${default})."`
	Steady    time.Duration `default:"20s" help:"How long half of the maximum rate is kept up; the target is meant for 10m (default ${default})."`
	Profile   string        `placeholder:"FILE" help:"Write a CPU profile of mtagd under full load."`
	Strict    bool          `help:"Fail when a target is missed."`
}

// Validate is called by kong.
func (c *runCommand) Validate() error {
	if c.Events < 1 || c.Merchants < 1 || c.Queries < 1 || c.Rounds < 1 || c.Round < time.Second || c.Steady < time.Second {
		return errors.New("--events, --merchants, --queries and --rounds must be at least 1, --round and --steady at least 1s")
	}
	return nil
}

// The connections of the two headline comparisons, and those of the other phases.
const (
	manyConnections     = 256
	fewConnections      = 64
	batchConnections    = 16
	overloadConnections = 8192
	batchOverload       = 512
	batchEvents         = 100
)

// bench is a run under way.
type bench struct {
	*runCommand
	*program
	report report

	service *service
	bare    *process
	ceiling target    // of bare
	load    dataset   // the merchant that takes the load
	data    *manifest // what is listed
	maximum float64   // events/s of mtagd with many connections
}

// Run measures, and writes what it saw.
func (c *runCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp(c.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	b := &bench{runCommand: c, program: &program{ctx: ctx, stdout: p.stdout, stderr: p.stderr}}
	defer func() {
		cancel()
		for _, child := range b.children() {
			<-child.exited
		}
	}()
	if b.bare, b.ceiling, err = startBare(ctx); err != nil {
		return err
	}
	if b.service, err = newService(ctx, c.Server, filepath.Join(dir, "data")); err != nil {
		return err
	}
	for _, phase := range []func() error{
		b.fill, b.starts, b.list, b.compare, b.batches, b.steady, b.curve, b.listUnderLoad, b.overload, b.memory,
	} {
		if err := phase(); err != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	if err := b.write(); err != nil {
		return err
	}
	if c.Strict && b.report.missed > 0 {
		return fmt.Errorf("%d targets were missed", b.report.missed)
	}
	return nil
}

func (b *bench) children() (all []*process) {
	if b.bare != nil {
		all = append(all, b.bare)
	}
	if b.service != nil && b.service.process != nil {
		all = append(all, b.service.process)
	}
	return all
}

// fill makes the data, so that everything after it is measured on a server that has some.
func (b *bench) fill() (err error) {
	b.progress("filling: %s events, %s, and %d other merchants", grouped(b.Events), b.Order, b.Merchants)
	written, err := b.service.written()
	if err != nil {
		return err
	}
	var r *result
	if b.data, r, err = fill(b.ctx, b.service.api, b.Events, 400, b.Merchants-1, b.Order); err != nil {
		return err
	}
	if b.load, err = b.service.api.newDataset("load"); err != nil {
		return err
	}
	after, err := b.service.written()
	if err != nil {
		return err
	}
	all := r.events + smallEvents + (b.Merchants-1)*otherEvents
	b.report.section("Data", fmt.Sprintf("Batches of %d, %s, from %d connections, over 400 days and %d names.", fillBatch, b.Order, 8, len(names)))
	b.report.tell(grouped(r.events)+" events of one merchant", perSecond(r.rate()))
	b.report.tell("write amplification: written to disk against bytes of bodies", times(float64(after-written)/float64(all*eventSize)))
	if err := b.service.stop(); err != nil {
		return err
	}
	used, err := diskUsage(b.service.data)
	if err != nil {
		return err
	}
	b.report.tell(fmt.Sprintf("disk per event of %d bytes, once stopped", eventSize), bytesEach(float64(used)/float64(all)))
	return b.service.start(b.ctx)
}

// starts kills the server under load and starts it again.
func (b *bench) starts() error {
	b.progress("starting again: after a stop, after a kill")
	b.report.section("Start", fmt.Sprintf("Until /readyz answers, with %s events.", grouped(b.Events)))
	b.report.atMost("after a stop", b.service.ready.Seconds(), 2, seconds)
	killed := make(chan error, 1)
	server := b.service.process
	go func() {
		time.Sleep(b.Round)
		killed <- server.kill()
	}()
	t := b.service.mark(&b.load)
	// The kill breaks every connection; the time for the answers bounds what is left of the phase.
	_, err := load(b.ctx, phase{target: t, conns: manyConnections, duration: b.Round + 100*time.Millisecond, next: newMarks(t, 1, false).next})
	if err := errors.Join(err, <-killed); err != nil {
		return err
	}
	if err := b.service.start(b.ctx); err != nil {
		return err
	}
	b.report.atMost("after a kill under full load", b.service.ready.Seconds(), 2, seconds)
	return nil
}

func (b *bench) list() error {
	b.progress("listing: %d queries of %d kinds, on two datasets", b.Queries, len(kinds))
	all, err := listAll(b.ctx, b.service.api, b.data, b.Queries)
	if err != nil {
		return err
	}
	b.report.listings(all, b.data)
	return nil
}

// turn is one round of one server.
type turn struct {
	*result
	cpu time.Duration // of the server, per event
}

func (b *bench) turn(server *process, p phase) (turn, error) {
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

// compare runs bare and mtagd in turns and compares each round with the one beside it.
func (b *bench) compare() error {
	b.report.section("Single events against the bare ceiling",
		fmt.Sprintf("As fast as answers come, a body of %d bytes, 201 after the synced commit; medians of %d interleaved rounds of %v.", eventSize, b.Rounds, b.Round))
	target := b.service.mark(&b.load)
	for _, c := range []struct {
		conns  int
		target float64
	}{{manyConnections, 0.70}, {fewConnections, 0.45}} {
		var rates, ceilings, ratios, costs, bareCosts, costRatios []float64
		for round := range b.Rounds {
			b.progress("%d connections, round %d of %d: bare, then mtagd", c.conns, round+1, b.Rounds)
			bare, err := b.turn(b.bare, phase{target: b.ceiling, conns: c.conns, duration: b.Round, next: newMarks(b.ceiling, 1, false).next})
			if err != nil {
				return err
			}
			ours, err := b.healthyTurn(b.service.process, phase{target: target, conns: c.conns, duration: b.Round, next: newMarks(target, 1, false).next})
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

// identified measures what an email and an event_id add, takes the profile, and counts what is written.
func (b *bench) identified(target target) error {
	b.progress("%d connections, events with email and event_id", manyConnections)
	r, err := b.healthyTurn(b.service.process, phase{target: target, conns: manyConnections, duration: b.Round, next: newMarks(target, 1, true).next})
	if err != nil {
		return err
	}
	b.report.tell("with email and event_id, as browsers send: mtagd", perSecond(r.rate()))
	b.report.tell("with email and event_id: server CPU per event", microseconds(r.cpu.Seconds()))

	before, err := b.service.written()
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	length := max(b.Round, 2*time.Second)
	go func() { profiled <- b.profile(length) }()
	if r, err = b.turn(b.service.process, phase{target: target, conns: manyConnections, duration: length, next: newMarks(target, 1, false).next}); err != nil {
		return errors.Join(err, <-profiled)
	}
	after, err := b.service.written()
	if err != nil {
		return err
	}
	b.report.tell("write amplification, single events", times(float64(after-before)/float64(r.bodyBytes)))
	return <-profiled
}

func (b *bench) profile(length time.Duration) error {
	if b.Profile == "" {
		return nil
	}
	text, err := b.service.page(b.ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(length.Seconds())))
	if err != nil {
		return err
	}
	return os.WriteFile(b.Profile, text, 0o666)
}

// healthyTurn is a turn in which every event has to be accepted.
func (b *bench) healthyTurn(server *process, p phase) (turn, error) {
	t, err := b.turn(server, p)
	if err == nil {
		err = t.healthy()
	}
	return t, err
}

func (b *bench) batches() error {
	b.progress("batches of %d", batchEvents)
	target := b.service.mark(&b.load)
	var rates, costs []float64
	for range b.Rounds {
		r, err := b.healthyTurn(b.service.process, phase{target: target, conns: batchConnections, duration: b.Round, next: newMarks(target, batchEvents, false).next})
		if err != nil {
			return err
		}
		rates, costs = append(rates, r.rate()), append(costs, r.cpu.Seconds())
	}
	b.report.section(fmt.Sprintf("Batches of %d events", batchEvents), fmt.Sprintf("%d connections, medians of %d rounds.", batchConnections, b.Rounds))
	b.report.atLeast("durable events", median(rates), 200_000, perSecond)
	b.report.tell("server CPU per event", microseconds(median(costs)))
	return nil
}

func (b *bench) steady() error {
	rate := b.maximum / 2
	b.progress("half of the maximum, %s, for %v", perSecond(rate), b.Steady)
	t := b.service.mark(&b.load)
	r, err := b.healthyTurn(b.service.process, phase{target: t, conns: manyConnections, duration: b.Steady, rate: rate, next: newMarks(t, 1, false).next})
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
func (b *bench) curve() error {
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
	}{{"bare", "#8a8f98", b.ceiling}, {"mtagd", "#1565c0", b.service.mark(&b.load)}}
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
			r, err := load(b.ctx, phase{target: s.target, conns: manyConnections, duration: b.Round, rate: rate, next: newMarks(s.target, 1, false).next})
			if err != nil {
				return err
			}
			for j, p := range percentiles {
				l := &c.lines[i*len(percentiles)+j]
				l.points = append(l.points, point{rate, p.of(r).Seconds() * 1000})
			}
			if s.name == "mtagd" {
				b.report.tell(fmt.Sprintf("%.0f %% of the maximum, %s: p50, p99, slowest", 100*part, perSecond(rate)),
					fmt.Sprintf("%s, %s, %s", milliseconds(r.at(50).Seconds()), milliseconds(r.at(99).Seconds()), milliseconds(r.max().Seconds())))
			}
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

const listingsPerSecond = 20

// listUnderLoad takes events as fast as they come, into the merchant that is listed, alone and with listings in turns.
func (b *bench) listUnderLoad() error {
	t := b.service.mark(&b.data.Large)
	took := newHistogram()
	var kept []float64
	for round := range b.Rounds {
		b.progress("listing under full ingest, round %d of %d", round+1, b.Rounds)
		var rates [2]float64
		for i, listing := range []bool{false, true} {
			ctx, stop := context.WithCancel(b.ctx)
			listed := make(chan error, 1)
			go func() {
				if listing {
					listed <- b.listSteadily(ctx, uint64(round), func(d time.Duration) { record(took, d) })
				} else {
					listed <- nil
				}
			}()
			r, err := load(b.ctx, phase{target: t, conns: manyConnections, duration: 2 * b.Round, next: newMarks(t, 1, false).next})
			stop()
			if err := errors.Join(err, <-listed); err != nil {
				return err
			}
			if err := r.healthy(); err != nil {
				return err
			}
			rates[i] = r.rate()
		}
		kept = append(kept, rates[1]/rates[0])
	}
	b.report.section("Listing under full ingest",
		fmt.Sprintf("%d listings/s of all kinds, at fixed times, while %d connections send events to the same merchant as fast as answers come; %d listings in all.",
			listingsPerSecond, manyConnections, took.TotalCount()))
	b.report.tell("listing p50", milliseconds(float64(took.ValueAtQuantile(50))/1e6))
	b.report.atMost("listing p99", float64(took.ValueAtQuantile(99))/1e6, 0.025, milliseconds)
	b.report.atMost("events/s lost to it", 1-median(kept), 0.10, percent)
	return nil
}

// listSteadily lists at fixed times until ctx ends, and tells how long each took from its intended time. The load
// adds events while it lists, so answers are not compared with what fill made.
func (b *bench) listSteadily(ctx context.Context, seed uint64, took func(time.Duration)) error {
	random := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	for n := 0; ; n++ {
		intended := intendedTime(n, listingsPerSecond)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(intended - time.Since(began)):
		}
		q := kinds[n%len(kinds)].query(&b.data.Large, random)
		if _, err := b.service.api.ask("GET", q.path, nil); err != nil {
			return err
		}
		took(time.Since(began) - intended)
	}
}

// overload offers twice the maximum: single events from thousands of connections, then batches.
func (b *bench) overload() error {
	t := b.service.mark(&b.load)
	b.report.section("Overload", "Twice the maximum rate offered. Latency of events is from the intended time, and grows as long as it lasts; that of a refusal is from its sending.")
	for _, o := range []struct {
		what  string
		conns int
		batch int
	}{{"single events", overloadConnections, 1}, {fmt.Sprintf("batches of %d", batchEvents), batchOverload, batchEvents}} {
		b.progress("overload: %s on %d connections", o.what, o.conns)
		source := func() func([]byte) ([]byte, int) { return newMarks(t, o.batch, false).next }
		alone, err := b.turn(b.service.process, phase{target: t, conns: min(o.conns, manyConnections), duration: b.Round, next: source()})
		if err != nil {
			return err
		}
		r, err := b.turn(b.service.process, phase{target: t, conns: o.conns, duration: 2 * b.Round, rate: 2 * alone.rate() / float64(o.batch), next: source()})
		if err != nil {
			return err
		}
		b.report.tell(fmt.Sprintf("%s: offered on %s connections", o.what, grouped(o.conns)), perSecond(2*alone.rate()))
		b.report.atLeast(o.what+": accepted, of the maximum", r.rate()/alone.rate(), 0.9, percent)
		b.report.judge(o.what+": refused with 503 and Retry-After", fmt.Sprintf("%s of %s", grouped(r.refused-r.rude), grouped(r.refused)), "all", r.rude == 0)
		b.report.judge(o.what+": answered otherwise or not at all", grouped(r.failed), "0", r.failed == 0)
		if r.refused > 0 {
			b.report.atMost(o.what+": a refusal takes, p99", float64(r.refusal.ValueAtQuantile(99))/1e6, 0.1, milliseconds)
		}
		b.report.tell(o.what+": no connection free in time", grouped(r.unsent))
	}
	return nil
}

func (b *bench) memory() error {
	b.report.section("Memory", "RssAnon, looked at ten times a second throughout.")
	b.report.atMost("the most of mtagd", float64(b.service.peak()), 512<<20, mebibytes)
	b.report.tell("the most of bare", mebibytes(float64(b.bare.peakMemory())))
	return b.service.stop()
}

// write writes the table to the results and to standard output.
func (b *bench) write() error {
	var table bytes.Buffer
	fmt.Fprintf(&table, "Measured %s on %d cores, %s, %s/%s, client and servers on one machine.\n\n![Latency against offered load](latency.svg)\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if err := b.report.write(&table); err != nil {
		return err
	}
	if _, err := b.stdout.Write(table.Bytes()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Out, "table.md"), table.Bytes(), 0o666)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
