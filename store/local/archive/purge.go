package archive

import (
	"context"

	"mtagd/store/local/badgerdb"
)

// Purge removes the bytes of deleted blocks: afterwards, no file has anything of what was replaced or removed before the
// call. It fails while the archive is being copied (badgerdb.ErrCopied), and when the disk has too little space for a second
// archive. It waits for reads that began before it. It calls pace about every MB.
func (a *Archive) Purge(ctx context.Context, pace func()) error {
	a.purges.Add(1)
	defer a.purges.Add(-1)
	a.compacting.Lock()
	defer a.compacting.Unlock()
	a.writing.Lock()
	err := a.Failure()
	if err == nil && a.snapshots > 0 {
		err = badgerdb.ErrCopied
	}
	if err == nil {
		err = a.notePurged()
	}
	a.writing.Unlock()
	if err != nil {
		return err
	}
	return a.db.CompactAndWait(ctx, pace)
}

// notePurged notes that a backup must not be continued which has blocks that are deleted now. The caller holds writing.
func (a *Archive) notePurged() error {
	if err := a.commit(numberEntry(keyPurged, a.last)); err != nil {
		return a.fail(err)
	}
	return a.flush()
}

// RoomToPurge returns an error when the disk has too little space for Purge. Ask first: a purge that fails later has ended
// Reclaim, and kept backups waiting, for nothing.
func (a *Archive) RoomToPurge() error { return a.db.Room(a.db.TableBytes()) }

// Reclaim gives back the space of blocks that were replaced or removed, when it is a quarter of all, and merges the tables
// of recent runs, when there are many. It calls pace about every MB. It ends early when Purge waits, because that rewrites
// everything anyway.
func (a *Archive) Reclaim(ctx context.Context, pace func()) error {
	all, dead := a.Sizes()
	isDead := dead >= max(all/4, databaseSlack)
	if !isDead && !a.db.NeedsMerge() || !a.compacting.TryLock() {
		return nil // or Purge does it
	}
	defer a.compacting.Unlock()
	a.writing.Lock()
	isCopied := a.snapshots > 0
	a.writing.Unlock()
	if isCopied {
		return nil // all that came after the snapshot would be copied again each time
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	compact := a.db.Merge
	if isDead {
		compact = a.db.Compact
	}
	err := compact(ctx, func() {
		if a.purges.Load() > 0 {
			end()
		} else {
			pace()
		}
	})
	if a.purges.Load() > 0 && err == context.Canceled { // and nothing else has failed
		return nil
	}
	return err
}

// databaseSlack is about how much larger a small archive is than its blocks.
const databaseSlack = 8 << 20
