package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"mtagd/bench"
)

// fill makes the data, so that everything after it is measured on a server that has some.
func (b *benchmark) fill() (err error) {
	b.progress("filling: %s events, %s, and %d other merchants", grouped(b.Events), b.Order, b.Merchants)
	written, err := b.service.written()
	if err != nil {
		return err
	}
	var r *result
	if b.data, r, err = fill(b.ctx, b.service.api, b.Events, 400, b.Merchants, b.Order); err != nil {
		return err
	}
	if b.loaded, err = b.service.api.newDataset("load"); err != nil {
		return err
	}
	after, err := b.service.written()
	if err != nil {
		return err
	}
	all := r.events + smallEvents + (b.Merchants-1)*otherEvents // the small merchant is one of those beside the large one
	b.report.section("Data", fmt.Sprintf("Batches of %d, %s, from %d connections, over 400 days and %d names.", fillBatch, b.Order, 8, len(bench.Names)))
	b.report.tell(grouped(r.events)+" events of one merchant", perSecond(r.rate()))
	b.report.tell("write amplification: written to disk against bytes of bodies", times(float64(after-written)/float64(all*bench.EventSize)))
	if err := b.service.stop(); err != nil {
		return err
	}
	used, err := diskUsage(b.service.data)
	if err != nil {
		return err
	}
	b.report.tell(fmt.Sprintf("disk per event of %d bytes, once stopped", bench.EventSize), bytesEach(float64(used)/float64(all)))
	return b.service.start(b.ctx)
}

// starts kills the server under load and starts it again.
func (b *benchmark) starts() error {
	b.progress("starting again: after a stop, after a kill")
	b.report.section("Start", fmt.Sprintf("Until /readyz answers, with %s events.", grouped(b.Events)))
	b.report.atMost("after a stop", b.service.ready.Seconds(), 2, seconds)
	killed := make(chan error, 1)
	server := b.service.process
	go func() {
		time.Sleep(b.Round)
		killed <- server.kill()
	}()
	t := b.service.mark(&b.loaded)
	// The kill breaks every connection; the time for the answers bounds what is left of the phase.
	_, err := load(b.ctx, marking(t, manyConnections, 1, b.Round+100*time.Millisecond))
	if err := errors.Join(err, <-killed); err != nil {
		return err
	}
	if err := b.service.start(b.ctx); err != nil {
		return err
	}
	b.report.atMost("after a kill under full load", b.service.ready.Seconds(), 2, seconds)
	return nil
}

func (b *benchmark) list() error {
	b.progress("listing: %d queries of %d kinds, on two datasets", b.Queries, len(kinds))
	all, err := listAll(b.ctx, b.service.api, b.data, b.Queries)
	if err != nil {
		return err
	}
	b.report.listings(all, b.data)
	return nil
}

const listingsPerSecond = 20

// listUnderLoad takes events as fast as they come, into the merchant that is listed, alone and with listings in turns.
func (b *benchmark) listUnderLoad() error {
	t := b.service.mark(&b.data.Large)
	key, made := filepath.Join(b.dir, "key"), filepath.Join(b.dir, "manifest.json")
	if err := errors.Join(os.WriteFile(key, []byte(b.service.key), 0o600), b.data.write(made)); err != nil {
		return err
	}
	took := newHistogram()
	var kept []float64
	for round := range b.Rounds {
		b.progress("listing under full ingest, round %d of %d", round+1, b.Rounds)
		var rates [2]float64
		for i, listing := range []bool{false, true} {
			var listed error
			var beside sync.WaitGroup
			if listing {
				beside.Go(func() { listed = b.listBeside(2*b.Round, key, made, took) })
			}
			r, err := load(b.ctx, marking(t, manyConnections, 1, 2*b.Round))
			beside.Wait()
			if err := errors.Join(err, listed); err != nil {
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
	b.report.tell("listing p50", milliseconds(quantile(took, 50).Seconds()))
	b.report.atMost("listing p99", quantile(took, 99).Seconds(), 0.025, milliseconds)
	b.report.atMost("events/s lost to it", 1-median(kept), 0.10, percent)
	return nil
}

// listBeside lists while a load of some length goes on. It does so from a process of its own: in this one, an answer
// would wait for the goroutine that drives the load, and be charged with that.
func (b *benchmark) listBeside(duration time.Duration, keyFile, manifest string, took *hdrhistogram.Histogram) error {
	duration -= 200 * time.Millisecond // it starts after the load and is to end before it
	self, err := os.Executable()
	if err != nil {
		return err
	}
	list := exec.CommandContext(b.ctx, self, "list", "--url", "http://"+b.service.api.target.address.String(), "--base-host", baseHost,
		"--key-file", keyFile, "--manifest", manifest, "--rate", strconv.Itoa(listingsPerSecond), "--duration", duration.String())
	list.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	list.Stderr = b.stderr
	printed, err := list.Output()
	if err != nil {
		return fmt.Errorf("listing beside load: %w", err)
	}
	for _, text := range strings.Fields(string(printed)) {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("listing beside load: %w", err)
		}
		record(took, d)
	}
	return nil
}
