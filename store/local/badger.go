package local

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// openBadger opens or creates the events' database in dir.
func openBadger(dir string, log *badgerLog) (*badger.DB, error) {
	if err := mendLogs(dir); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	db, err := badger.OpenManaged(eventsOptions(dir).WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	// Nobody reads the past. Until it is told so, a managed database keeps all that was ever replaced,
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

// eventsOptions suit two cores and half a gigabyte. The reasons:
//   - SyncWrites: db.Sync would leave out what a rotation of the memtable has just sealed.
//   - Conflicts cannot happen: the committer alone writes.
//   - Chunks, all but the smallest, are above the value threshold, and so in the value log: there they are written once,
//     while what is in the tables is written again by each compaction that passes it. Chunks are never
//     deleted, so the value log is never collected. Links and marks stay below the threshold.
//   - The checksum makes an error of a chunk that the disk has damaged.
//   - Memtables are small: a flush, and a compaction of level 0, is work that answers wait for, so it comes
//     in short bursts. Level 0 may hold more of the small tables before writes are stalled.
//   - What is in the tables is compact or does not compress, so that blocks need neither compression nor a cache: they
//     are read where they lie in the mapped file.
func eventsOptions(dir string) badger.Options {
	return badger.DefaultOptions(dir).
		WithSyncWrites(true).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithValueThreshold(300).
		WithValueLogFileSize(64 << 20).
		WithVerifyValueChecksum(true).
		WithMemTableSize(4 << 20).
		WithNumMemtables(3).
		WithNumCompactors(2).
		WithNumLevelZeroTablesStall(32).
		WithBlockCacheSize(0).
		WithCompression(options.None).
		WithNumVersionsToKeep(1)
}

// checkFormat writes the format version into a new database and refuses one of another version.
func checkFormat(db *badger.DB) error {
	txn := db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	key := []byte{prefixFormat}
	found, err := lookup(txn, key, func(b []byte) error {
		if string(b) != eventsFormat {
			return otherFormat(b, eventsFormat)
		}
		return nil
	})
	if err != nil || found {
		return err
	}
	if err := txn.Set(key, []byte(eventsFormat)); err != nil {
		return err
	}
	return txn.CommitAt(1, nil)
}

// badgerLog passes Badger's messages on, and notices the errors that Badger goes on after but we must not.
type badgerLog struct {
	log    *slog.Logger
	failed atomic.Pointer[string] // what failed first
}

// ignoredErrors are what Badger's messages begin with and what they mean.
var ignoredErrors = map[string]string{
	// Events that were acknowledged would be gone without a word.
	"Ignoring table": "a table is corrupt",
	// Chunks would be acknowledged that are not on disk.
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

// failure is the first of the ignored errors, or nil.
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
