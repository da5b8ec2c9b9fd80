package badgerdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// writer is Badger in the directory of the last part, which had no tables when it was opened. Nothing is read from it.
type writer struct {
	db  *badger.DB
	dir string
	log *badgerLog
}

// badgerOptions: the reasons:
//   - SyncWrites is off: only tables count, which Badger syncs.
//   - No compactors, and level 0 never stalls: Compact and Merge do it. NumMemtables bounds what waits to be written to tables.
//   - Values are in tables: with its threshold, there is a value log, but nothing in it.
//   - No compression and no caches: what is in the tables does not compress.
//   - BypassLockGuard: DB.lock is for all parts.
//   - BloomFalsePositive: a look-up of a new key asks the filters of dozens of tables. 15 bits for each key.
//   - BaseTableSize, TableSizeMultiplier: StreamWriter makes tables of this size.
func badgerOptions(dir string, log *badgerLog) badger.Options {
	opt := badger.DefaultOptions(dir).
		WithLogger(log).
		WithSyncWrites(false).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithBypassLockGuard(true).
		WithNumCompactors(0).
		WithNumLevelZeroTables(1 << 20).
		WithNumLevelZeroTablesStall(1 << 21).
		WithMemTableSize(memTable).
		WithNumMemtables(1).
		WithValueThreshold(600 << 10).
		WithValueLogFileSize(1 << 20).
		WithBloomFalsePositive(0.001).
		WithBaseTableSize(tableBytes).
		WithChecksumVerificationMode(options.OnBlockRead).
		WithBlockCacheSize(0).
		WithCompression(options.None).
		WithNumVersionsToKeep(1)
	opt.TableSizeMultiplier = 1
	return opt
}

func openWriter(opt badger.Options, log *badgerLog) (*writer, error) {
	db, err := badger.OpenManaged(opt)
	if err != nil {
		return nil, err
	}
	db.SetDiscardTs(math.MaxUint64)
	if err := log.failure(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &writer{db: db, dir: opt.Dir, log: log}, nil
}

// close closes Badger, which makes a table of its memtable.
func (w *writer) close() error { return errors.Join(w.db.Close(), w.log.failure()) }

// commit commits a transaction. When Badger cannot write tables, it would wait for ever.
func (w *writer) commit(txn *badger.Txn, version uint64) error {
	done := make(chan error, 1)
	if err := txn.CommitAt(version, func(err error) { done <- err }); err != nil {
		return err
	}
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(100 * time.Millisecond):
			if err := w.log.failure(); err != nil {
				return err
			}
		}
	}
}

const fillerBytes = 32 << 10

// fill fills the memtable up with entries that have a number, so that Badger begins to write it to a table. That is complete, as are those
// before it, when there is a table with the number.
func (w *writer) fill(number, version uint64) (err error) {
	content := binary.BigEndian.AppendUint64(make([]byte, 0, fillerBytes), number)[:fillerBytes]
	newest, first := "", true
	for n := ""; err == nil && n == newest; {
		for range 4 {
			txn := w.db.NewTransactionAt(math.MaxUint64, true)
			if err = txn.Set([]byte(filler), content); err == nil {
				err = w.commit(txn, version)
			}
			if txn.Discard(); err == nil && first { // before it, Badger may have begun another memtable
				newest, err = newestLog(w.dir)
				first = false
			}
			if err != nil {
				return err
			}
		}
		n, err = newestLog(w.dir)
	}
	return err
}

// tableCount returns how many tables Badger has. Unlike badger.DB.Tables, it reads no index, which may be damaged.
func tableCount(db *badger.DB) (n int) {
	for _, level := range db.Levels() {
		n += level.NumTables
	}
	return n
}

// badgerLog passes Badger's messages to log. It also notices errors that Badger only logs.
type badgerLog struct {
	log    *slog.Logger
	failed atomic.Pointer[string]
}

// ignoredErrors are the errors that Badger only logs: how the message begins, and what it means.
var ignoredErrors = map[string]string{
	"Ignoring table":          "a table is corrupt",
	"error flushing memtable": "a table cannot be written",
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
