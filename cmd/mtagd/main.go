// Mtagd is a self-hosted tracking-tag service: partners register merchants and generate tags over
// a REST API, and the tags' hosts record what visitors do.
//
// This package is where the parts meet. Read in this order:
//
//	main.go          the command line, and what an exit code means
//	configfile.go    values from --config, and where a value came from
//	settings.go      the flags of serve, checked before anything starts
//	serve.go         how the service starts, runs and stops
//	secure.go        checks of hosts' DNS; the port and the certificates of HTTPS
//	admin.go         /metrics, /healthz, /readyz and pprof, on loopback
//	operator.go      the partner and key commands
//	socket.go        how they reach a running server, or do without one
//	runtime.go       timers, threads and the heap limit
//	dev.go           development mode: everything on one loopback address
//	demo.go          its shop to try a tag with, below /demo/
//	demo_products.go what the shop sells
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"mtagd/store"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// commandLine is the whole grammar. A flag's name is also its key in the config file and, in
// capitals after MTAGD_, its environment variable.
type commandLine struct {
	Data   string `default:"./data" placeholder:"DIR" help:"Data directory (default ${default})."`
	Config string `placeholder:"FILE" help:"YAML file with a value for each flag that is not given otherwise."`

	Dev     devCommand     `cmd:"" help:"Serve on loopback with a demo partner and a demo page."`
	Serve   serveCommand   `cmd:"" help:"Serve the partner API and the tag hosts."`
	Partner partnerCommand `cmd:"" help:"Manage partners, beside a running server or without one."`
	Key     keyCommand     `cmd:"" help:"Manage API keys, beside a running server or without one."`
	Version versionCommand `cmd:"" help:"Print the version."`

	file configFile // what --config says
}

// process is what a command may use of the process it runs in.
type process struct {
	ctx    context.Context // ends with SIGINT or SIGTERM
	stdout io.Writer       // results
	stderr io.Writer       // logs
	data   string          // --data
	origin origin
}

// run carries out one command line and returns the exit code. An error is one line on stderr.
func run(args []string, stdout, stderr io.Writer) int {
	if err := unsetEmpty(os.Environ()); err != nil {
		return report(stderr, err)
	}
	var grammar commandLine
	parser := kong.Must(&grammar,
		kong.Name("mtagd"),
		kong.Description("A self-hosted tracking-tag service."),
		kong.Writers(stdout, stderr),
		kong.DefaultEnvars("MTAGD"),
		kong.Vars{"admin": defaultAdmin},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(helpWithEnv),
	)
	parsed, err := parser.Parse(args)
	if err != nil {
		return report(stderr, &usageError{err: err})
	}
	if grammar.Data == "" {
		return report(stderr, &usageError{where: "--data", err: errors.New("must not be empty")})
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Once the first signal was seen, the next one ends the process at once.
	context.AfterFunc(ctx, stop)

	p := &process{
		ctx:    ctx,
		stdout: stdout,
		stderr: stderr,
		data:   grammar.Data,
		origin: originOf(parsed, grammar.file),
	}
	if command, ok := parsed.Selected().Target.Interface().(operatorCommand); ok {
		return report(stderr, p.operate(command)) // all of them in the same way
	}
	return report(stderr, parsed.Run(p))
}

// unsetEmpty makes an empty MTAGD_ variable the same as an absent one, so that unit and compose files may
// leave one blank.
func unsetEmpty(environ []string) error {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "MTAGD_") && value == "" {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// helpWithEnv shows a flag's environment variable at the end of its help.
func helpWithEnv(value *kong.Value) string {
	if len(value.Tag.Envs) == 0 {
		return value.Help
	}
	return value.Help + " [$" + value.Tag.Envs[0] + "]"
}

// usageError is a command line or a configuration that cannot be carried out.
type usageError struct {
	where string // the flag, variable or line at fault; empty where err names it
	err   error
}

func (e *usageError) Error() string {
	if e.where == "" {
		return e.err.Error()
	}
	return e.where + ": " + e.err.Error()
}

func (e *usageError) Unwrap() error { return e.err }

// report writes an error in one line and returns the exit code that stands for it.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "mtagd: %s\n", strings.Join(strings.Fields(err.Error()), " "))
	if _, usage := errors.AsType[*usageError](err); usage || store.KindOf(err) == store.KindInvalid {
		return exitUsage
	}
	return exitFailed
}

type versionCommand struct{}

// Run prints the version, which the go command makes of the tag or the commit that it builds.
func (versionCommand) Run(p *process) error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
	}
	_, err := fmt.Fprintln(p.stdout, "mtagd", version)
	return err
}
