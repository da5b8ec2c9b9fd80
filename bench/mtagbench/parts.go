package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/store"
)

// fillDays is how many days the events are spread over.
const fillDays = 400

// written returns how many bytes the server has written to disk meanwhile.
func (b *benchmark) written(meanwhile func() error) (float64, error) {
	before, err := b.mtagd.DiskWrites()
	if err == nil {
		err = meanwhile()
	}
	if err != nil {
		return 0, err
	}
	after, err := b.mtagd.DiskWrites()
	return float64(after - before), err
}

// fillData makes the events on which all later parts run.
func fillData(b *benchmark) error {
	b.progress("filling: %s events, and %d other merchants", report.Grouped(b.Events), b.Merchants)
	var r *load.Result
	written, err := b.written(func() (err error) {
		if b.data, r, err = dataset.Fill(b.ctx, b.mtagd.API, b.Events, fillDays, b.Merchants); err == nil {
			b.loaded, err = b.mtagd.API.AddMerchant("load")
		}
		return err
	})
	if err != nil {
		return err
	}
	b.stored = r.Events + dataset.SmallEvents + (b.Merchants-1)*dataset.OtherEvents // the small merchant is one of b.Merchants
	b.table.Section("Data", fmt.Sprintf("Sent in batches of %s over %d connections, ordered; %d names, spread over %d days.",
		report.Grouped(dataset.Batch), dataset.Connections, len(bench.Names), fillDays))
	b.table.Figure(report.Grouped(r.Events)+" events of one merchant", report.PerSecond(r.Rate()))
	b.table.Figure("bytes written per byte received", report.Times(written/float64(b.stored*bench.EventSize)))
	if err := b.mtagd.Stop(); err != nil {
		return err
	}
	return b.mtagd.Start()
}

// measureStarts reports the start after fillData's stop, then kills the server under load and starts it again.
func measureStarts(b *benchmark) error {
	b.progress("starting: after a stop, after a kill")
	b.table.Section("Start", fmt.Sprintf("Time until /readyz answers 200, with %s events.", report.Grouped(b.Events)))
	b.table.AtMost("after a stop", b.mtagd.StartupTime.Seconds(), 2, report.Seconds)
	killed := make(chan error, 1)
	process := b.mtagd.Process
	time.AfterFunc(b.Round, func() { killed <- process.Kill() })
	// The phase is a little longer than the time to the kill, so that the kill comes under full load.
	r, err := load.Run(b.ctx, load.ClosedLoop(b.target(), load.Plain, manyConnections, 1, b.Round+100*time.Millisecond))
	if err := errors.Join(err, <-killed); err != nil {
		return err
	}
	b.stored += r.Events
	if err := b.mtagd.Start(); err != nil {
		return err
	}
	b.table.AtMost("after a kill under full load", b.mtagd.StartupTime.Seconds(), 2, report.Seconds)
	return nil
}

func measureListing(b *benchmark) error {
	b.progress("listing: %d queries of each kind, on two datasets", b.Queries)
	all, err := dataset.ListEachKind(b.ctx, b.mtagd.API, b.data, b.Queries)
	if err != nil {
		return err
	}
	addListings(&b.table, all, b.data, embeddedListing)
	return addSummaries(&b.table, b.program, b.mtagd.API, b.data, b.Queries)
}

// listingTargets are what queries of an engine may take.
type listingTargets struct {
	p99   float64 // seconds
	times float64 // compared with the same queries on the small dataset
}

var (
	embeddedListing = listingTargets{p99: 0.005, times: 2}
	postgresListing = listingTargets{p99: 0.050, times: 3}
)

// addListings adds the rows of each kind: the p99 on the large dataset, and how its median compares with the small
// one's. Medians, because a few interruptions of the machine decide the p99 of some hundred queries.
func addListings(table *report.Table, all []dataset.Listing, m *dataset.Manifest, targets listingTargets) {
	table.Section(fmt.Sprintf("Listing, %s events", report.Grouped(m.Large.Events)),
		fmt.Sprintf("Random pages, limits and orders of each kind, beside %d other merchants; compared with the same queries on %s events. "+
			"Every answer's total, length, order and names were checked.", m.Others, report.Grouped(m.Small.Events)))
	for _, l := range all {
		large, small := l.Large.At(50).Seconds(), l.Small.At(50).Seconds()
		table.AtMost(l.Kind+", p99", l.Large.At(99).Seconds(), targets.p99, report.Milliseconds)
		table.AtMost(fmt.Sprintf("%s, p50 %s against %s", l.Kind, report.Milliseconds(large), report.Milliseconds(small)),
			large/small, targets.times, report.Times)
	}
}

