package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

// runCommand runs all parts, one after the other.
type runCommand struct{ runFlags }

// Validate is called by kong.
func (c *runCommand) Validate() error {
	if c.Events < 1 || c.Merchants < 1 || c.Queries < 1 || c.Rounds < 1 || c.Round < time.Second || c.Steady < time.Second {
		return errors.New("--events, --merchants, --queries and --rounds must be at least 1, --round and --steady at least 1s")
	}
	return nil
}

// Run measures and writes the results.
func (c *runCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp(c.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	b := &benchmark{runFlags: &c.runFlags, program: &program{ctx: ctx, stdout: p.stdout, stderr: p.stderr}, dir: dir}
	defer func() {
		cancel()
		waitForServers(b)
	}()
	if err := describeMachine(b); err != nil {
		return err
	}
	if b.bare, b.bareTarget, err = server.StartBare(ctx); err != nil {
		return err
	}
	if b.synced, b.syncedTarget, err = server.StartSynced(ctx, filepath.Join(dir, "synced")); err != nil {
		return err
	}
	if b.mtagd, err = server.StartMtagd(ctx, c.Server, filepath.Join(dir, "data")); err != nil {
		return err
	}
	var peaks []peak
	for _, part := range []struct {
		name    string // in the table of memory
		measure func(*benchmark) error
	}{
		{"filling", fillData},
		{"restarted after a kill", measureStarts},
		{"listing", measureListing},
		{"single events", compareWithFile},
		{"batches", measureBatches},
		{"half of the maximum", holdHalfOfMaximum},
		{"offered loads", measureLatencyCurve},
		{"listing under ingest", measureListingUnderIngest},
		{"overload", measureOverload},
	} {
		if err := part.measure(b); err != nil {
			return err
		}
		peaks = append(peaks, peak{part.name, b.mtagd.TakePeakMemory()})
	}
	addMemory(b, peaks)
	if err := b.mtagd.Stop(); err != nil {
		return err
	}
	if err := writeTable(b); err != nil {
		return err
	}
	if c.Strict && b.table.Missed > 0 {
		return fmt.Errorf("%d targets were missed", b.table.Missed)
	}
	return nil
}

// waitForServers waits until the servers have ended. Cancelling their context stops them.
func waitForServers(b *benchmark) {
	if b.bare != nil {
		b.bare.Wait()
	}
	if b.synced != nil {
		b.synced.Wait()
	}
	if b.mtagd != nil {
		b.mtagd.Wait()
	}
}

// describeMachine measures how busy the machine and its disk are. Each commit of events waits for two synced writes.
func describeMachine(b *benchmark) error {
	const writes, size = 200, 64 << 10
	average, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(b.Temp, "mtagbench")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	took := load.NewHistogram()
	for range writes {
		began := time.Now()
		if _, err := file.Write(make([]byte, size)); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		took.Record(time.Since(began))
	}
	b.table.Section("Machine", "Before the run: how busy the machine and its disk are.")
	b.table.Figure("load average of the last minute, other work included", strings.Fields(string(average))[0])
	b.addPercentile(fmt.Sprintf("a synced write of %d KiB, p50", size>>10), took, 50)
	b.addPercentile(fmt.Sprintf("a synced write of %d KiB, p99", size>>10), took, 99)
	return nil
}

// peak is the most anonymous memory in a part of a run.
type peak struct {
	part  string
	bytes int64
}

const memoryTarget = 512 << 20 // bytes, in every part

func addMemory(b *benchmark, peaks []peak) {
	b.table.Section("Memory", "mtagd's peak RssAnon in each part of the run, sampled ten times a second.")
	for _, p := range peaks {
		b.table.AtMost(p.part, float64(p.bytes), memoryTarget, report.Mebibytes)
	}
}

// writeTable writes the table to its file and to standard output.
func writeTable(b *benchmark) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Measured %s on %d cores, %s, %s/%s, client and servers on one machine.\n\n![Latency against offered load](%s)\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, pictureFile)
	if err := b.table.Write(&text); err != nil {
		return err
	}
	if _, err := b.stdout.Write(text.Bytes()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Out, "table.md"), text.Bytes(), 0o666)
}
