package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
)

// process is what a command may use of the process that it runs in.
type process struct {
	ctx    context.Context // ends with the first signal to stop
	stdout io.Writer       // for results
	stderr io.Writer       // for logs and errors
	data   string          // --data
	store  string          // --store; empty: everything is in the data directory
	origin origin          // where the flags' values came from
}

// withoutStore returns an error with --store, for commands on the files of the embedded engine.
func (p *process) withoutStore() error {
	if p.store == "" {
		return nil
	}
	return &usageError{where: p.origin.of("store"), err: errNotWithStore}
}

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is an error in the command line or in the configuration.
type usageError struct {
	where string // the flag, variable or line at fault; empty if err names it
	err   error
}

func (e *usageError) Error() string {
	if e.where == "" {
		return e.err.Error()
	}
	return e.where + ": " + e.err.Error()
}

func (e *usageError) Unwrap() error { return e.err }

// report prints an error in one line and returns the exit code for it.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	if unknown, is := errors.AsType[*operator.UnknownCommandError](err); is {
		err = fmt.Errorf("%w: %w", err, otherServer(unknown.Version))
	}
	fmt.Fprintf(stderr, "mtagd: %s\n", oneLine(err))
	if _, usage := errors.AsType[*usageError](err); usage || store.KindOf(err) == store.KindInvalid {
		return exitUsage
	}
	return exitFailed
}

// otherServer says why a running server lacks a command of this program.
func otherServer(runs string) error {
	if runs == version() {
		return errors.New("it works without the files of a data directory (--store)")
	}
	return fmt.Errorf("it is mtagd %s, and this is %s: restart the service", cmp.Or(runs, "of an earlier version"), version())
}

// oneLine is the text of an error in one line, with the joined errors separated by semicolons.
func oneLine(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if words := strings.Fields(line); len(words) > 0 {
			parts = append(parts, strings.Join(words, " "))
		}
	}
	return strings.Join(parts, "; ")
}

// printJSON prints a result.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// quietLog logs warnings and errors.
func quietLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
