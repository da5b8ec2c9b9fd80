// Mtagbench measures mtagd: how many events it takes and how fast, how fast it lists, what that costs in CPU,
// memory and disk, and what it does when there is too much. Everything happens on loopback, for a bounded time.
//
// Read in this order:
//
//	main.go      the command line
//	load.go      a phase of load, open or closed loop, and what comes of it
//	generator.go how it is driven: by epoll, with latency from the intended time
//	conn.go      its connections, plain and TLS
//	events.go    the requests it sends
//	dataset.go   the listing's data: made so that every total is known beforehand
//	fill.go      how it is made through a running server
//	queries.go   random listing queries, timed and checked
//	bare.go      the ceiling as a process of its own
//	process.go   servers as child processes, and what the kernel knows of them
//	service.go   mtagd as such a process, set up through its own commands and API
//	run.go       the whole measurement
//	hotpath.go   its phases of POST /mark against the bare ceiling
//	latency.go   its phases at a fixed offered load, and of overload
//	listing.go   its phases with data: filling, starting, listing
//	profile.go   the profile that the compiler optimises mtagd by
//	report.go    the table
//	chart.go     the picture
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

type commandLine struct {
	Run     runCommand     `cmd:"" help:"Measure a server of its own beside the bare ceiling, and write the table and the picture."`
	Load    loadCommand    `cmd:"" help:"Send events to one URL and print rate and latency."`
	Fill    fillCommand    `cmd:"" help:"Make merchants and events for listing through a running server."`
	List    listCommand    `cmd:"" help:"Time and check random listing queries against what fill made."`
	Bare    bareCommand    `cmd:"" help:"Serve the bare ceiling."`
	Profile profileCommand `cmd:"" help:"Take the profile that the compiler optimises mtagd by."`
}

// program is what a command may use of the process it runs in.
type program struct {
	ctx    context.Context // ends with SIGINT or SIGTERM
	stdout io.Writer       // results
	stderr io.Writer       // progress
}

func (p *program) progress(format string, args ...any) {
	fmt.Fprintf(p.stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
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

type loadCommand struct {
	URL         string        `arg:"" help:"Loopback URL, such as http://127.0.0.1:8080/mark/TAG_ID."`
	Host        string        `placeholder:"HOST" help:"Host header and SNI (default the URL's)."`
	Rate        float64       `placeholder:"N" help:"Requests per second, sent whatever the answers take (default as fast as answers come)."`
	Connections int           `default:"256" help:"Keep-alive connections (default ${default})."`
	Duration    time.Duration `default:"10s" help:"How long to send (default ${default})."`
	Batch       int           `default:"1" help:"Events per request (default ${default})."`
	Identified  bool          `help:"Events with an email and an event_id, as the browser tag sends them."`
}

// Validate is called by kong.
func (c *loadCommand) Validate() error {
	switch {
	case c.Connections < 1:
		return fmt.Errorf("--connections must be at least 1")
	case c.Batch < 1 || c.Batch > 1000:
		return fmt.Errorf("--batch must be 1 to 1000")
	}
	return validatePace(c.Rate, c.Duration)
}

// validatePace checks --rate and --duration.
func validatePace(rate float64, duration time.Duration) error {
	switch {
	case rate < 0:
		return errors.New("--rate must not be negative")
	case duration <= 0 || duration > time.Hour:
		return errors.New("--duration must be more than 0 and at most an hour")
	}
	return nil
}

// Run sends and prints.
func (c *loadCommand) Run(p *program) error {
	t, err := parseTarget(c.URL, c.Host)
	if err != nil {
		return err
	}
	r, err := load(p.ctx, phase{
		target: t, conns: c.Connections, duration: c.Duration, rate: c.Rate,
		next: newMarks(t, c.Batch, c.Identified).next,
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%d requests in %v, %.0f accepted events/s\n", r.requests, r.took.Round(time.Millisecond), r.rate())
	fmt.Fprintf(p.stdout, "latency from the intended time: p50 %v  p90 %v  p99 %v  p99.9 %v  max %v\n",
		r.at(50), r.at(90), r.at(99), r.at(99.9), r.max())
	fmt.Fprintf(p.stdout, "refused %d (without Retry-After %d), failed %d, never sent %d\n", r.refused, r.rude, r.failed, r.unsent)
	if r.firstErr != nil {
		fmt.Fprintf(p.stdout, "first failure: %v\n", r.firstErr)
	}
	return nil
}
