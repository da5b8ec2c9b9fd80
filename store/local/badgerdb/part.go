package badgerdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
)

// part is an open directory of Badger.
type part struct {
	db       *badger.DB
	dir      string // of the tables
	opened   string // where Badger works: dir, or a directory of links
	number   int
	log      *badgerLog
	list     list                   // guarded by DB.writing
	tables   atomic.Pointer[tables] // all that Badger has, but for the newest
	met      *met
	clean    bool // the last stop was clean
	readOnly bool

	readers int           // those who use it, and one while it is in DB.parts; guarded by DB.mu
	old     bool          // it is in DB.parts no longer
	closed  chan struct{} // after it is closed and removed, or removal has failed
}

// openPart checks the files of a part, and opens it. older are the numbers of the sealed parts before the last one. To a reader that must
// not write, Badger gets a directory of links.
func (d *DB) openPart(dir string, number int, older []int, readOnly bool) (h *part, err error) {
	h = &part{dir: dir, number: number, log: &badgerLog{log: d.log}, met: &d.met, readOnly: readOnly, closed: make(chan struct{})}
	tables, l, isNew, err := checkFiles(h.dir, h.log, readOnly)
	if err != nil {
		return nil, err
	}
	isSealed := dir == sealedDir(d.dir, number)
	if isSealed && len(tables) == 0 {
		return nil, damaged(dir, "it has no tables")
	}
	if !isSealed {
		l.older = older
	}
	h.clean, l.closed = l.closed, false
	h.list, h.opened = l, h.dir
	old, err := filepath.Glob(filepath.Join(h.dir, "*.mem"))
	hasLogs := isNew && len(old) > 0 // a version that had no list was killed, or the first start
	switch {
	case err == nil && readOnly && isNew && (len(tables) == 0 || hasLogs):
		err = errNeedsStart
	case err == nil && readOnly:
		h.opened, err = linkTables(h.dir)
	case err == nil:
		err = removeOthers(h.dir, hasLogs)
	}
	if err == nil {
		opt := badgerOptions(h.opened, h.log).WithReadOnly(readOnly)
		if isSealed {
			opt = opt.WithMemTableSize(sealedMemTable).WithValueThreshold(1 << 10)
		}
		if hasLogs {
			opt = opt.WithMemTableSize(oldMemTable)
		}
		err = h.openBadger(opt, tables)
	}
	if err == nil && hasLogs {
		if err := h.close(); err != nil { // which makes tables of what the logs have
			return nil, err
		}
		return d.openPart(dir, number, older, false)
	}
	if err == nil && !readOnly {
		if err = l.write(h.dir); err != nil {
			err = errors.Join(err, h.db.Close())
		}
	}
	if err != nil {
		closeTables(tables)
		if h.opened != h.dir {
			err = errors.Join(err, os.RemoveAll(h.opened))
		}
		return nil, err
	}
	return h, nil
}

var errNeedsStart = errors.New("the last start was cut off: a start with enough space on the disk must complete it")

// openBadger opens Badger, which must find these tables.
func (h *part) openBadger(opt badger.Options, tables map[uint64]*tableFile) (err error) {
	if h.db, err = badger.OpenManaged(opt); err != nil {
		return err
	}
	h.db.SetDiscardTs(math.MaxUint64)
	h.tables.Store(openTables(slices.Collect(maps.Values(tables))))
	if n := tableCount(h.db); n < len(tables) { // it may have made some of its logs already
		err = fmt.Errorf("%w: Badger has opened %d of %d tables of %s", codec.ErrCorrupt, n, len(tables), h.dir)
	}
	err = errors.Join(err, h.log.failure())
	if err != nil {
		err = errors.Join(err, h.db.Close())
	}
	return err
}

// close closes a part. Badger makes a table of its memtable.
func (h *part) close() error {
	err := h.db.Close()
	for _, t := range h.tables.Load().all {
		t.close()
	}
	if h.opened != h.dir {
		err = errors.Join(err, os.RemoveAll(h.opened))
	}
	return errors.Join(err, h.log.failure())
}

// closeClean closes a sealed part, and notes whether it was sound.
func (h *part) closeClean(sound bool) error {
	if err := h.close(); err != nil || h.readOnly {
		return err
	}
	h.list.closed = sound
	return h.list.write(h.dir)
}

