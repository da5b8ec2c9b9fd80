package archive

import (
	"context"
	"errors"
	"log/slog"

	"mtagd/store/local/badgerdb"
)

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
	a.gaps.Store(a.Boundary()) // as Repair has noted
	// What was removed may be back, and what a backup has may be lost: no backup is continued.
	if err := a.commit(numberEntry(keyPurged, a.last)); err != nil {
		return a.fail(err)
	}
	return errors.Join(a.flush(), a.sumAll())
}
