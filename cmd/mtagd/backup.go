package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store/local"
	"mtagd/store/local/backup"
)

// backupCommands are "mtagd backup" and what is below it.
type backupCommands struct {
	Create backupCommand       `cmd:"" default:"withargs" help:"Back up the data directory, beside a running server too."`
	Verify backupVerifyCommand `cmd:"" help:"Check all points in a destination: checksums, chains, and that every event decodes."`
	List   backupListCommand   `cmd:"" help:"List the points in a destination."`
}

// backupCommand is "mtagd backup DEST".
type backupCommand struct {
	Dest         string   `arg:"" placeholder:"DEST" help:"A directory, or s3://ENDPOINT/BUCKET/PREFIX. The credentials of a bucket are taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or MINIO_ACCESS_KEY and MINIO_SECRET_KEY, from ~/.aws/credentials, or from the machine's role."`
	Full         bool     `help:"Back up everything, not only what is new since the last point."`
	Certificates bool     `help:"Back up TLS certificates and their private keys too."`
	Recipient    []string `placeholder:"age1..." help:"Encrypt for this age recipient. Repeatable."`
}

// Run makes a point.
func (c *backupCommand) Run(p *process) error {
	dest, err := openDestination(p.data, c.Dest, true)
	if err != nil {
		return &usageError{where: "DEST", err: err}
	}
	if err := backup.CheckRecipients(c.Recipient); err != nil {
		return &usageError{where: p.origin.of("recipient"), err: err}
	}
	if err := yieldToOthers(); err != nil {
		fmt.Fprintf(p.stderr, "mtagd: the backup takes as much of the processors as a server does: %v\n", err)
	}
	src, err := openSource(p)
	if err != nil {
		return err
	}
	bar := newProgressBar(p.stderr, "backup")
	result, err := backup.New(dest, src).Run(p.ctx, backup.Options{
		Full: c.Full, Certificates: c.Certificates, Recipients: c.Recipient,
		Progress: bar.bytes, Log: slog.New(slog.NewTextHandler(p.stderr, nil)), Now: time.Now,
	})
	bar.end()
	if err := errors.Join(err, src.Close()); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := printJSON(p.stdout, shownPoint(result.Point, result.Why)); err != nil {
		return err
	}
	if n := len(result.Point.Count.Damaged); n > 0 {
		return fmt.Errorf("the point was made, but without %d damaged chunks of events", n)
	}
	return nil
}

// source is a backup.Source that must be closed.
type source interface {
	backup.Source
	io.Closer
}

// openSource returns the running server as the source, or the data directory itself if no server runs.
func openSource(p *process) (source, error) {
	if err := cmp.Or(p.withoutStore(), existingData(p.data)); err != nil {
		return nil, err
	}
	var src source
	err := operator.WhileInUse(p.ctx, func() error {
		conn, err := operator.Dial(p.ctx, p.data)
		if err == nil {
			src = serverSource{p.data}
			return conn.Close()
		}
		if operator.IsNoServer(err) {
			if src, err = local.OpenSource(p.data, local.Options{Log: quietLog(p.stderr)}); err != nil {
				err = openError(p.data, err)
			}
		}
		return err
	})
	return src, err
}

// backupListCommand is "mtagd backup list DEST".
type backupListCommand struct {
	Dest string `arg:"" placeholder:"DEST" help:"The destination."`
	JSON bool   `name:"json" help:"Print one JSON object a line instead of a table."`
}

// Run lists the points, the newest last. Manifests that cannot be read make it fail after that.
func (c *backupListCommand) Run(p *process) error {
	dest, err := backup.Open(c.Dest, false)
	if err != nil {
		return &usageError{where: "DEST", err: err}
	}
	points, unreadable := backup.Points(p.ctx, dest)
	if points == nil {
		return unreadable
	}
	var shown []pointJSON
	for _, m := range points {
		shown = append(shown, shownPoint(m, ""))
	}
	return errors.Join(operator.PrintList(p.stdout, c.JSON, shown, "TIME\tPOINT\tKIND\tNEW EVENTS\tSIZE\tDATA DIRECTORY", func(s pointJSON) []string {
		return []string{s.Time, s.Point, s.Kind, strconv.Itoa(s.Events), humanize.IBytes(uint64(s.Bytes)), s.Data}
	}), unreadable)
}

// backupVerifyCommand is "mtagd backup verify DEST".
type backupVerifyCommand struct {
	Dest     string `arg:"" placeholder:"DEST" help:"The destination."`
	Identity string `placeholder:"FILE" help:"File with age identities. Without it, only the checksums of encrypted points are compared."`
	JSON     bool   `name:"json" help:"Print the report as JSON."`
}

// Run checks all points. It fails when something is wrong.
func (c *backupVerifyCommand) Run(p *process) error {
	dest, err := backup.Open(c.Dest, false)
	if err != nil {
		return &usageError{where: "DEST", err: err}
	}
	identities, err := readIdentities(c.Identity)
	if err != nil {
		return &usageError{where: p.origin.of("identity"), err: err}
	}
	bar := newProgressBar(p.stderr, "backup")
	report, err := backup.Verify(p.ctx, dest, identities, local.CheckEntry, bar.bytes)
	bar.end()
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(p.stdout, report)
	} else {
		err = printReport(p.stdout, report)
	}
	if err == nil && len(report.Problems) > 0 {
		err = fmt.Errorf("%s in %s", english.Plural(len(report.Problems), "problem", ""), dest)
	}
	return err
}

func printReport(w io.Writer, r backup.Report) error {
	for _, problem := range r.Problems {
		if _, err := fmt.Fprintf(w, "%s\n", strings.Join(strings.Fields(problem.Point+" "+problem.Error), " ")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s, %s, %s, %s\n", english.Plural(r.Points, "point", ""), english.Plural(r.Objects, "object", ""),
		humanize.IBytes(uint64(r.Bytes)), english.Plural(len(r.Problems), "problem", ""))
	if err == nil && r.Encrypted > 0 {
		_, err = fmt.Fprintf(w, "%d points are encrypted: only their checksums were compared. --identity looks into them\n", r.Encrypted)
	}
	return err
}
