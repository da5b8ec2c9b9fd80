package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/local/backup"
)

type backupCommands struct {
	Create backupCommand       `cmd:"" default:"withargs" help:"Back up the data directory, beside a running server too."`
	Verify backupVerifyCommand `cmd:"" help:"Check all points in a destination: checksums, chains, and that every event decodes."`
	List   backupListCommand   `cmd:"" help:"List the points in a destination."`
}

type backupCommand struct {
	Dest         string   `arg:"" placeholder:"DEST" help:"A directory, or s3://ENDPOINT/BUCKET/PREFIX. The credentials of a bucket are taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or MINIO_ACCESS_KEY and MINIO_SECRET_KEY, from ~/.aws/credentials, or from the machine's role."`
	Full         bool     `help:"Back up everything, not only what is new since the last point."`
	Certificates bool     `help:"Back up TLS certificates and their private keys too."`
	Recipient    []string `placeholder:"age1..." help:"Encrypt for this age recipient. Repeatable."`
}

func (c *backupCommand) Run(p *process) error {
	dest, err := openDestination(p.data, c.Dest, true)
	if err != nil {
		return &usageError{where: "DEST", err: err}
	}
	if err := backup.CheckRecipients(c.Recipient); err != nil {
		return &usageError{where: p.origin.of("recipient"), err: err}
	}
	if err := yieldToOthers(); err != nil {
		fmt.Fprintf(p.stderr, "mtagd: the backup cannot lower its priority, and may slow the server down: %v\n", err)
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
			src, err = local.OpenSource(p.data, local.Options{Log: quietLog(p.stderr)})
			return openError(p.data, err)
		}
		return err
	})
	return src, err
}

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
	var text strings.Builder
	for _, problem := range r.Problems {
		fmt.Fprintln(&text, strings.Join(strings.Fields(problem.Point+" "+problem.Error), " "))
	}
	fmt.Fprintf(&text, "%s, %s, %s, %s\n", english.Plural(r.Points, "point", ""), english.Plural(r.Objects, "object", ""),
		humanize.IBytes(uint64(r.Bytes)), english.Plural(len(r.Problems), "problem", ""))
	if r.Encrypted > 0 {
		fmt.Fprintf(&text, "%d points are encrypted: only their checksums were compared. --identity looks into them\n", r.Encrypted)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// backupPath is where the operator socket streams the data directory.
const backupPath = "/backup"

// handleBackup lets the operator socket stream a backup of the data directory.
func handleBackup(mux *http.ServeMux, src *local.Source) {
	mux.HandleFunc("GET "+backupPath, func(w http.ResponseWriter, r *http.Request) {
		id, err := src.ID(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(id)) // this fails if the client has gone
	})
	mux.HandleFunc("POST "+backupPath, func(w http.ResponseWriter, r *http.Request) {
		var request backup.Request
		if !operator.Decode(w, r, &request) {
			return
		}
		request.Small = false // what the last commits have written belongs to the schedule
		// An error is in the stream. It cannot be written when the client has gone.
		_ = src.Stream(r.Context(), request, deadlineWriter{w, http.NewResponseController(w)})
	})
}

// deadlineWriter gives up on a client that does not read.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w deadlineWriter) Write(b []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(operator.StreamTimeout)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// serverSource is the data directory of a running server, which streams it through its operator socket.
type serverSource struct{ data string }

func (s serverSource) Close() error { return nil }

func (s serverSource) ID(ctx context.Context) (id string, err error) {
	answer, err := operator.Request(ctx, s.data, http.MethodGet, backupPath, nil)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	return string(text), errors.Join(err, answer.Body.Close())
}

func (s serverSource) Stream(ctx context.Context, r backup.Request, w io.Writer) error {
	answer, err := operator.Request(ctx, s.data, http.MethodPost, backupPath, r)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, answer.Body)
	return errors.Join(err, answer.Body.Close())
}

type pointJSON struct {
	Data      string `json:"data"`
	Point     string `json:"point"`
	Time      string `json:"time"`
	Kind      string `json:"kind"`
	Why       string `json:"why,omitempty"`
	Bytes     int64  `json:"bytes"`
	Events    int    `json:"events"`
	Damaged   int    `json:"damagedChunks,omitempty"`
	Encrypted bool   `json:"encrypted"`
}

func shownPoint(m *backup.Manifest, why string) pointJSON {
	kind := "increment"
	if m.Parent == "" {
		kind = "base"
	} else if m.Small {
		kind = "small"
	}
	return pointJSON{m.Data, m.Point, store.FormatTime(m.Time), kind, why, m.Written(), m.Count.Events, len(m.Count.Damaged), len(m.Recipients) > 0}
}
