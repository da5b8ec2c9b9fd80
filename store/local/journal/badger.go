package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
)

// format is the version of the directory's layout. Versions 3 and 4, in which links have no source, are brought to it; others are
// refused.
const format = "5"

// openBadger opens or creates the database in dir. On a full disk it gives back space of the spare file, in steps: another
// program may take a part of it.
func openBadger(dir string, log *badgerLog, files *allocator) (*badger.DB, error) {
	db, err := openFiles(badgerOptions(dir), log, files)
	if err != nil {
		return nil, err
	}
	if err := checkFormat(db); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), db.Close())
	}
	return db, nil
}

// openFiles opens or creates a database, whose format nobody has checked.
func openFiles(opt badger.Options, log *badgerLog, files *allocator) (*badger.DB, error) {
	dir := opt.Dir
	aside := &setAside{spare: files.spare, log: log.log}
	db, err := tryOpen(opt, log, aside)
	for err != nil && isFullMessage(err) && files.spare.give(spareStep) {
		db, err = tryOpen(opt, log, aside)
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
	if err := log.failure(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), db.Close())
	}
	return db, nil
}

// isFullMessage reports whether an error says that the disk is full. Badger does not wrap errors.
func isFullMessage(err error) bool {
	return strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error())
}

func tryOpen(opt badger.Options, log *badgerLog, aside *setAside) (*badger.DB, error) {
	if err := precheck(opt.Dir, aside, log.log); err != nil {
		return nil, err
	}
	memtables, err := repairLogs(opt.Dir)
	if err != nil {
		return nil, err
	}
	// Badger replays the logs of memtables and queues the memtables for being written to tables. While the disk is full, it
	// can write none, and a full queue would block it.
	return badger.OpenManaged(opt.WithLogger(log).WithNumMemtables(max(numMemtables, memtables)))
}

// numMemtables is how many memtables may wait to be written to tables.
const numMemtables = 3

// badgerOptions suit two cores and half a gigabyte of memory. The reasons:
//   - SyncWrites: each commit syncs. Calling db.Sync instead would leave out a memtable that was rotated just before.
//   - DetectConflicts is off: only the committer writes.
//   - ValueThreshold: nearly all chunks are larger, so they are in the value log, which is written once. Values in tables
//     are written again by each compaction. Chunks are deleted in the order of receipt, so whole value logs become dead
//     (Reclaim). Links and remembered event_ids are smaller than the threshold, and so are in the tables.
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

// checkFormat writes the format version into a new database or one of an earlier version, and refuses a database of another version.
func checkFormat(db *badger.DB) error {
	current, err := hasFormat(db)
	if err != nil || current {
		return err
	}
	txn := db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	if err := txn.Set([]byte{prefixFormat}, []byte(format)); err != nil {
		return err
	}
	return txn.CommitAt(db.MaxVersion()+1, nil)
}

// hasFormat reports whether a database has the format version, and not an earlier one. It refuses another version.
func hasFormat(db *badger.DB) (current bool, err error) {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	_, err = lookup(txn, []byte{prefixFormat}, func(b []byte) error {
		current = string(b) == format
		if !isFormat(b) {
			return codec.UnknownFormat{Found: string(b), Known: format}
		}
		return nil
	})
	return current, err
}

func isFormat(b []byte) bool { return slices.Contains([]string{"3", "4", format}, string(b)) }

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