// badgerOptions: the reasons:
//   - SyncWrites is off: only tables count, which Badger syncs.
//   - No compactors, and level 0 never stalls: Compact and Merge do it. NumMemtables bounds what waits to be written to tables.
//   - Values are in tables: with its threshold, there is a value log, but nothing in it.
//   - No compression and no caches: what is in the tables does not compress, so Badger reads blocks from the mapped file.
//   - OnBlockRead: blocks were checked just before, but Badger must not read one that changes in this moment.
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

// acquire returns the parts, which stay open until release.
func (d *DB) acquire() []*part {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.parts {
		h.readers++
	}
	return d.parts
}

// release retires parts after their last reader, when they do not count any more.
func (d *DB) release(parts []*part) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range parts {
		if h.readers--; h.readers == 0 {
			d.retiring.Go(func() { d.retire(h) }) // readers need not wait for Badger
		}
	}
}

// retire closes and removes a part.
func (d *DB) retire(h *part) {
	defer close(h.closed)
	if h.log.failure() == nil && d.room(0) == nil { // or Badger would try for ever to write a table that nobody needs
		if err := h.close(); err != nil {
			d.log.Warn("an old part of a database cannot be closed", "dir", h.dir, "error", err)
		}
	}
	if !h.old {
		return
	}
	if err := d.removeLeaving(h); err != nil {
		d.log.Warn("an old part of a database cannot be removed now", "dir", h.dir, "error", err)
	}
}

// removeLeaving removes a part that is closed.
func (d *DB) removeLeaving(h *part) error {
	if err := removePart(d.dir, h.dir); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = slices.DeleteFunc(d.leaving, func(l *part) bool { return l == h })
	return nil
}

// awaitRemoval returns when all parts that do not count any more are removed.
func (d *DB) awaitRemoval(ctx context.Context) error {
	d.mu.Lock()
	leaving := slices.Clone(d.leaving)
	d.mu.Unlock()
	for _, h := range leaving {
		select {
		case <-h.closed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := d.removeLeaving(h); err != nil { // retire has removed it, or tried to
			return err
		}
	}
	return nil
}

// replace replaces parts by others; the last one is written to from now on. The caller holds writing.
func (d *DB) replace(was, by []*part, remove bool) {
	d.mu.Lock()
	for _, h := range was {
		if h.old = remove; remove {
			d.leaving = append(d.leaving, h)
		}
	}
	for _, h := range by {
		h.readers = 1
	}
	kept := slices.DeleteFunc(slices.Clone(d.parts), func(h *part) bool { return slices.Contains(was, h) })
	d.parts = append(kept, by...)
	d.mu.Unlock()
	d.release(was)
}

// current returns the part that is written to. The caller holds writing.
func (d *DB) current() *part { return d.parts[len(d.parts)-1] }

// commit commits a transaction. When Badger cannot write tables, it would wait for ever.
func (h *part) commit(txn *badger.Txn, version uint64) error {
	done := make(chan error, 1)
	if err := txn.CommitAt(version, func(err error) { done <- err }); err != nil {
		return err
	}
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(100 * time.Millisecond):
			if err := h.log.failure(); err != nil {
				return err
			}
		}
	}
}

// tableCount returns how many tables Badger has. Unlike badger.DB.Tables, it reads no index, which may be damaged.
func tableCount(db *badger.DB) (n int) {
	for _, level := range db.Levels() {
		n += level.NumTables
	}
	return n
}

// bytes returns how many bytes the tables have.
func (h *part) bytes() (n int64) {
	for _, t := range h.tables.Load().all {
		n += t.size
	}
	return n
}

// newestVersion returns the greatest version in tables.
func (h *part) newestVersion() (version uint64) {
	for _, t := range h.tables.Load().all {
		version = max(version, t.version)
	}
	return version
}

// checkNew reads back the tables that Badger has written since the last call, and adds them to the list in memory. The caller holds
// writing.
func (h *part) checkNew() error {
	if tableCount(h.db) == len(h.list.tables) {
		return nil
	}
	ids, _, err := readManifest(h.dir, h.log)
	if err != nil {
		return err
	}
	now := h.tables.Load()
	var added []*tableFile
	defer func() { h.tables.Store(now.with(added)) }()
	for _, id := range ids {
		if _, ok := h.list.tables[id]; ok {
			continue
		}
		t, err := openTable(h.dir, id)
		if err != nil {
			return err
		}
		c, err := t.readAll(atOnce, func(key []byte) { now.filter.add(y.Hash(key)) })
		if err != nil {
			t.close()
			return err
		}
		h.list.tables[id] = listed{t.size, c, t.sum}
		added = append(added, t)
	}
	return nil
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
