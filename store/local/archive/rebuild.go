package archive

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"mtagd/store/local/badgerdb"
)

// Rebuild is Archive.Rebuild for an archive that cannot be opened. The new one has at least this boundary.
func Rebuild(ctx context.Context, dir, part string, boundary uint64, log *slog.Logger, wrong func(path string, err error), before func() error) error {
	return replace(ctx, dir, part, boundary, log, wrong, before, func(part string) error { return badgerdb.Replace(dir, part, log) })
}

func replace(ctx context.Context, dir, part string, boundary uint64, log *slog.Logger, wrong func(path string, err error), before func() error,
	adopt func(part string) error) error {
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := Repair(ctx, dir, part, boundary, log, wrong); err != nil {
		return err
	}
	if err := before(); err != nil {
		return err
	}
	if err := adopt(part); err != nil {
		return err
	}
	return os.RemoveAll(part)
}

// Damage returns damage of a table that a read has met, or nil.
func (a *Archive) Damage() error { return a.db.Damage() }

// Recheck reads all tables after damage was met, and returns what is wrong with them.
func (a *Archive) Recheck(ctx context.Context, pace func()) error { return a.db.Recheck(ctx, pace) }

// Rebuild replaces damaged tables by new ones with what can be read of them (Repair), beside reads. It needs space for a second archive,
// which it writes to the directory part. It calls before when that is complete, and fails while the archive is being copied (IsBusy).
func (a *Archive) Rebuild(ctx context.Context, part string, wrong func(path string, err error), before func() error) error {
	a.compacting.Lock()
	defer a.compacting.Unlock()
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.snapshots > 0 {
		return errBusy
	}
	if err := errors.Join(a.Failure(), a.flush()); err != nil {
		return err
	}
	if err := replace(ctx, a.dir, part, a.Boundary(), a.log, wrong, before, a.db.Adopt); err != nil {
		return err
	}
	a.last = max(a.last, a.db.MaxVersion())
	a.gaps.Store(a.Boundary()) // as Repair has noted
	// What was removed may be back, and what a backup has may be lost: no backup is continued.
	if err := a.commit(numberEntry(keyPurged, a.last)); err != nil {
		return a.fail(err)
	}
	return errors.Join(a.flush(), a.countAll())
}
