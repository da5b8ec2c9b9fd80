package badgerdb

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"mtagd/store/local/codec"
)

// Earlier versions let Badger write the tables, and listed them in MANIFEST too.

// openLogs opens a part of a version that had no list. First Badger turns the logs of its memtables into tables.
func (d *DB) openLogs(name string, tables int) (*part, error) {
	dir := filepath.Join(d.dir, name)
	if err := errors.Join(removeValueLogs(dir), removeEmptyLogs(dir)); err != nil {
		return nil, err
	}
	log := &badgerLog{log: d.log}
	db, err := badger.OpenManaged(badger.DefaultOptions(dir).WithLogger(log).WithMetricsEnabled(false).WithBypassLockGuard(true).
		WithNumCompactors(0).WithNumLevelZeroTables(1 << 20).WithNumLevelZeroTablesStall(1 << 21).WithMemTableSize(16 << 20).
		WithValueThreshold(600 << 10).WithValueLogFileSize(1 << 20).WithChecksumVerificationMode(options.OnBlockRead).
		WithBlockCacheSize(0).WithCompression(options.None))
	if err == nil {
		err = log.failure()
		if err == nil && tableCount(db) < tables {
			err = fmt.Errorf("%w: Badger has not opened all tables of %s", codec.ErrCorrupt, dir)
		}
		err = errors.Join(err, db.Close(), log.failure())
	}
	if err == nil {
		var logs []string
		logs, err = filepath.Glob(filepath.Join(dir, "*.mem"))
		for _, path := range logs {
			err = errors.Join(err, os.Remove(path))
		}
	}
	if err != nil {
		return nil, err
	}
	return d.openPart(name)
}

// removeEmptyLogs removes logs of memtables that Badger had emptied when it was killed. With such a log it would not open.
func removeEmptyLogs(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	for _, path := range logs {
		if info, failed := os.Stat(path); failed != nil {
			err = errors.Join(err, failed)
		} else if info.Size() == 0 {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

func removeValueLogs(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.vlog"))
	for _, path := range append(files, filepath.Join(dir, "DISCARD"), filepath.Join(dir, "KEYREGISTRY")) {
		if failed := os.Remove(path); !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// readManifest returns the tables that Badger's MANIFEST lists. When there is none, found is false.
func readManifest(dir string, log *slog.Logger) (ids []uint64, found bool, err error) {
	path := filepath.Join(dir, badger.ManifestFilename)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, true, &Damage{path, err}
	}
	defer f.Close()
	m, _, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions(dir).WithLogger(&badgerLog{log: log}))
	if err != nil {
		return nil, true, damaged(path, "%v", err)
	}
	return slices.Sorted(maps.Keys(m.Tables)), true, nil
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
