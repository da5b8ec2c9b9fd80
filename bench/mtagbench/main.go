// Mtagbench measures mtagd: how many events it accepts and how fast, how fast it lists them, what that costs in CPU,
// memory and disk, and what happens under overload. Everything runs on loopback, for a bounded time.
//
// Read in this order:
//
//	main.go      the command line, and what all commands share
//	run.go       run: the whole measurement, one part after the other
//	parts.go     parts: filling, starting, listing alone and under ingest
//	rate.go      parts: the maximum rate beside a synced file, fairness, latency at fixed loads, and overload
//	postgres.go  postgres: two nodes on a primary and a synchronous standby, beside a queue table
//	profile.go   profile: the CPU profile for the compiler
//	peers.go     the hidden commands, which run in processes of their own
//
// These packages do not depend on the parts of a run:
//
//	server   mtagd and the synced file as processes
//	dataset  events whose listings are known beforehand, and the queries that check them
//	load     the load generator
//	report   the table and the chart
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"mtagd/bench/mtagbench/report"
	"mtagd/bench/mtagbench/server"
)

type commandLine struct {
	Run      runCommand      `cmd:"" help:"Measure mtagd beside a synced file. Writes a table and a picture."`
	Postgres postgresCommand `cmd:"" help:"Measure two nodes on PostgreSQL beside a queue table. Writes a table."`
	Profile  profileCommand  `cmd:"" help:"Take the CPU profile with which mtagd is compiled."`
	File     fileCommand     `cmd:"" hidden:"" help:"Serve the synced file: answers when the body is in a file and the file is synced, by groups."`
	Queue    queueCommand    `cmd:"" hidden:"" help:"Serve the queue table: each request is a row."`
	List     listCommand     `cmd:"" hidden:"" help:"List as standard input says."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	parsed := kong.Parse(new(commandLine), kong.Name("mtagbench"), kong.Description("Measures mtagd, on loopback."))
	err := parsed.Run(&program{ctx: ctx, stdout: os.Stdout, stderr: os.Stderr})
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	parsed.FatalIfErrorf(err)
}

// program is what a command may use of its process.
type program struct {
	ctx    context.Context // ends with SIGINT or SIGTERM
	stdout io.Writer       // results
	stderr io.Writer       // progress
}

func (p *program) progress(format string, args ...any) {
	fmt.Fprintf(p.stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// measure calls f with a new directory below temp (empty: the system's) and a group for servers. It removes the directory
// and stops the servers when f returns. This process uses one processor: with more, the scheduler of Go would look for work
// on the others, which the servers need.
func (p *program) measure(temp string, f func(dir string, servers *server.Group) error) error {
	runtime.GOMAXPROCS(1)
	dir, err := os.MkdirTemp(temp, "mtagbench")
	if err != nil {
		return err
	}
	servers := server.NewGroup(p.ctx)
	err = f(dir, servers)
	servers.Stop()
	return errors.Join(err, os.RemoveAll(dir))
}

// write writes a table to a file and to standard output, below a line that describes the machine.
func (p *program) write(table *report.Table, file, where string, strict bool) error {
	text := fmt.Sprintf("Measured %s on %d cores, %s, %s/%s%s\n%s", time.Now().UTC().Format(time.DateOnly),
		runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, where, table)
	_, err := io.WriteString(p.stdout, text)
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
		return err
	}
	if strict && table.Missed > 0 {
		return fmt.Errorf("%d targets were missed", table.Missed)
	}
	return nil
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// rounds has the measurements of each round, by the name of the figure.
type rounds map[string][]float64

func (r rounds) add(figure string, value float64) { r[figure] = append(r[figure], value) }

func (r rounds) median(figure string) float64 {
	sorted := slices.Sorted(slices.Values(r[figure]))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
