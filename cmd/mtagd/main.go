// Mtagd is a self-hosted tracking-tag service. Partners register merchants and generate tags over a REST API; the tags'
// hosts record what visitors do.
//
// This package connects the parts. Read in this order:
//
//	main.go, process.go                the command line: one command, its errors, exit codes and progress
//	config.go, checks.go               where values come from, and which are accepted
//	serve.go                           the commands that run the service: mtagd serve and dev
//	daemon.go, start.go, listeners.go  how it starts, runs and stops
//	engine.go                          the choice of the storage engine
//	systemd.go, copied.go, runtime.go  systemd, copied data directories, and the Go runtime
//	admin.go                           the admin pages (metrics, health, profiles), who may see them, and mtagd health
//	system.go, throttle.go             disks and recent rates, and limits on repeated log messages
//	schedule.go, background.go         background work: backups, verification, domains that must not be, and shared limits
//	backup.go, restore.go              mtagd backup and restore
//	verify.go                          mtagd verify and repair
//	migrate.go                         mtagd migrate and store distribute
//	init.go, doctor.go, alerts.go      mtagd init and doctor, and what the alerts check
//	manual.go                          mtagd version, completion and man
//	operator/                          mtagd partner, key, console, merchant, tag, domain, secret, audit, and their socket
//	demo/                              the demo shop
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	_ "time/tzdata" // the time zones of summaries, for machines that have none installed

	"github.com/alecthomas/kong"

	"mtagd/cmd/mtagd/operator"
	"mtagd/edge"
	"mtagd/edge/limit"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// commandLine is the whole grammar. Each flag's name is also its key in the config file, and its environment
// variable: in capitals, after MTAGD_.
type commandLine struct {
	Data   string `default:"./data" placeholder:"DIR" help:"Data directory; with --store only for this node's operator socket (default ${default})."`
	Store  string `placeholder:"URL" help:"PostgreSQL database for partners, merchants and events, such as postgres://mtagd@db1,db2/mtagd, instead of the data directory. A password in it is a secret: set it in the environment or in the config file."`
	Config string `placeholder:"FILE" help:"YAML file with values for flags. The command line and the environment take precedence."`

	Dev   devCommand   `cmd:"" help:"Run the whole service on loopback, with a demo partner and a demo shop."`
	Serve serveCommand `cmd:"" help:"Run the service: the partner API and the tag hosts."`

	Operator operator.Commands `embed:""`

	Verify   verifyCommand     `cmd:"" help:"Check all data for damage. Works with and without a running server."`
	Repair   repairCommand     `cmd:"" help:"Make a new data directory of what can be read of a damaged one. No server may run."`
	Backup   backupCommands    `cmd:"" help:"Back up the data directory. Works with and without a running server."`
	Restore  restoreCommand    `cmd:"" help:"Restore a backup into a new data directory."`
	Migrate  migrateCommand    `cmd:"" help:"Move all data into a PostgreSQL database, or out of one into a data directory, while the service runs."`
	Place    storeCommands     `cmd:"" name:"store" help:"Spread a PostgreSQL database over several servers."`
	Health   healthCommand     `cmd:"" help:"Ask a running server whether it accepts events: exit code 0 if it does, 1 if not."`
	Init     initCommand       `cmd:"" help:"Set up an installation: ask, check, write the configuration, start."`
	Doctor   doctorCommand     `cmd:"" help:"Say what is wrong with an installation, and what to do. Works with and without a running server."`
	Help     helpCommand       `cmd:"" help:"Show help for a command."`
	Version  versionCommand    `cmd:"" help:"Print the version, and the formats of data that it reads."`
	Complete completionCommand `cmd:"" name:"completion" help:"Print the completion of commands and flags for a shell."`
	Suggest  suggestCommand    `cmd:"" hidden:"" help:"Print what may follow some words of a command line, for the completion of a shell."`
	Manual   manualCommand     `cmd:"" name:"man" hidden:"" help:"Write man pages of all commands to a directory."`

	file configFile // the values in --config
}