func addSummaries(table *report.Table, p *program, api *dataset.Client, m *dataset.Manifest, n int) error {
	p.progress("summaries")
	all, err := dataset.SummarizeEachKind(p.ctx, api, m, n)
	if err != nil {
		return err
	}
	table.Section(fmt.Sprintf("Summaries, %s events", report.Grouped(m.Large.Events)),
		fmt.Sprintf("Beside each, the same on %s events. Every number was checked.", report.Grouped(m.Small.Events)))
	for _, l := range all {
		for _, p := range []float64{50, 99} {
			table.Figure(fmt.Sprintf("%s, p%.0f", l.Kind, p), fmt.Sprintf("%s, %s", report.Milliseconds(l.Large.At(p).Seconds()), report.Milliseconds(l.Small.At(p).Seconds())))
		}
	}
	return nil
}

const listingsPerSecond = 20

// measureListingUnderIngest sends events to the listed merchant, as fast as answers come: in turns without and with
// listings at the same time.
func measureListingUnderIngest(b *benchmark) error {
	target := b.mtagd.MarkTarget(&b.data.Large)
	took := load.NewHistogram()
	kept := rounds{}
	for round := range b.Rounds {
		b.progress("listing under full ingest, round %d of %d", round+1, b.Rounds)
		var rates [2]float64
		for i, listing := range []bool{false, true} {
			var listed error
			var beside sync.WaitGroup
			if listing {
				beside.Go(func() { listed = listInOtherProcess(b, 2*b.Round, took) })
			}
			r, err := load.RunAccepted(b.ctx, load.ClosedLoop(target, load.Plain, manyConnections, 1, 2*b.Round))
			beside.Wait()
			if err := errors.Join(err, listed); err != nil {
				return err
			}
			rates[i] = r.Rate()
		}
		kept.add("rate", rates[1]/rates[0])
	}
	b.table.Section("Listing under full ingest",
		fmt.Sprintf("%d listings/s of all kinds, at fixed times, while %d connections send events to the same merchant as fast as answers come; %d listings in all.",
			listingsPerSecond, manyConnections, took.Count()))
	b.addPercentile("listing p50", took, 50)
	b.table.AtMost("listing p99", took.At(99).Seconds(), 0.025, report.Milliseconds)
	b.table.AtMost("ingest rate lost to the listings", 1-kept.median("rate"), 0.10, report.Percent)
	return nil
}

// measureDisk waits until all events are packed, and what the data directory takes does not change any more.
func measureDisk(b *benchmark) error {
	b.progress("packing")
	used := int64(0)
	for before := int64(-1); used != before; {
		before = used
		err := store.Sleep(b.ctx, 3*time.Second)
		if err == nil {
			used, err = b.mtagd.DiskUsage()
		}
		if err != nil {
			return err
		}
	}
	b.table.Section("Disk", fmt.Sprintf("What the data directory takes, with %s events, when nothing is left to pack.", report.Grouped(b.stored)))
	b.table.Figure(fmt.Sprintf("per event of %d bytes", bench.EventSize), report.Bytes(float64(used)/float64(b.stored)))
	return nil
}

// listInOtherProcess lists while a load of the given length runs, and records how long each listing took (see listCommand).
func listInOtherProcess(b *benchmark, duration time.Duration, took *load.Histogram) error {
	job, err := json.Marshal(listing{
		Address: b.mtagd.API.Target.Address.String(), Host: b.mtagd.API.Target.Host, Key: b.mtagd.API.Key, Data: b.data.Large, Rate: listingsPerSecond,
		Duration: duration - 200*time.Millisecond, // it starts a little after the load, and must end before it
	})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	list := exec.CommandContext(b.ctx, self, "list")
	list.Stdin = bytes.NewReader(job)
	list.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	list.Stderr = b.stderr
	printed, err := list.Output()
	if err != nil {
		return fmt.Errorf("listing under load: %w", err)
	}
	for _, text := range strings.Fields(string(printed)) {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("listing under load: %w", err)
		}
		took.Record(d)
	}
	return nil
}
