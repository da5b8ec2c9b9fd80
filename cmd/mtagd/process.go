package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/postgres"
)

// process is what a command may use of the process that it runs in.
type process struct {
	parsed *kong.Context   // the command line
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
	return fmt.Errorf("the service runs mtagd %s, but this program is %s: restart the service", cmp.Or(runs, "of an earlier version"), version())
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

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func quietLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func operate(p *process, command operator.Command) error {
	client := operator.Client{
		Data: p.data,
		Open: func(ctx context.Context, create bool) (operator.Control, error) {
			if p.store != "" {
				return openDatabase(ctx, p.store, postgres.Options{Log: quietLog(p.stderr)})
			}
			return openControl(p.data, create, p.stderr)
		},
	}
	result, err := client.Run(p.ctx, command)
	if err != nil {
		return err
	}
	if audit, is := command.(operator.AuditCommand); is {
		return audit.Print(p.stdout, result)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, result, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, string(bytes.TrimSpace(text.Bytes())))
	return err
}

// progressBar shows on a terminal how far a command is. Elsewhere it shows nothing.
type progressBar struct {
	w       io.Writer // nil: not a terminal
	title   string
	started time.Time
	shown   time.Time
}

const barInterval = 200 * time.Millisecond

func newProgressBar(w io.Writer, title string) *progressBar {
	b := &progressBar{title: title, started: time.Now()}
	if f, ok := w.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			b.w = w
		}
	}
	return b
}

// show shows how many items of a step are done. A total of 0 means unknown.
func (b *progressBar) show(step string, done, total uint64) {
	b.draw(step, humanize.Comma(int64(done)), float64(done), float64(total))
}

// bytes shows how many bytes are done. A total of 0 means unknown.
func (b *progressBar) bytes(done, total int64) {
	speed := float64(done) / max(time.Since(b.started).Seconds(), 0.1)
	b.draw("", fmt.Sprintf("%s, %s/s", humanize.IBytes(uint64(done)), humanize.IBytes(uint64(speed))), float64(done), float64(total))
}

func (b *progressBar) draw(step, amount string, done, total float64) {
	if b.w == nil || time.Since(b.shown) < barInterval {
		return
	}
	b.shown = time.Now()
	bar := ""
	if total > 0 {
		const width = 30
		share := min(1, done/total)
		bar = fmt.Sprintf(" [%-*s] %3.0f %%", width, strings.Repeat("#", int(share*width)), share*100)
	}
	fmt.Fprintf(b.w, "\r\x1b[K%s %s%s %s", b.title, step, bar, amount)
}

// end removes the bar.
func (b *progressBar) end() {
	if b.w != nil && !b.shown.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
