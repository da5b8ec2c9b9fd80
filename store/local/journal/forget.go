package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/log"
	"mtagd/store/local/space"
)

// Forget drops the chunks up to and including last, which are on disk elsewhere. Call it after Start, from one goroutine.
func (j *Journal) Forget(last uint64) error {
	err := j.committer.edit(func(t *transaction) error {
		t.set([]byte{prefixForgotten}, binary.BigEndian.AppendUint64(nil, last), 0)
		return nil
	})
	if err == nil {
		j.chunks.forget(last)
	}
	return err
}

// Forgotten returns the number of a chunk: chunks up to it may have been dropped by Forget.
func (j *Journal) Forgotten() (seq uint64, err error) { return j.keys.number(prefixForgotten) }

// flush writes the links and event_ids that are only in memory and in the log to the database. When it returns nil, what was
// committed before the call is on disk there, and the log is not needed for it.
func (j *Journal) flush() error {
	j.flushes.Lock()
	defer j.flushes.Unlock()
	return j.flushKeys(func() {})
}

// flushKeys is flush for who holds flushes. It calls atMoment while nobody can commit: what was committed before is written.
func (j *Journal) flushKeys(atMoment func()) error {
	release := j.holdCommits()
	end := mark{at: j.log.End()}
	var err error
	if end.sum, err = j.log.Before(end.at); err != nil {
		release()
		return err
	}
	flushes := j.keys.begin()
	if flushes { // a version of its own, greater than those of all records before it
		j.committer.version.Store(j.committer.clock.next())
	}
	version := j.Version()
	atMoment()
	release()
	if err := j.keys.flush(version, end); err != nil {
		return err
	}
	j.flushed.Store(uint64(end.at))
	if !flushes || j.HasLost() { // without a flush, the database does not say that end was reached
		return nil
	}
	if err := j.writeCheckpoint(end, version); err != nil && !space.IsFull(err) {
		j.opt.Log.Warn("the next start reads more of the log of events", "error", err)
	}
	return nil
}

// holdCommits keeps everybody from committing until release is called.
func (j *Journal) holdCommits() (release func()) {
	j.committer.writing.Lock()
	return j.committer.writing.Unlock
}

// needed returns the position of the first record that is still needed: to read a chunk, to find links and event_ids that
// are not in the database yet, or for Recent.
func (j *Journal) needed() log.Position {
	flushed := log.Position(j.flushed.Load())
	return min(flushed, j.chunks.first(flushed), j.keptForRecent(flushed))
}

// A flush begins when flushEntries entries are in memory, or when the records since the last flush have flushBytes.
const (
	flushEntries = 100_000
	maxEntries   = 10 * flushEntries // about 100 MB; while the database cannot be written, no more events are accepted
	flushBytes   = 32 << 20
)

// Until Close, tidy moves links and event_ids from the log to the database, compacts that, and removes files of the log.
func (j *Journal) tidy() {
	tick := time.NewTicker(tidyInterval)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-j.stopping.Done():
			return
		case <-tick.C:
		}
		err := j.tidyOnce()
		switch {
		case err == nil:
			logged = ""
		case err.Error() != logged && j.stopping.Err() == nil && !badgerdb.IsNearlyFull(err):
			logged = err.Error()
			j.opt.Log.Error("the log of events cannot be shortened now, and grows", "error", err)
		}
	}
}

func (j *Journal) tidyOnce() (err error) {
	if j.keys.inMemory() >= flushEntries || uint64(j.log.End())-j.flushed.Load() >= flushBytes {
		if err = j.flush(); err == nil && !j.isCopied() && j.keys.db.NeedsMerge() && j.compacting.CompareAndSwap(false, true) {
			j.running.Go(j.merge) // beside further flushes
		}
	}
	err = errors.Join(err, j.trim())
	if j.committer.failed.Load() != nil { // nobody may send an event while the service is not ready
		err = errors.Join(err, j.tryWrite())
	}
	return err
}

// Damage returns damage of the database that a read has met, or nil.
func (j *Journal) Damage() error { return j.keys.db.Damage() }

// Recheck reads the whole database after damage was met, and returns what is wrong with it.
func (j *Journal) Recheck(ctx context.Context) error { return j.keys.db.Recheck(ctx, j.opt.Pace()) }

// RebuildKeys replaces a damaged database of links and event_ids by one of what can be read of it, beside requests. It fails
// with badgerdb.ErrCopied during a backup. It calls before, with all that is lost, when the new one is complete.
func (j *Journal) RebuildKeys(ctx context.Context, damage error, before func(lost []badgerdb.Range) error) error {
	j.copying.Lock()
	defer j.copying.Unlock()
	j.flushes.Lock()
	defer j.flushes.Unlock()
	if j.copies > 0 || !j.compacting.CompareAndSwap(false, true) {
		return badgerdb.ErrCopied
	}
	defer j.compacting.Store(false)
	release := func() {}
	defer func() { release() }()
	var lost []badgerdb.Range
	err := j.keys.db.Rebuild(func(to string) (err error) {
		lost, err = copyKeys(ctx, keysDir(j.dir), to, j.opt.Log, damage, j.Lost())
		return err
	}, func() error {
		if err := before(lost); err != nil {
			return err
		}
		release = j.holdCommits()
		j.keys.lost.Store(&lost)
		j.keys.links, j.keys.known = linkCache{}, knownLinks{} // what was lost is linked again
		return nil
	})
	if err == nil {
		j.running.Go(j.filter) // not awaited: the caller links again what was lost, and that comes first
	}
	return err
}

// isCopied reports whether a snapshot is open: a merge would keep, and copy again each time, all that came after it.
func (j *Journal) isCopied() bool {
	if !j.copying.TryLock() {
		return true // or a purge runs, which merges all
	}
	defer j.copying.Unlock()
	return j.copies > 0
}

func (j *Journal) merge() {
	defer j.compacting.Store(false)
	if err := j.keys.db.Merge(j.stopping, j.opt.Pace()); err != nil && j.stopping.Err() == nil && !badgerdb.IsNearlyFull(err) {
		j.opt.Log.Error("links and event_ids cannot be compacted now, and take more space", "error", err)
	}
}

// filter makes look-ups of new event_ids cheap in the tables from before the start, or from a rebuild.
func (j *Journal) filter() {
	if err := j.keys.db.FilterTables(j.stopping, j.opt.Pace()); err != nil && j.stopping.Err() == nil {
		j.opt.Log.Error("a table of links and event_ids cannot be read", "error", err)
	}
}

// trim removes the unneeded files of the log, unless a snapshot may need them, or a purge runs: events must be flushed
// meanwhile.
func (j *Journal) trim() error {
	if !j.copying.TryLock() {
		return nil
	}
	defer j.copying.Unlock()
	if j.copies > 0 {
		return nil
	}
	return j.log.Trim(j.needed())
}

// tryWrite writes a record that changes nothing, unless another commit has succeeded meanwhile.
func (j *Journal) tryWrite() error {
	return j.committer.edit(func(t *transaction) error {
		if j.committer.failed.Load() == nil {
			return nil
		}
		seq, err := j.Forgotten()
		t.set([]byte{prefixForgotten}, binary.BigEndian.AppendUint64(nil, seq), 0)
		return err
	})
}

// tidyInterval is how often tidy looks.
const tidyInterval = 200 * time.Millisecond
