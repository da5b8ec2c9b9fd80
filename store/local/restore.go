package local

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"mtagd/store/local/archive"
	"mtagd/store/local/backup"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/space"
)

// Restore fills a new data directory with what read passes to a target. It opens the result as a server does, which builds
// the index, and compares the number of events with what read has returned. Only then the data directory can be opened. A
// restore that was cut off leaves a directory that cannot be opened; another Restore begins again.
func Restore(ctx context.Context, dir string, opt Options, read func(backup.Target) (backup.Count, error)) (events int, err error) {
	opt = opt.withDefaults()
	err = fill(dir, "mtagd restore", func() error {
		t := &target{dir: dir}
		want, err := t.fill(opt, read)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		if events, err = checkRestored(ctx, dir, opt); err != nil {
			return err
		}
		// want.Events also counts those of blocks that others have replaced since.
		isOther := events > want.Events
		if want.Live != nil && want.Damaged == nil {
			want.Events, isOther = *want.Live, events != *want.Live
		}
		if isOther {
			return &backup.DamagedError{Err: fmt.Errorf("the restored directory has %d events, but the backup %d", events, want.Events)}
		}
		return nil
	})
	return events, err
}

// target writes what is restored. It implements backup.Target.
type target struct {
	dir      string
	control  *os.File
	events   *journal.Writer
	archive  *archive.Writer
	boundary uint64 // of the archive
}

func (t *target) fill(opt Options, read func(backup.Target) (backup.Count, error)) (want backup.Count, err error) {
	if t.control, err = os.OpenFile(filepath.Join(t.dir, "control.db"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return want, err
	}
	if err := t.create(opt.Log); err != nil {
		return want, errors.Join(err, t.control.Close())
	}
	want, err = read(t)
	if err == nil {
		err = t.control.Sync()
	}
	return want, errors.Join(err, t.control.Close(), t.close())
}

// create creates the journal and the archive.
func (t *target) create(log *slog.Logger) (err error) {
	if t.events, err = journal.Create(filepath.Join(t.dir, "events"), log); err != nil {
		return err
	}
	if t.archive, err = archive.Create(filepath.Join(t.dir, "archive"), log); err != nil {
		return errors.Join(err, t.events.Close())
	}
	return nil
}

func (t *target) close() error { return errors.Join(t.events.Close(), t.archive.Close(t.boundary)) }

// Control implements backup.Target.
func (t *target) Control(part []byte) error {
	_, err := t.control.Write(part)
	return err
}

// Entry implements backup.Target.
func (t *target) Entry(e codec.Entry) error {
	switch {
	case len(e.Key) > 0 && e.Key[0] == prefixBlock:
		e.Key = e.Key[1:]
		return t.archive.Put(e)
	case len(e.Key) == 1 && e.Key[0] == prefixBoundary:
		t.boundary = binary.BigEndian.Uint64(e.Value)
		return nil
	}
	return t.events.Put(e)
}

// Certificate implements backup.Target.
func (t *target) Certificate(path string, content []byte) error {
	return writeCertificate(t.dir, path, content)
}

// checkRestored opens what was restored as a server does, and counts the events.
func checkRestored(ctx context.Context, dir string, opt Options) (events int, err error) {
	data, err := control.Open(dir, opt.Now, opt.Log)
	if err != nil && !space.IsFull(err) {
		err = &backup.DamagedError{Err: err} // it was so when the backup was made
	}
	if err != nil {
		return 0, err
	}
	if err := beAnother(ctx, data); err != nil {
		return 0, err
	}
	e, err := openFilled(dir, opt)
	if err != nil {
		return 0, err
	}
	release := e.archiver.PauseMoves()
	events = e.archive.Events()
	var damaged error
	err = e.journal.Since(e.archive.Boundary(), math.MaxUint64, func(of []journal.Event, _ uint64) error {
		events += len(of)
		return ctx.Err()
	}, func(d journal.DamagedChunk) { damaged = fmt.Errorf("chunk %d %s", d.Seq, d.Reason()) })
	release()
	return events, errors.Join(err, damaged, e.Close())
}