// run runs one command line and returns the exit code. It prints an error as one line on stderr.
func run(args []string, stdout, stderr io.Writer) int {
	if err := unsetEmpty(os.Environ()); err != nil {
		return report(stderr, err)
	}
	var grammar commandLine
	parser := kong.Must(&grammar,
		kong.Name("mtagd"),
		kong.Description("A self-hosted tracking-tag service.\n\n"+
			"Results go to standard output, logs and errors to standard error. Exit codes: 0 done, 1 failed, 2 the command line or the "+
			"configuration is wrong. Run operator commands as the user of the service: they reach a running server through the socket in "+
			"its data directory, or else open the data themselves. Every flag can be set in the environment, or in the file of --config."),
		kong.Writers(stdout, stderr),
		kong.DefaultEnvars("MTAGD"),
		kong.Vars{"admin": defaultAdmin, "address_events": strconv.Itoa(limit.DefaultAddressEvents),
			"address_connections": strconv.Itoa(edge.DefaultConnectionsPerAddress)},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(helpWithVariable),
	)
	parsed, err := parse(parser, &grammar, args)
	if err == nil && asksForHelp(parsed) {
		return report(stderr, parsed.PrintUsage(false))
	}
	if err := checkVariables(os.Environ(), parser.Model.Node); err != nil { // this may also be why Parse failed
		return report(stderr, err)
	}
	if err != nil {
		return report(stderr, &usageError{err: err})
	}
	if grammar.Data == "" {
		return report(stderr, &usageError{where: "--data", err: errors.New("must not be empty")})
	}
	if err := checkStore(grammar.Store); err != nil {
		return report(stderr, &usageError{where: originOf(parsed, grammar.file).of("store"), err: err})
	}

	ctx, stop := signal.NotifyContext(context.Background(), stopSignals()...)
	defer stop()
	// After the first signal, a second SIGTERM or SIGINT ends the process immediately. A second SIGHUP does not: a
	// closed terminal sends two, one from the shell and one from the kernel.
	context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGHUP)
		stop()
	})

	p := &process{
		ctx: ctx, parsed: parsed, stdout: stdout, stderr: stderr,
		data: grammar.Data, store: grammar.Store, origin: originOf(parsed, grammar.file),
	}
	selected := parsed.Selected().Target
	if command, ok := selected.Interface().(operator.Command); ok {
		return report(stderr, operate(p, command))
	}
	return report(stderr, selected.Addr().Interface().(interface{ Run(p *process) error }).Run(p))
}

// parse does what parser.Parse does, without the hooks of commands and flags. Kong finds hooks by a name that the linker
// does not know, so the linker would keep all exported methods of the program: 6 MB. The same holds for parsed.Run, and for
// Validate of kong 1.16 and later.
func parse(parser *kong.Kong, grammar *commandLine, args []string) (*kong.Context, error) {
	parsed, err := kong.Trace(parser, args)
	if err != nil {
		return nil, err
	}
	if parsed.Error != nil || asksForHelp(parsed) {
		return parsed, parsed.Error
	}
	if err := parsed.Reset(); err != nil {
		return nil, err
	}
	if err := grammar.readConfig(parsed); err != nil {
		return nil, err
	}
	if err := parsed.Resolve(); err != nil {
		return nil, err
	}
	if _, err := parsed.Apply(); err != nil {
		return nil, err
	}
	return parsed, parsed.Validate()
}

// asksForHelp reports whether the command line has --help or -h.
func asksForHelp(parsed *kong.Context) bool {
	return slices.ContainsFunc(parsed.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == "help" })
}

// stopSignals are the signals that end a command cleanly. A closed terminal sends SIGHUP, unless nohup has it ignored.
func stopSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// readConfig reads the file of --config. Its values count where the command line and the environment have none.
func (c *commandLine) readConfig(ctx *kong.Context) (err error) {
	flags := allFlags(ctx.Model.Node)
	name, _ := ctx.FlagValue(flags["config"]).(string)
	if name == "" {
		return nil
	}
	if c.file, err = readConfigFile(name, flags); err == nil {
		ctx.AddResolver(c.file)
	}
	return err
}

// helpWithVariable shows the environment variable of a flag after its help.
func helpWithVariable(value *kong.Value) string {
	if len(value.Tag.Envs) == 0 {
		return value.Help
	}
	return value.Help + " [$" + value.Tag.Envs[0] + "]"
}

type helpCommand struct {
	Command []string `arg:"" optional:"" help:"The command, such as key issue."`
}

// Run shows the same as the command's --help.
func (c *helpCommand) Run(p *process) error {
	command, err := kong.Trace(p.parsed.Kong, c.Command)
	if err == nil {
		err = command.Error
	}
	if err != nil {
		return &usageError{err: err}
	}
	return command.PrintUsage(false)
}
