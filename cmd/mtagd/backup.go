package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
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
	Dest         string   `arg:"" placeholder:"DEST" help:"A directory, or s3://ENDPOINT/BUCKET/PREFIX. The credentials of a bucket are taken from the environment."`
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
	bar := newBar(p.stderr)
	result, err := backup.New(dest, src).Run(p.ctx, backup.Options{
		Full: c.Full, Certificates: c.Certificates, Recipients: c.Recipient,
		Progress: bar.show, Log: slog.New(slog.NewTextHandler(p.stderr, nil)), Now: time.Now,
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

// openDestination opens a destination, which must not be inside the data directory: a lost disk would take both.
func openDestination(data, name string, create bool) (backup.Destination, error) {
	dest, err := backup.Open(name, create)
	if err != nil || strings.Contains(name, "://") {
		return dest, err
	}
	from, err := filepath.Abs(data)
	if err != nil {
		return nil, err
	}
	to, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	if inside, err := filepath.Rel(from, to); err == nil && filepath.IsLocal(inside) {
		return nil, fmt.Errorf("%s is inside the data directory %s", name, data)
	}
	return dest, nil
}

// source is a backup.Source that must be closed.
type source interface {
	backup.Source
	io.Closer
}

// How long openSource tries again while the data directory is in use but no server answers: one is starting or stopping.
const (
	sourceBusy  = 10 * time.Second
	sourceRetry = 50 * time.Millisecond
)

// openSource returns the running server as the source, or the data directory itself if no server runs.
func openSource(p *process) (source, error) {
	if _, err := checkData(p.data, false); err != nil {
		return nil, fmt.Errorf("data directory %s %w", p.data, err)
	}
	for deadline := time.Now().Add(sourceBusy); ; {
		conn, err := operator.Dial(p.ctx, p.data)
		if err == nil {
			return serverSource{p.data}, conn.Close()
		}
		if !operator.IsNoServer(err) {
			return nil, err
		}
		src, err := local.OpenSource(p.data, local.Options{Log: quietLog(p.stderr)})
		if err == nil {
			return src, nil
		}
		if !errors.Is(err, store.ErrInUse) || time.Now().After(deadline) {
			return nil, openError(p.data, err)
		}
		select {
		case <-p.ctx.Done():
			return nil, p.ctx.Err()
		case <-time.After(sourceRetry):
		}
	}
}

// serverSource is the data directory of a running server, which streams it through its operator socket.
type serverSource struct{ data string }

func (s serverSource) Close() error { return nil }

// ID implements backup.Source.
func (s serverSource) ID(ctx context.Context) (id string, err error) {
	body, err := s.do(ctx, http.MethodGet, "")
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(body, 1<<10))
	return string(text), errors.Join(err, body.Close())
}

// Stream implements backup.Source.
func (s serverSource) Stream(ctx context.Context, r backup.Request, w io.Writer) error {
	message, err := json.Marshal(r)
	if err != nil {
		return err
	}
	body, err := s.do(ctx, http.MethodPost, string(message))
	if err != nil {
		return err
	}
	_, err = io.Copy(w, body)
	return errors.Join(err, body.Close())
}

func (s serverSource) do(ctx context.Context, method, message string) (io.ReadCloser, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return operator.Dial(ctx, s.data)
	}}}
	request, err := http.NewRequestWithContext(ctx, method, "http://mtagd"+backupPath, strings.NewReader(message))
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("operator socket: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, errors.Join(fmt.Errorf("the running server answered %s %s", response.Status, strings.TrimSpace(string(text))), err, response.Body.Close())
	}
	return response.Body, nil
}

// pointJSON is a point as it is printed.
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

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
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
	if c.JSON {
		lines := json.NewEncoder(p.stdout)
		for _, m := range points {
			if err := lines.Encode(shownPoint(m, "")); err != nil {
				return err
			}
		}
		return unreadable
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TIME\tPOINT\tKIND\tNEW EVENTS\tSIZE\tDATA DIRECTORY")
	for _, m := range points {
		s := shownPoint(m, "")
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\n", s.Time, s.Point, s.Kind, s.Events, humanize.IBytes(uint64(s.Bytes)), s.Data)
	}
	return errors.Join(table.Flush(), unreadable)
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
	bar := newBar(p.stderr)
	report, err := backup.Verify(p.ctx, dest, identities, local.CheckEntry, bar.show)
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
		err = fmt.Errorf("%d problems in %s", len(report.Problems), dest)
	}
	return err
}

func printReport(w io.Writer, r backup.Report) error {
	for _, problem := range r.Problems {
		if _, err := fmt.Fprintf(w, "%s\n", strings.Join(strings.Fields(problem.Point+" "+problem.Error), " ")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%d points, %d objects, %s, %d problems\n", r.Points, r.Objects, humanize.IBytes(uint64(r.Bytes)), len(r.Problems))
	if err == nil && r.Encrypted > 0 {
		_, err = fmt.Fprintf(w, "%d points are encrypted: only their checksums were compared. --identity looks into them\n", r.Encrypted)
	}
	return err
}

// readIdentities reads age identities from a file; an empty name stands for none.
func readIdentities(file string) ([]age.Identity, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	identities, err := age.ParseIdentities(f)
	return identities, errors.Join(err, f.Close())
}

// bar shows progress on a terminal.
type bar struct {
	w       io.Writer // nil: not a terminal
	started time.Time
	shown   time.Time
}

const barInterval = 200 * time.Millisecond

func newBar(w io.Writer) *bar {
	b := &bar{started: time.Now()}
	if f, ok := w.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			b.w = w
		}
	}
	return b
}

// show shows how many bytes are done. A total of 0 is unknown.
func (b *bar) show(done, total int64) {
	now := time.Now()
	if b.w == nil || now.Sub(b.shown) < barInterval {
		return
	}
	b.shown = now
	speed := uint64(float64(done) / max(now.Sub(b.started).Seconds(), 0.1))
	line := fmt.Sprintf("%s, %s/s", humanize.IBytes(uint64(done)), humanize.IBytes(speed))
	if total > 0 {
		const width = 30
		share := min(1, float64(done)/float64(total))
		line = fmt.Sprintf("[%-*s] %3.0f %%  %s", width, strings.Repeat("#", int(share*width)), share*100, line)
	}
	fmt.Fprintf(b.w, "\r\x1b[K%s", line)
}

// end removes the line.
func (b *bar) end() {
	if b.w != nil && !b.shown.IsZero() {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}
