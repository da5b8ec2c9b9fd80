package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/local/backup"
)

// restoreCommand is "mtagd restore SRC --data NEWDIR".
type restoreCommand struct {
	Src      string `arg:"" placeholder:"SRC" help:"Where the backup is: a directory, or s3://ENDPOINT/BUCKET/PREFIX."`
	Point    string `placeholder:"TIME" help:"Restore the newest point that is not after this time, such as 2026-11-20T08:30:00Z, or the point with this name (default: the newest)."`
	From     string `placeholder:"ID" help:"The data directory whose points are meant, when SRC has those of several."`
	Identity string `placeholder:"FILE" help:"File with the age identity for an encrypted backup."`
}

// Help is shown after the command's one line of help.
func (*restoreCommand) Help() string {
	return "--data names the new directory, which must not exist or be empty. It can be used when the command has ended with 0: " +
		"then every checksum was compared, every event was decoded, and the number of events is that of the backup. " +
		"A restore that was interrupted is begun again by the same command."
}

// Run restores a point.
func (c *restoreCommand) Run(p *process) error {
	if p.store != "" {
		return &usageError{where: p.origin.of("store"), err: errNotWithStore}
	}
	if !p.origin.given("data") {
		return &usageError{where: "--data", err: errors.New("must name the new directory")}
	}
	src, err := backup.Open(c.Src, false)
	if err != nil {
		return &usageError{where: "SRC", err: err}
	}
	identities, err := readIdentities(c.Identity)
	if err != nil {
		return &usageError{where: p.origin.of("identity"), err: err}
	}
	points, unreadable := backup.Points(p.ctx, src)
	m, err := c.find(points)
	if err != nil {
		return errors.Join(err, unreadable)
	}
	if unreadable != nil {
		fmt.Fprintf(p.stderr, "mtagd: some points cannot be read: %v\n", unreadable)
	}
	bar := newBar(p.stderr)
	events, err := local.Restore(p.ctx, p.data, local.Options{Log: quietLog(p.stderr)}, func(to backup.Target) (backup.Count, error) {
		return backup.Restore(p.ctx, src, points, m, identities, local.CheckEntry, to, bar.show)
	})
	bar.end()
	if err != nil {
		return restoreError(p.ctx, p.data, err)
	}
	return printJSON(p.stdout, struct {
		Point  string `json:"point"`
		Time   string `json:"time"`
		Data   string `json:"data"`
		Events int    `json:"events"`
	}{m.Point, store.FormatTime(m.Time), p.data, events})
}

// find finds the point that is to be restored.
func (c *restoreCommand) find(points []*backup.Manifest) (*backup.Manifest, error) {
	for _, m := range points {
		if m.Point == c.Point {
			return m, nil
		}
	}
	var at time.Time
	if c.Point != "" {
		var ok bool
		if at, ok = store.ParseTime(c.Point); !ok {
			return nil, &usageError{where: "--point", err: fmt.Errorf("must be a time such as 2026-11-20T08:30:00Z, or the name of a point, not %q", c.Point)}
		}
		if !strings.Contains(c.Point, ".") { // the list of points has whole seconds
			at = at.Add(time.Second - 1)
		}
	}
	return backup.Find(points, c.From, at)
}

func restoreError(ctx context.Context, data string, err error) error {
	if errors.Is(err, local.ErrNotEmpty) {
		return err
	}
	if ctx.Err() != nil {
		err = errors.New("it was interrupted")
	}
	return fmt.Errorf("restore into %s: %w. The directory cannot be used; the same command begins again", data, err)
}
