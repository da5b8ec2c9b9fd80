package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
)

// format is the version of the directory's layout. A directory of another version is refused.
const format = "3"

// openBadger opens or creates the database in dir. On a full disk it gives back space of the spare file, in steps: another
// program may take a part of it.
func openBadger(dir string, log *badgerLog, files *allocator) (*badger.DB, error) {
	db, err := tryOpen(dir, log)
	for err != nil && isFullMessage(err) && files.spare.give(spareStep) {
		db, err = tryOpen(dir, log)
	}
	if err != nil && isFullMessage(err) {
		return nil, fmt.Errorf("open %s: the disk is full; free some space outside of the data directory, or remove files there if there are too many: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	// No reader needs old versions. Without this call a managed database would keep every value that was replaced,
	// deleted or expired.
	db.SetDiscardTs(math.MaxUint64)
	err = log.failure()
	if err == nil {
		err = checkFormat(db)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), db.Close())
	}
	return db, nil
}

// isFullMessage reports whether an error says that the disk is full. Badger does not wrap errors.
func isFullMessage(err error) bool {
	return strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
}

func tryOpen(dir string, log *badgerLog) (*badger.DB, error) {
	if err := precheck(dir, log.log); err != nil {
		return nil, err
	}
	memtables, err := repairLogs(dir)
	if err != nil {
		return nil, err
	}
	// Badger replays the logs of memtables and queues the memtables for being written to tables. While the disk is full, it
	// can write none, and a full queue would block it.
	return badger.OpenManaged(badgerOptions(dir).WithLogger(log).WithNumMemtables(max(numMemtables, memtables)))
}

// numMemtables is how many memtables may wait to be written to tables.
const numMemtables = 3

// badgerOptions suit two cores and half a gigabyte of memory. The reasons:
//   - SyncWrites: each commit syncs. Calling db.Sync instead would leave out a memtable that was rotated just before.
//   - DetectConflicts is off: only the committer writes.
//   - ValueThreshold: nearly all chunks are larger, so they are in the value log, which is written once. Values in tables
//     are written again by each compaction. Chunks are never deleted, so the value log needs no garbage collection. Links
//     and remembered event_ids are smaller than the threshold, and so are in the tables.
//   - VerifyValueChecksum: reading a damaged chunk gives an error.
//   - OnBlockRead: blocks of tables are checked whenever they are read, as they come from the mapped file. Opening checks
//     all of them before (precheck.go).
//   - MemTableSize: memtables are small, because requests wait for flushes and for compactions of level 0. In return
//     NumLevelZeroTablesStall allows level 0 more of the small tables before writes stall.
//   - No compression and no block cache: what is in the tables does not compress, so Badger can read blocks directly from
//     the mapped file.
func badgerOptions(dir string) badger.Options {
	return badger.DefaultOptions(dir).
		WithSyncWrites(true).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithValueThreshold(300).
		WithValueLogFileSize(valueLogSize).
		WithVerifyValueChecksum(true).
		WithChecksumVerificationMode(options.OnBlockRead).
		WithMemTableSize(memTableSize).
		WithNumCompactors(2).
		WithNumLevelZeroTablesStall(32).
		WithBlockCacheSize(0).
		WithCompression(options.None).
		WithNumVersionsToKeep(1)
}

// checkFormat writes the format version into a new database, and refuses a database of another version.
func checkFormat(db *badger.DB) error {
	txn := db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	key := []byte{prefixFormat}
	found, err := lookup(txn, key, func(b []byte) error {
		if string(b) != format {
			return codec.UnknownFormat{Found: string(b), Known: format}
		}
		return nil
	})
	if err != nil || found {
		return err
	}
	if err := txn.Set(key, []byte(format)); err != nil {
		return err
	}
	return txn.CommitAt(1, nil)
}

// badgerLog passes Badger's messages to log. It also notices errors that Badger only logs, but that the engine must not
// ignore.
type badgerLog struct {
	log    *slog.Logger
	failed atomic.Pointer[string] // the meaning of the first such error
}

// ignoredErrors are the errors that Badger only logs: how the message begins, and what it means.
var ignoredErrors = map[string]string{
	// Acknowledged events would be missing without an error.
	"Ignoring table": "a table is corrupt",
	// Events would be acknowledged that are not on disk.
	"Error while curlf sync": "the value log cannot be synced",
}

func (l *badgerLog) Errorf(format string, args ...any) {
	for prefix, meaning := range ignoredErrors {
		if strings.HasPrefix(format, prefix) {
			l.failed.CompareAndSwap(nil, &meaning)
		}
	}
	l.log.Error("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// failure returns an error when Badger has ignored one, else nil.
func (l *badgerLog) failure() error {
	if meaning := l.failed.Load(); meaning != nil {
		return errors.New(*meaning)
	}
	return nil
}

func (l *badgerLog) Warningf(format string, args ...any) {
	l.log.Warn("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l *badgerLog) Infof(format string, args ...any) {
	l.log.Debug("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l *badgerLog) Debugf(string, ...any) {}
