// Mtagbench measures mtagd: how many events it accepts and how fast, how fast it lists them, what that costs in CPU,
// memory and disk, and what happens under overload. Everything runs on loopback, for a bounded time.
//
// Read in this order:
//
//	main.go       the command line
//	run.go        run: the whole measurement, one part after the other
//	data.go       parts: filling, starting
//	rate.go       parts: the maximum rate, against a synced file
//	latency.go    parts: latency at a fixed load, and overload
//	fairness.go   fairness: a merchant beside another one with heavy load
//	postgres.go   postgres: two nodes on a primary and a synchronous standby, beside a queue table; postgresround.go has one round
//	queue.go      queue: the small server of the queue table
//	profile.go    profile: the CPU profile for the compiler
//	byhand.go     load, fill, list, bare: single steps by hand
//	listing.go    parts: listing, alone and under ingest
//	benchmark.go  the state of a run
//	program.go    what every command gets: a context and outputs
//
// These packages do not depend on the parts of a run:
//
//	server   mtagd, the bare server and the synced file as processes
//	dataset  events whose listings are known beforehand, and the queries that check them
//	load     the load generator
//	report   the table and the chart
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type commandLine struct {
	Run      runCommand      `cmd:"" help:"Measure mtagd beside the bare server. Writes a table and a picture."`
	Load     loadCommand     `cmd:"" help:"Send events to one URL. Prints rate and latency."`
	Fill     fillCommand     `cmd:"" help:"Make merchants and events for list, through a running server."`
	List     listCommand     `cmd:"" help:"Time random listing queries, and check them against what fill made."`
	Bare     bareCommand     `cmd:"" help:"Serve the bare server, which answers a constant 201."`
	Fairness fairnessCommand `cmd:"" help:"Measure how much a merchant with heavy load slows down another one."`
	Postgres postgresCommand `cmd:"" help:"Measure two nodes on PostgreSQL beside a queue table. Writes a table."`
	Queue    queueCommand    `cmd:"" help:"Serve the queue table: each request is a row."`
	Profile  profileCommand  `cmd:"" help:"Take the CPU profile with which mtagd is compiled."`
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
