package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/dustin/go-humanize"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
)

type verifyCommand struct {
	JSON bool `name:"json" help:"Print one JSON object instead of a report for people."`
}

func (*verifyCommand) Help() string {
	return "It reads all data, checks every checksum, and compares the index with the events and the tags. It changes nothing; " +
		"a running server sets damaged events aside that it finds. The exit code is 0 when everything is sound, and 1 when damage was found."
}

// Run verifies the data, in the running server if there is one. It returns an error when damage was found.
func (c *verifyCommand) Run(p *process) error {
	return c.show(p, "damage was found", func(v store.Verification) (store.Verified, error) { return verifyData(p, v) })
}

// show verifies with a progress bar, and prints the report. The error of findings says what is wrong.
func (c *verifyCommand) show(p *process, wrong string, verify func(store.Verification) (store.Verified, error)) error {
	bar := newProgressBar(p.stderr, "verify")
	findings := []store.Finding{}
	counts, err := verify(store.Verification{
		Found: func(f store.Finding) { findings = append(findings, f) },
		Read:  func(part store.Part, done, total uint64) { bar.show(string(part), done, total) },
	})
	bar.end()
	if err == nil {
		err = c.print(p.stdout, findings, counts)
	}
	if err == nil && len(findings) > 0 {
		err = fmt.Errorf("%s: findings: %d", wrong, len(findings))
	}
	return err
}

// verifyData verifies the data, in the running server if there is one.
func verifyData(p *process, v store.Verification) (store.Verified, error) {
	var counts store.Verified
	err := operator.Ask(p.ctx, p.data, verifyPath, nil, func(m operator.Message) {
		if m.Finding != nil {
			v.Found(*m.Finding)
		} else {
			v.Read(store.Part(m.Step), m.Done, m.Total)
		}
	}, &counts)
	switch {
	case !operator.IsNoServer(err):
		return counts, err
	case p.store != "":
		return verifyDatabase(p.ctx, p.store, quietLog(p.stderr), v)
	}
	return verifyClosed(p.ctx, p.data, v)
}

const verifyPath = "/verify"

// handleVerify lets the operator socket verify the running server's data.
func handleVerify(mux *http.ServeMux, verify store.Verify) {
	mux.HandleFunc("POST "+verifyPath, func(w http.ResponseWriter, r *http.Request) {
		operator.Answer(w, r, func(ctx context.Context, say func(operator.Message)) (any, error) {
			return verify(ctx, store.Verification{
				Found: func(f store.Finding) { say(operator.Message{Finding: &f}) },
				Read: func(part store.Part, done, total uint64) {
					say(operator.Message{Step: string(part), Done: done, Total: total})
				},
			})
		})
	})
}

func (c *verifyCommand) print(w io.Writer, findings []store.Finding, counts store.Verified) error {
	if c.JSON {
		return printJSON(w, struct {
			Sound    bool            `json:"sound"`
			Findings []store.Finding `json:"findings"`
			Verified store.Verified  `json:"verified"`
		}{len(findings) == 0, findings, counts})
	}
	number := func(n uint64) string { return humanize.Comma(int64(n)) }
	fmt.Fprintf(w, "read: %s control records, %s events in %s chunks, %s index entries, %s identity links, %s remembered event_ids\n",
		number(counts.Records), number(counts.Events), number(counts.Chunks), number(counts.Entries), number(counts.Links), number(counts.Marks))
	for _, part := range []store.Part{store.PartControl, store.PartIndex, store.PartEvents, store.PartTags} {
		state := "sound"
		if slices.ContainsFunc(findings, func(f store.Finding) bool { return f.Part == part }) {
			state = "damaged"
		}
		fmt.Fprintf(w, "%s: %s\n", part, state)
		for _, f := range findings {
			if f.Part == part {
				fmt.Fprintf(w, "  %s %s%s\n", f.Where, f.Problem, eventsText(f))
			}
		}
	}
	return nil
}

func eventsText(f store.Finding) string {
	text := ""
	if f.Events > 0 {
		text = fmt.Sprintf("; %s events", humanize.Comma(int64(f.Events)))
		if !f.From.IsZero() {
			text += fmt.Sprintf(" from %s to %s", store.FormatTime(f.From), store.FormatTime(f.To))
		}
	}
	const shown = 5
	separator := "; merchant "
	for _, m := range f.Merchants[:min(len(f.Merchants), shown)] {
		text += separator + string(m)
		separator = ", "
	}
	if more := len(f.Merchants) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

type repairCommand struct {
	To string `required:"" placeholder:"NEWDIR" help:"The new data directory. It must be empty, or not exist."`
}

func (*repairCommand) Help() string {
	return "It reads the files of --data one by one, and never changes them. It prints what is lost. " +
		"The exit code is 0 when the new directory is sound, also when something is lost."
}

func (c *repairCommand) Run(p *process) error {
	if err := p.withoutStore(); err != nil {
		return err
	}
	if _, err := os.Stat(p.data); err != nil {
		return fmt.Errorf("data directory %s cannot be read: %w", p.data, err)
	}
	if inside, err := filepath.Rel(p.data, c.To); err == nil && filepath.IsLocal(inside) {
		return &usageError{where: "--to", err: errors.New("must not be inside the data directory")}
	}
	lost := 0
	if err := repairData(p.ctx, p.data, c.To, slog.New(slog.DiscardHandler), func(f store.Finding) {
		lost++
		fmt.Fprintf(p.stdout, "%s: %s %s%s\n", f.Part, f.Where, f.Problem, eventsText(f))
	}); err != nil {
		return err
	}
	if lost == 0 {
		fmt.Fprintln(p.stdout, "nothing is lost")
	}
	fmt.Fprintf(p.stdout, "\nthe new directory %s:\n", c.To)
	return (&verifyCommand{}).show(p, c.To+" is not sound", func(v store.Verification) (store.Verified, error) { return verifyClosed(p.ctx, c.To, v) })
}
