package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"
)

// ErrCopied is the error of Purge while a backup reads the journal. A later call may succeed.
var ErrCopied = errors.New("the events are being backed up")

// Purge removes the bytes of deleted and replaced entries from the files: links, remembered event_ids, and chunks. Afterwards, no
// file of the journal has a byte of what was deleted or replaced before the call. forget must delete all chunks up to the one that
// it gets.
//
//  1. Purge fills the newest value log with zeros, so that Badger begins another one. Then it calls forget: the older logs have only
//     deleted chunks now.
//  2. It lets Badger write its memtables to tables, and compact the tables. That drops what was deleted or replaced. For a moment
//     meanwhile, no event is recorded.
//  3. It lets Badger remove the older value logs.
func (j *Journal) Purge(ctx context.Context, forget func(seq uint64) error) error {
	if err := j.beginPurge(); err != nil {
		return err
	}
	last, err := j.fill(ctx)
	if err != nil {
		return err
	}
	if err := forget(j.Barrier()); err != nil {
		return err
	}
	if err := catchFault(func() error { return j.purgeTables(ctx) }); err != nil {
		return err
	}
	return catchFault(func() error { return j.purgeLogs(ctx, last) })
}

// fillerSize is the size of a filler. Values of this size are in value logs.
const fillerSize = 128 << 10

// fill makes Badger begin a new value log, unless the newest one is empty. It returns the number of the log before the newest.
func (j *Journal) fill(ctx context.Context) (last uint32, err error) {
	if last, err = j.newestLog(); err != nil {
		return 0, err
	}
	if empty, err := isEmptyLog(filepath.Join(j.dir, fmt.Sprintf("%06d.vlog", last))); err != nil || empty && last > 0 {
		return last - 1, err
	}
	filler := []byte{prefixFiller}
	for newest := last; newest == last; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := j.committer.edit(func(t *transaction) error { // not with t.set: no backup needs it
			return t.txn.SetEntry(badger.NewEntry(filler, make([]byte, fillerSize)))
		}); err != nil {
			return 0, err
		}
		if newest, err = j.newestLog(); err != nil {
			return 0, err
		}
	}
	return last, j.committer.edit(func(t *transaction) error { return t.txn.Delete(filler) })
}

// purgeTables rewrites all tables. It drops a prefix, because Badger writes a memtable to a table only when it is full or when a
// prefix is dropped.
func (j *Journal) purgeTables(ctx context.Context) error {
	if err := j.beginPurge(); err != nil {
		return err
	}
	if err := j.db.Flatten(1); err != nil {
		return err
	}
	dropped := []byte{prefixFiller, '!'}
	if err := j.committer.edit(func(t *transaction) error { return t.txn.SetEntry(badger.NewEntry(dropped, []byte{0})) }); err != nil {
		return err
	}
	if err := j.flush(dropped); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return j.db.Flatten(1)
}

// beginPurge fails while a snapshot is open, which may need what is purged. Later snapshots do not.
func (j *Journal) beginPurge() error {
	j.collecting.Lock()
	defer j.collecting.Unlock()
	if j.snapshots > 0 {
		return ErrCopied
	}
	return nil
}

// flush drops a prefix. Nothing is committed meanwhile: Badger would refuse it.
func (j *Journal) flush(prefix []byte) error {
	c := j.committer
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.mayWrite(); err != nil {
		return err
	}
	return j.db.DropPrefix(prefix)
}

// purgeLogs removes the value logs up to number last.
func (j *Journal) purgeLogs(ctx context.Context, last uint32) error {
	for {
		left, err := j.logsUpTo(last)
		if err != nil || len(left) == 0 {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		switch err := j.collect(); {
		case errors.Is(err, badger.ErrNoRewrite):
			return j.emptyLogs(left)
		case errors.Is(err, badger.ErrRejected), err != nil && strings.Contains(err.Error(), "already marked for deletion"):
			// Another one runs, or an iterator is open.
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		case err != nil:
			return err
		}
	}
}

// emptyLogs punches holes in value logs that Badger does not know to be dead, which removes their bytes from the disk. Badger removes
// the files later.
func (j *Journal) emptyLogs(paths []string) error {
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, logHeader, info.Size()-logHeader)
		}
		if err == nil {
			err = f.Sync()
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("empty %s: %w", path, err)
		}
	}
	return nil
}

// anyDead is a discard ratio: Badger removes a value log if anything in it is dead. Chunks that are needed are in newer logs.
const anyDead = 1e-9

// collect removes one value log.
func (j *Journal) collect() error {
	j.collecting.Lock()
	defer j.collecting.Unlock()
	if j.snapshots > 0 {
		return ErrCopied
	}
	return j.db.RunValueLogGC(anyDead)
}

// newestLog returns the number of the newest value log.
func (j *Journal) newestLog() (newest uint32, err error) {
	err = j.eachLog(func(id uint32, _ string) error {
		newest = max(newest, id)
		return nil
	})
	return newest, err
}

// logsUpTo returns the paths of the value logs up to one that have entries.
func (j *Journal) logsUpTo(last uint32) (paths []string, err error) {
	err = j.eachLog(func(id uint32, path string) error {
		if id > last {
			return nil
		}
		empty, err := isEmptyLog(path)
		if err == nil && !empty {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

func (j *Journal) eachLog(use func(id uint32, path string) error) error {
	paths, err := filepath.Glob(filepath.Join(j.dir, "*.vlog"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		id, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(path), ".vlog"), 10, 32)
		if err == nil {
			err = use(uint32(id), path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isEmptyLog reports whether a value log has no entries, or does not exist any more. No entry begins with zeros.
func isEmptyLog(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var first [16]byte
	_, err = f.ReadAt(first[:], logHeader)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return first == [16]byte{}, errors.Join(err, f.Close())
}
