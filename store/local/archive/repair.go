package archive

import (
	"context"
	"errors"
	"log/slog"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Repair writes what can be read of the archive in dir, which it does not change, into a new one in the directory to, which
// must be empty or missing. It reads Badger's files one by one, without the lists, and looks for sound blocks behind damage.
// The new boundary is the greatest one that it finds, or the given one if that is greater. Damage is passed to wrong, with the
// file's path.
//
// Events of a deleted block whose replacement is lost are in the new archive. The index is rebuilt, so they are listed.
func Repair(ctx context.Context, dir, to string, boundary uint64, log *slog.Logger, wrong func(path string, err error)) error {
	w, err := Create(to, log)
	if err != nil {
		return err
	}
	if _, err := badgerdb.EachEntry(ctx, dir, isKey, func(e codec.Entry) error {
		switch {
		case e.Deleted:
		case e.Key[0] == prefixBoundary:
			n, err := parseNumber(e.Key, e.Value)
			if err != nil {
				wrong(dir, err)
			}
			boundary = max(boundary, n)
		case e.Key[0] == prefixBlock:
			if _, err := CheckBlock(e); err != nil {
				wrong(dir, err)
				return nil
			}
			return w.Put(e)
		}
		return nil
	}, wrong); err != nil {
		return errors.Join(err, w.Cancel())
	}
	return w.Close(boundary)
}

// Rebuild is Archive.Rebuild for an archive that cannot be opened. The new one has at least this boundary.
func Rebuild(ctx context.Context, dir string, boundary uint64, log *slog.Logger, wrong func(path string, err error), before func() error) error {
	return badgerdb.Rebuild(dir, log, func(to string) error { return Repair(ctx, dir, to, boundary, log, wrong) }, before)
}

// Damage returns damage of a table that a read has met, or nil.
func (a *Archive) Damage() error { return a.db.Damage() }

// Recheck reads all tables after damage was met, and returns what is wrong with them.
func (a *Archive) Recheck(ctx context.Context, pace func()) error { return a.db.Recheck(ctx, pace) }

// Rebuild replaces damaged tables by new ones with what can be read of them (Repair), while others read. It needs space for
// a second archive. When that is complete, it calls before, and then replaces the first. It fails while the archive is being
// copied (badgerdb.ErrCopied).
func (a *Archive) Rebuild(ctx context.Context, wrong func(path string, err error), before func() error) error {
	a.compacting.Lock()
	defer a.compacting.Unlock()
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.snapshots > 0 {
		return badgerdb.ErrCopied
	}
	if err := errors.Join(a.Failure(), a.flush()); err != nil {
		return err
	}
	if err := a.db.Rebuild(func(to string) error { return Repair(ctx, a.dir, to, a.Boundary(), a.log, wrong) }, before); err != nil {
		return err
	}
	a.last = max(a.last, a.db.MaxVersion())
	a.gaps.Store(a.Boundary())                     // as Repair has noted
	return errors.Join(a.notePurged(), a.sumAll()) // what was removed may be back, and what a backup has may be lost
}
