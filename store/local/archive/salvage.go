package archive

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// Salvage writes what can be read of the archive in dir into a new one in the directory to, which must be empty or missing. It
// reads the pack files as a log, and looks for sound blocks behind damage. Of blocks.db it needs only the boundary: when that
// cannot be read, it is the one given. Damage is passed to wrong, with the file's path. It changes nothing in dir.
//
// Events of an old block that a lost block has replaced are in the new archive. The index is rebuilt, so they are listed.
func Salvage(ctx context.Context, dir, to string, boundary uint64, log *slog.Logger, wrong func(path string, err error)) (found uint64, err error) {
	if old, err := OpenReadOnly(dir, log); err == nil {
		boundary = max(boundary, old.Boundary())
		if err := old.Close(); err != nil {
			return 0, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		wrong(filepath.Join(dir, directoryName), err)
	}
	w, err := Create(to, log)
	if err != nil {
		return 0, err
	}
	files := newPackFiles(dir)
	ids, err := files.list()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, errors.Join(err, w.Cancel())
	}
	for _, id := range ids {
		if err := salvageFile(ctx, files.path(id), boundary, w, wrong); err != nil {
			return 0, errors.Join(err, w.Cancel())
		}
	}
	return boundary, w.Close(boundary)
}

func salvageFile(ctx context.Context, path string, boundary uint64, w *Writer, wrong func(path string, err error)) error {
	f, err := os.Open(path)
	if err != nil {
		wrong(path, err)
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return eachStored(io.NewSectionReader(f, 0, info.Size()), 0, func(_ int64, stored []byte) error {
		b, _, err := readHeader(stored)
		if err == nil && b.last.Seq > boundary && b.events > 0 {
			return nil // of a run that a kill has cut off: its events are in the journal
		}
		if err == nil {
			_, err = CheckStored(stored)
		}
		if err != nil {
			wrong(path, err)
			return ctx.Err()
		}
		return errors.Join(ctx.Err(), w.Put(stored))
	}, func(offset, length int64) { wrong(path, damagedBytes(path, offset, length)) })
}
