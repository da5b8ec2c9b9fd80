package archive

import (
	"context"

	"mtagd/store/local/badgerdb"
)

// Purge removes the bytes of deleted blocks: afterwards, no file has anything of what was replaced or removed before the
// call. It fails while the archive is being copied (badgerdb.ErrCopied), and when the disk has too little space for a second
// archive. It waits for reads that began before it. It calls pace about every MB.
func (a *Archive) Purge(ctx context.Context, pace func()) error {
	a.compacting.Lock()
	defer a.compacting.Unlock()
	if err := a.notePurge(); err != nil {
		return err
	}
	return a.db.CompactAndWait(ctx, pace)
}

// notePurge notes that a backup which has the deleted blocks must not be continued.
func (a *Archive) notePurge() error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.Failure(); err != nil {
		return err
	}
	if a.snapshots > 0 {
		return badgerdb.ErrCopied
	}
	if err := a.commit(numberEntry(keyPurged, a.last)); err != nil {
		return a.fail(err)
	}
	return a.flush()
}

// Reclaim gives back the space of blocks that were replaced or removed, when it is a quarter of all, and merges the tables
// of recent runs, when there are many. It calls pace about every MB.
func (a *Archive) Reclaim(ctx context.Context, pace func()) error {
	all, dead := a.Sizes()
	isDead := dead >= max(all/4, databaseSlack)
	if !isDead && !a.db.NeedsMerge() || !a.compacting.TryLock() {
		return nil // or Purge does it
	}
	defer a.compacting.Unlock()
	if a.isCopied() {
		return nil // all that came after the snapshot would be copied again each time
	}
	if isDead {
		return a.db.Compact(ctx, pace)
	}
	return a.db.Merge(ctx, pace)
}

func (a *Archive) isCopied() bool {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.snapshots > 0
}

// databaseSlack is about how much larger a small archive is than its blocks.
const databaseSlack = 8 << 20
