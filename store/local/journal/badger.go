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

	"mtagd/store/local/codec"
)

// format is the version of the directory's layout. A directory of another version is refused.
const format = "3"

// openBadger opens or creates the database in dir.
func openBadger(dir string, log *badgerLog) (*badger.DB, error) {
	if err := mendLogs(dir); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	db, err := badger.OpenManaged(badgerOptions(dir).WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	// No reader needs old versions. Without this a managed database would keep every value that was replaced, deleted or
	// expired.
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

// badgerOptions suit two cores and half a gigabyte of memory. The reasons:
//   - SyncWrites: db.Sync would leave out a memtable that was rotated just before.
//   - DetectConflicts is off: only the committer writes.
//   - ValueThreshold: nearly all chunks are larger, so they are in the value log. There they are written once; values in
//     the tables are written again by each compaction. Chunks are never deleted, so the value log is never collected.
//     Links and event_id marks are smaller than the threshold.
//   - VerifyValueChecksum: a damaged chunk gives an error.
//   - Small memtables: requests wait for flushes and compactions of level 0, so these should be short. In return level 0
//     may have more of the small tables before writes stall.
//   - No compression and no block cache: what is in the tables is compact or does not compress, so blocks are read
//     directly from the mapped file.
func badgerOptions(dir string) badger.Options {
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
		if string(b) != format {
			return codec.UnknownFormat(b, format)
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

// badgerLog passes Badger's messages on. It also notices errors after which Badger goes on but the engine must not.
type badgerLog struct {
	log    *slog.Logger
	failed atomic.Pointer[string] // what failed first
}

// ignoredErrors are the errors that Badger only logs: the beginning of the message, and its meaning.
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
