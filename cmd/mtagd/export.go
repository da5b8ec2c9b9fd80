package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
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

// Help is shown after the command's one line of help.
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
	bar := newProgressBar(p.stderr, "export")
	copied := uint64(0)
	take := func(events, total uint64, data []byte) error {
		copied = events
		bar.show("events", events, total)
		_, err := out.Write(data)
		return err
	}
	err = exportFromServer(p.ctx, p.data, r, take)
	if operator.IsNoServer(err) {
		err = exportClosed(p, r, take)
	}
	bar.end()
	if err = errors.Join(err, out.finish(err == nil)); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	fmt.Fprintf(p.stderr, "mtagd: exported %d events\n", copied)
	return nil
}

// take gets the next piece of an export: how many events of how many are exported, and the bytes of the file.
type take func(events, total uint64, data []byte) error

// exportClosed exports from a data directory that no server has open, or from a database.
func exportClosed(p *process, r exportRequest, to take) (err error) {
	engine, err := openForExport(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return exportEvents(p.ctx, engine, r, to, func(time.Duration) {})
}

func openForExport(p *process) (store.Engine, error) {
	if p.store != "" {
		return openDatabase(p.ctx, p.store, postgres.Options{Log: quietLog(p.stderr)})
	}
	if _, err := checkData(p.data, false); err != nil {
		return nil, fmt.Errorf("data directory %s %w", p.data, err)
	}
	return openEngine(p.ctx, p.data, "", 0, 0, quietLog(p.stderr), nil)
}

// exportEvents exports from an engine. It calls rest after each piece with the time that the piece took.
func exportEvents(ctx context.Context, engine store.Engine, r exportRequest, to take, rest func(time.Duration)) error {
	q := r.Query
	for _, id := range q.Merchants {
		if _, err := engine.Merchant(ctx, id); err != nil {
			return err
		}
		page, err := engine.Events(ctx, store.Query{Merchant: id, Tag: q.Tag, Names: q.Names, From: q.From, To: q.To, SortBy: store.ByTime, Limit: 1})
		if err != nil {
			return err
		}
		total := uint64(page.Total)
		var piece bytes.Buffer
		c, err := export.NewCopy(ctx, engine, q, export.NewWriter(r.Format, &piece))
		if err != nil {
			return err
		}
		for more := true; more; {
			begun := time.Now()
			if more, err = c.Next(ctx); err != nil {
				return err
			}
			rest(time.Since(begun))
			if err := to(c.Events, total, piece.Bytes()); err != nil {
				return err
			}
			piece.Reset()
		}
	}
	return nil
}

// exportPath is where the operator socket exports. The answer is a sequence of pieces: how many events of how many are
// exported (8 bytes each, big endian), the length of what follows (4 bytes), and so many bytes of the file. A length of
// endOfExport ends it; failedExport is followed by the text of an error, up to the end of the answer.
const (
	exportPath   = "/export"
	endOfExport  = 1<<32 - 1
	failedExport = 1<<32 - 2
)

// withExport adds exports to the handler of the operator socket.
func withExport(engine store.Engine, operators http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", operators)
	mux.HandleFunc("POST "+exportPath, func(w http.ResponseWriter, r *http.Request) {
		var request exportRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out := deadlineWriter{w, http.NewResponseController(w)}
		piece := func(events, total uint64, length uint32, data []byte) error {
			var head [20]byte
			binary.BigEndian.PutUint64(head[:], events)
			binary.BigEndian.PutUint64(head[8:], total)
			binary.BigEndian.PutUint32(head[16:], length)
			_, err := out.Write(append(head[:], data...))
			return err
		}
		err := exportEvents(r.Context(), engine, request, func(events, total uint64, data []byte) error {
			return piece(events, total, uint32(len(data)), data)
		}, time.Sleep) // half of a processor's time is for requests
		// Nobody reads what follows when the client has gone.
		if err != nil {
			_ = piece(0, 0, failedExport, []byte(err.Error()))
			return
		}
		_ = piece(0, 0, endOfExport, nil)
	})
	return mux
}

// exportFromServer exports from the running server. operator.IsNoServer reports whether there is none.
func exportFromServer(ctx context.Context, data string, r exportRequest, to take) error {
	body, err := operator.Request(ctx, data, http.MethodPost, exportPath, r)
	if err != nil {
		return err
	}
	defer body.Close()
	for {
		var head [20]byte
		if _, err := io.ReadFull(body, head[:]); err != nil {
			return fmt.Errorf("the server has stopped before the end: %w", err)
		}
		length := binary.BigEndian.Uint32(head[16:])
		switch length {
		case endOfExport:
			return nil
		case failedExport:
			text, err := io.ReadAll(io.LimitReader(body, 1<<10))
			return errors.Join(errors.New(string(text)), err)
		}
		piece, err := io.ReadAll(io.LimitReader(body, int64(length)))
		if err == nil && len(piece) < int(length) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("the server has stopped before the end: %w", err)
		}
		if err := to(binary.BigEndian.Uint64(head[:]), binary.BigEndian.Uint64(head[8:]), piece); err != nil {
			return err
		}
	}
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
