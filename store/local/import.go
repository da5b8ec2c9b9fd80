package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/control"
	"mtagd/store/local/durable"
	"mtagd/store/local/journal"
	"mtagd/store/migrate"
)

// Import fills a new data directory with what do adds to a target. When all is on disk, it calls done, which marks the source
// as moved to the place with the name to. Only then can the directory be opened: never can both. After an import that was cut
// off before done, another Import begins again; after one that was cut off later, FinishImport ends it.
func Import(dir, to string, log *slog.Logger, do func(migrate.Target) error, done func() error) error {
	err := fillUnfinished(dir, importCommand, func() error {
		d := &directory{dir: dir, log: log}
		err := d.open()
		if err == nil {
			err = do(d)
		}
		return errors.Join(err, d.close())
	})
	if err == nil {
		err = writeMarker(dir, importCommand+complete+to)
	}
	if err == nil {
		err = done()
	}
	if err == nil {
		err = finish(dir)
	}
	return err
}

const (
	importCommand = "mtagd migrate"
	// complete follows importCommand in the file unfinished when all is on disk, and the source may be marked as moved or
	// not. Then comes the name that the mark has.
	complete = "\ncomplete\n"
)

// FinishImport lets a directory be opened whose source is marked as moved to a place. finished: it can be opened, perhaps
// since an earlier call.
func FinishImport(dir, movedTo string) (finished bool, err error) {
	marker, err := os.ReadFile(filepath.Join(dir, unfinishedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return movedTo == NameOf(dir) && durable.Exists(filepath.Join(dir, "control.db")), nil
	case err != nil || string(marker) != importCommand+complete+movedTo:
		return false, err
	}
	return true, finish(dir)
}

// directory is one that Import fills, a migrate.Target: at first its parts are open, and from Index on the engine.
//
// All events go into the archive, as events of the journal have no gaps in their positions. The journal only has links
// and remembered event_ids.
type directory struct {
	source         // of engine
	engine *engine // nil before Index

	dir     string
	log     *slog.Logger
	control *control.Data
	archive *archive.Archive
	keys    *journal.Writer
	version uint64 // of the last keys
}

var _ migrate.Target = (*directory)(nil)

// open opens the parts of a new directory.
func (d *directory) open() (err error) {
	if d.control, err = control.Open(d.dir, time.Now, d.log); err != nil {
		return err
	}
	parts := Parts(d.dir)
	if d.keys, err = journal.Create(parts["journal"], d.log); err != nil {
		return err
	}
	d.archive, err = archive.Open(parts["archive"], d.log)
	return err
}

// Add implements migrate.Target.
func (d *directory) Add(_ context.Context, p migrate.Portion) error {
	run := &archive.Run{}
	var body []byte
	for i := range p.Events {
		e := &p.Events[i]
		body, _ = journal.AppendBody(body[:0], store.TagID(e.Tag), e.Name, e.Bot, e.MUID, &e.Details, e.Raw, e.Time)
		run.Append(e.Merchant, e.At, body)
	}
	if err := d.archive.Add(run, 0, func() {}); err != nil { // Index moves the boundary
		return err
	}
	d.version++
	for i := range p.Keys {
		if err := d.keys.PutKey(&p.Keys[i], d.version); err != nil {
			return err
		}
	}
	return d.control.AddEntries(p.Audit)
}

// SetControl implements migrate.Target.
func (d *directory) SetControl(_ context.Context, c *migrate.Control) error {
	for _, f := range c.Files {
		if err := writeCertificate(d.dir, f.Path, f.Content); err != nil {
			return err
		}
	}
	return d.control.Import(c.Records, c.Documents)
}

// Index implements migrate.Target. It opens what was added as a server does, which builds the index.
func (d *directory) Index(_ context.Context, upTo uint64) error {
	if err := d.archive.Add(&archive.Run{}, upTo, func() {}); err != nil {
		return err
	}
	if err := d.keys.PutForgotten(upTo, d.version+1); err != nil {
		return err
	}
	if err := d.close(); err != nil {
		return err
	}
	e, err := openFilled(d.dir, Options{Log: d.log})
	if err == nil {
		d.engine, d.source = e, e.source()
	}
	return err
}

// close closes what is open.
func (d *directory) close() error {
	err := errors.Join(closeOpened(d.engine), closeOpened(d.archive), closeOpened(d.keys), closeOpened(d.control))
	d.engine, d.archive, d.keys, d.control = nil, nil, nil, nil
	return err
}

// NameOf says for people which data directory it is.
func NameOf(dir string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	return fmt.Sprintf("the directory %s on %s", dir, host)
}
