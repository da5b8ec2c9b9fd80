package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/local/backup"
)

type restoreCommand struct {
	Src      string `arg:"" placeholder:"SRC" help:"Where the backup is: a directory, or s3://ENDPOINT/BUCKET/PREFIX."`
	Point    string `placeholder:"TIME" help:"Restore the newest point that is not after this time, such as 2026-11-20T08:30:00Z, or the point with this name (default: the newest)."`
	From     string `placeholder:"ID" help:"The data directory whose points count, if SRC has points of several."`
	Identity string `placeholder:"FILE" help:"File with the age identity for an encrypted backup."`
}

func (*restoreCommand) Help() string {
	return "--data names the new directory, which must not exist or be empty. It can be used when the command has ended with 0: " +
		"then every checksum was compared, every event was decoded, and the number of events is that of the backup. " +
		"When the newest point is damaged, the newest sound one is restored, and the command ends with 1. " +
		"A restore that was interrupted is begun again by the same command."
}

func (c *restoreCommand) Run(p *process) error {
	if err := p.withoutStore(); err != nil {
		return err
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
	wanted, at, err := c.find(points)
	if err != nil {
		return errors.Join(err, unreadable)
	}
	if unreadable != nil {
		fmt.Fprintf(p.stderr, "mtagd: some points cannot be read: %v\n", unreadable)
	}
	var newer error // why the restored point is not the newest one
	if name := backup.NewestUnreadable(unreadable, at); name > wanted[0].Point && wanted[0].Point != c.Point {
		newer = fmt.Errorf("point %s cannot be read", name)
	}
	for len(wanted) > 0 {
		m := wanted[0]
		bar := newProgressBar(p.stderr, "restore")
		var count backup.Count
		events, err := local.Restore(p.ctx, p.data, local.Options{Log: quietLog(p.stderr)}, func(to backup.Target) (_ backup.Count, err error) {
			count, err = backup.Restore(p.ctx, src, points, m, identities, local.CheckEntry, to, bar.bytes)
			return count, err
		})
		bar.end()
		if damage, ok := errors.AsType[*backup.DamagedError](err); ok {
			older := slices.DeleteFunc(wanted[1:], func(m *backup.Manifest) bool { return damage.Concerns(points, m) })
			if wanted = older; len(wanted) > 0 {
				newer = cmp.Or(newer, err)
				continue
			}
		}
		if err != nil {
			return fillError(p.ctx, "restore", p.data, err)
		}
		err = printJSON(p.stdout, struct {
			Point  string `json:"point"`
			Time   string `json:"time"`
			Data   string `json:"data"`
			Events int    `json:"events"`
		}{m.Point, store.FormatTime(m.Time), p.data, events})
		return errors.Join(err, complete(m, newer, len(count.Damaged)))
	}
	return nil
}

// complete returns an error when what was restored is not all that the backup should have.
func complete(m *backup.Manifest, newer error, damaged int) error {
	if newer != nil {
		return fmt.Errorf("an older point was restored, %s of %s, and what came after it is missing: %w", m.Point, store.FormatTime(m.Time), newer)
	}
	if damaged > 0 {
		return fmt.Errorf("the point was restored, but %d damaged chunks of events were not in the backup", damaged)
	}
	return nil
}

// find returns the point to restore, and after it the older points, which replace it when it is damaged. If --point names a
// point, find returns only that one. at is the time in --point, or zero.
func (c *restoreCommand) find(points []*backup.Manifest) (wanted []*backup.Manifest, at time.Time, err error) {
	for _, m := range points {
		if m.Point == c.Point {
			return []*backup.Manifest{m}, at, nil
		}
	}
	if c.Point != "" {
		var ok bool
		if at, ok = store.ParseTime(c.Point); !ok {
			return nil, at, &usageError{where: "--point", err: fmt.Errorf("must be a time such as 2026-11-20T08:30:00Z, or the name of a point, not %q", c.Point)}
		}
		if !strings.Contains(c.Point, ".") { // the list of points has whole seconds
			at = at.Add(time.Second - 1)
		}
	}
	wanted, err = backup.Find(points, c.From, at)
	return wanted, at, err
}

// fillError is the error of a command that fills a new data directory.
func fillError(ctx context.Context, command, data string, err error) error {
	if errors.Is(err, local.ErrNotEmpty) {
		return err
	}
	if ctx.Err() != nil {
		err = errors.New("it was interrupted")
	}
	return fmt.Errorf("%s into %s: %w. The directory cannot be used; the same command begins again", command, data, err)
}
