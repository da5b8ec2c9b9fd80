package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"mtagd/cmd/mtagd/operator"
	"mtagd/partnerapi/export"
	"mtagd/store"
	"mtagd/store/postgres"
)

// exportCommand is "mtagd export".
type exportCommand struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	Out      string           `placeholder:"FILE" help:"Write to this file, which must not exist yet. Without it, to standard output."`
	Format   export.Format    `default:"ndjson" enum:"ndjson,csv,parquet" help:"ndjson, csv or parquet (default ${default})."`
	Tag      store.TagID      `placeholder:"TAG_ID" help:"Only events of this tag."`
	Events   []string         `placeholder:"NAME" help:"Only events of this name. Repeatable, or separated by commas."`
	From     moment           `placeholder:"TIME" help:"Only events from this event_time on: a date or an RFC 3339 time."`
	To       moment           `placeholder:"TIME" help:"Only events up to this event_time. A date means the end of that day."`
}

func (*exportCommand) Help() string {
	return "It writes the events in the order in which they were received. A running server exports beside its work."
}

// moment is a time, or a whole day in UTC.
type moment struct {
	first, last time.Time // the same, except for a day
}

// UnmarshalText reads the flag's value.
func (m *moment) UnmarshalText(text []byte) error {
	if day, err := time.Parse(time.DateOnly, string(text)); err == nil {
		m.first, m.last = day, day.AddDate(0, 0, 1).Add(-time.Microsecond)
		return nil
	}
	at, ok := store.ParseTime(string(text))
	if !ok {
		return fmt.Errorf("must be a date or a time, such as 2026-11-20 or 2026-11-20T08:30:00Z, not %q", text)
	}
	m.first, m.last = at, at
	if !bytes.ContainsAny(text, ".,") { // the end of that second, as in the API
		m.last = at.Add(time.Second - time.Microsecond)
	}
	return nil
}

// exportRequest is what to export, as it is sent to a running server.
type exportRequest struct {
	Query  store.FeedQuery
	Format export.Format
}

// Run exports events, from the running server if there is one.
func (c *exportCommand) Run(p *process) error {
	r := exportRequest{Format: c.Format, Query: store.FeedQuery{
		Merchants: []store.MerchantID{store.FoldMerchantID(string(c.Merchant))}, Tag: c.Tag, Names: c.Events,
	}}
	if !c.From.first.IsZero() {
		r.Query.From = &c.From.first
	}
	if !c.To.last.IsZero() {
		r.Query.To = &c.To.last
	}
	if r.Query.From != nil && r.Query.To != nil && r.Query.From.After(*r.Query.To) {
		return &usageError{where: "--from", err: errors.New("is after --to")}
	}
	out, err := c.create(p)
	if err != nil {
		return err
	}
	counted := &countingWriter{Writer: out, bar: newProgressBar(p.stderr, "export")}
	events, err := exportFromServer(p.ctx, p.data, r, counted)
	if operator.IsNoServer(err) {
		events, err = exportClosed(p, r, counted)
	}
	counted.bar.end()
	if err = errors.Join(err, out.finish(err == nil)); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	fmt.Fprintf(p.stderr, "mtagd: exported %d events\n", events)
	return nil
}

// countingWriter shows how many bytes were written.
type countingWriter struct {
	io.Writer
	bar   *progressBar
	bytes int64
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	w.bytes += int64(n)
	w.bar.bytes(w.bytes, 0)
	return n, err
}

// exportClosed exports from a data directory that no server has open, or from a database.
func exportClosed(p *process, r exportRequest, to io.Writer) (events uint64, err error) {
	engine, err := openForExport(p)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return exportEvents(p.ctx, engine, r, to, func(time.Duration) {})
}

