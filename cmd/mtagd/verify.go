package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
)

// verifyCommand is "mtagd verify".
type verifyCommand struct {
	JSON bool `name:"json" help:"Print one JSON object instead of a report for people."`
}

// Help is shown after the command's one line of help.
func (*verifyCommand) Help() string {
	return "It reads all data, checks every checksum, and compares the index with the events and the tags. It changes nothing; " +
		"a running server sets damaged events aside that it finds. The exit code is 0 when everything is sound, and 1 when damage was found."
}

// Run verifies the data, in the running server if there is one. It returns an error when damage was found.
func (c *verifyCommand) Run(p *process) error {
	bar := newProgressBar(p.stderr, "verify")
	findings := []store.Finding{}
	v := store.Verification{
		Found: func(f store.Finding) { findings = append(findings, f) },
		Read:  func(part store.Part, done, total uint64) { bar.show(string(part), done, total) },
	}
	counts, err := verifyData(p, v)
	bar.end()
	if err != nil {
		return err
	}
	if err := c.print(p.stdout, findings, counts); err != nil {
		return err
	}
	if len(findings) > 0 {
		return fmt.Errorf("damage was found: findings: %d", len(findings))
	}
	return nil
}

// verifyData verifies the data, in the running server if there is one.
func verifyData(p *process, v store.Verification) (store.Verified, error) {
	counts, err := operator.Client{Data: p.data}.Verify(p.ctx, v)
	switch {
	case !errors.Is(err, operator.ErrNoServer):
		return counts, err
	case p.store != "":
		return verifyDatabase(p.ctx, p.store, quietLog(p.stderr), v)
	}
	return verifyClosed(p.ctx, p.data, v)
}

func (c *verifyCommand) print(w io.Writer, findings []store.Finding, counts store.Verified) error {
	if c.JSON {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(struct {
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

// eventsText says which events a finding concerns.
func eventsText(f store.Finding) string {
	text := ""
	if f.Events > 0 {
		text = fmt.Sprintf("; %s events", humanize.Comma(int64(f.Events)))
		if !f.From.IsZero() {
			text += fmt.Sprintf(" from %s to %s", store.FormatTime(f.From), store.FormatTime(f.To))
		}
	}
	for i, m := range f.Merchants {
		switch i {
		case 0:
			text += "; merchant " + string(m)
		case 5:
			return text + fmt.Sprintf(" and %d more", len(f.Merchants)-i)
		default:
			text += ", " + string(m)
		}
	}
	return text
}

// progressBar shows on a terminal how far a command is. Elsewhere it shows nothing.
type progressBar struct {
	w     io.Writer // nil: not a terminal
	title string
	shown time.Time
}

func newProgressBar(w io.Writer, title string) *progressBar {
	b := &progressBar{title: title}
	if f, ok := w.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			b.w = w
		}
	}
	return b
}

// show shows how many things are done. A total of 0 is unknown.
func (b *progressBar) show(step string, done, total uint64) {
	if b.w == nil || time.Since(b.shown) < 100*time.Millisecond {
		return
	}
	b.shown = time.Now()
	if total == 0 {
		fmt.Fprintf(b.w, "\r\x1b[K%s %-8s %s", b.title, step, humanize.Comma(int64(done)))
		return
	}
	const width = 40
	filled := int(width * min(done, total) / total)
	bar := slices.Concat(slices.Repeat([]byte("#"), filled), slices.Repeat([]byte("."), width-filled))
	fmt.Fprintf(b.w, "\r%s %-8s [%s] %3d %%", b.title, step, bar, 100*min(done, total)/total)
}

// end removes the bar.
func (b *progressBar) end() {
	if b.w != nil && !b.shown.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
