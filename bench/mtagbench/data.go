package main

import (
	"errors"
	"fmt"
	"time"

	"mtagd/bench"
	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
)

// fillDays is how many days the events are spread over.
const fillDays = 400

// fillData makes the events on which all later parts run.
func fillData(b *benchmark) error {
	b.progress("filling: %s events, and %d other merchants", report.Grouped(b.Events), b.Merchants)
	before, err := b.mtagd.DiskWrites()
	if err != nil {
		return err
	}
	var r *load.Result
	if b.data, r, err = dataset.Fill(b.ctx, b.mtagd.API, b.Events, fillDays, b.Merchants); err != nil {
		return err
	}
	if b.loaded, err = b.mtagd.API.AddMerchant("load"); err != nil {
		return err
	}
	after, err := b.mtagd.DiskWrites()
	if err != nil {
		return err
	}
	all := float64(r.Events + dataset.SmallEvents + (b.Merchants-1)*dataset.OtherEvents) // the small merchant is one of b.Merchants
	b.table.Section("Data", fmt.Sprintf("Sent in batches of %s over %d connections, ordered; %d names, spread over %d days.",
		report.Grouped(dataset.Batch), dataset.Connections, len(bench.Names), fillDays))
	b.table.Figure(report.Grouped(r.Events)+" events of one merchant", report.PerSecond(r.Rate()))
	b.table.Figure("bytes written per byte received", report.Times(float64(after-before)/(all*bench.EventSize)))
	if err := b.mtagd.Stop(); err != nil {
		return err
	}
	used, err := b.mtagd.DiskUsage()
	if err != nil {
		return err
	}
	b.table.Figure(fmt.Sprintf("disk per event of %d bytes, after a stop", bench.EventSize), report.Bytes(float64(used)/all))
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
	_, err := load.Run(b.ctx, load.ClosedLoop(b.target(), load.Plain, manyConnections, 1, b.Round+100*time.Millisecond))
	if err := errors.Join(err, <-killed); err != nil {
		return err
	}
	if err := b.mtagd.Start(); err != nil {
		return err
	}
	b.table.AtMost("after a kill under full load", b.mtagd.StartupTime.Seconds(), 2, report.Seconds)
	return nil
}