func openForExport(p *process) (store.Engine, error) {
	if p.store != "" {
		return openDatabase(p.ctx, p.store, postgres.Options{Log: quietLog(p.stderr)})
	}
	if err := existingData(p.data); err != nil {
		return nil, err
	}
	return openEngine(p.ctx, p.data, "", 0, 0, quietLog(p.stderr), nil)
}

// exportEvents exports from an engine, and returns the number of exported events. After each piece it calls rest with the
// time that the piece took.
func exportEvents(ctx context.Context, engine store.Engine, r exportRequest, to io.Writer, rest func(time.Duration)) (events uint64, err error) {
	for _, id := range r.Query.Merchants {
		if _, err := engine.Merchant(ctx, id); err != nil {
			return 0, err
		}
	}
	var piece bytes.Buffer // a slow reader must not hold up the engine
	c, err := export.NewCopy(ctx, engine, r.Query, export.NewWriter(r.Format, &piece))
	if err != nil {
		return 0, err
	}
	for more := true; more; {
		begun := time.Now()
		if more, err = c.Next(ctx); err != nil {
			return 0, err
		}
		rest(time.Since(begun))
		if _, err := piece.WriteTo(to); err != nil {
			return 0, err
		}
	}
	return c.Events, nil
}

// exportPath is the export's path on the operator socket. The answer is the file. Its trailer is eventsTrailer if the file
// is complete, otherwise failureTrailer.
const (
	exportPath     = "/export"
	eventsTrailer  = "Mtagd-Events"
	failureTrailer = "Mtagd-Failure"
)

// handleExport adds exports to the handler of the operator socket.
func handleExport(mux *http.ServeMux, engine store.Engine) {
	mux.HandleFunc("POST "+exportPath, func(w http.ResponseWriter, r *http.Request) {
		var request exportRequest
		if !operator.Decode(w, r, &request) {
			return
		}
		out := deadlineWriter{w, http.NewResponseController(w)}
		_ = out.control.Flush()                                                    // without it, an empty answer has no trailer; later writes return the connection's errors
		events, err := exportEvents(r.Context(), engine, request, out, time.Sleep) // at most half of a core, the rest is for requests
		if err != nil {
			w.Header().Set(http.TrailerPrefix+failureTrailer, oneLine(err))
			return
		}
		w.Header().Set(http.TrailerPrefix+eventsTrailer, strconv.FormatUint(events, 10))
	})
}

// exportFromServer exports from the running server. operator.IsNoServer reports whether there is none.
func exportFromServer(ctx context.Context, data string, r exportRequest, to io.Writer) (events uint64, err error) {
	answer, err := operator.Request(ctx, data, http.MethodPost, exportPath, r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(to, answer.Body); err != nil {
		return 0, err
	}
	if failure := answer.Trailer.Get(failureTrailer); failure != "" {
		return 0, errors.New(failure)
	}
	if events, err = strconv.ParseUint(answer.Trailer.Get(eventsTrailer), 10, 64); err != nil {
		err = errors.New("the server stopped before the export was complete")
	}
	return events, err
}

// exportFile is where an export goes. A file gets its name when it is complete.
type exportFile struct {
	io.Writer
	finish func(complete bool) error
}

// create opens standard output or the file.
func (c *exportCommand) create(p *process) (exportFile, error) {
	if c.Out == "" {
		return exportFile{p.stdout, func(bool) error { return nil }}, nil
	}
	if _, err := os.Lstat(c.Out); err == nil {
		return exportFile{}, &usageError{where: p.origin.of("out"), err: fmt.Errorf("%s exists already", c.Out)}
	}
	f, err := os.CreateTemp(filepath.Dir(c.Out), "."+filepath.Base(c.Out)+".*")
	if err != nil {
		return exportFile{}, err
	}
	return exportFile{f, func(complete bool) error {
		err := errors.Join(f.Sync(), f.Close())
		if err == nil && complete {
			return os.Rename(f.Name(), c.Out)
		}
		return errors.Join(err, os.Remove(f.Name()))
	}}, nil
}
