// Package badgerdb is Badger behind a log: large batches of entries in sorted tables, checked whenever they are read, and compacted
// when the caller says so. It uses only what Badger exports.
//
// # What is durable when
//
// Commit writes a transaction. It is on disk when Flush returns. After a kill, the database is as of some commit at or after the
// last Flush. The caller has a log of what it commits, and replays that.
//
// So Badger's own log of a memtable is never read: Open removes it. Badger writes a memtable to a table when it is full, so Flush
// fills it up, with a key that readers do not see (filler). It waits for the table, reads it back, and lists it. The log of the
// memtable is not synced, and is removed with its pages still in memory, so a checkpoint of 16 MB writes 17 MB to the disk.
// What else there is to get tables was no better: DropPrefix merges all of level 0 and blocks reads meanwhile, Close does not
// work beside readers, and StreamWriter merges everything at each seventh batch.
//
// # Files
//
//	DIR/gN/          a generation: a directory of Badger, to which only tables are added
//	DIR/gN/tables    our list of its tables, with counts (list.go)
//	DIR/gN.new/      a generation that Compact is writing
//
// Compact writes all that is live into a new generation, with Badger's StreamWriter, counts what it has read and written, renames
// the new one, and removes the old one. Readers that are in the old one keep it until they end. A kill at any point leaves one
// complete generation, and no file ever comes back.
//
// # Damage
//
// Open compares MANIFEST, our list, and the sizes and indexes of the tables. Reads check each block before Badger reads it (txn.go).
// Check reads everything. All of them return or report Damage, which names the file. Damage of one table costs the reads that need
// it, and compactions.
//
// # Memory and space
//
// A memtable takes about 5 MB; there are at most three. Badger writes to memory maps, where a full disk ends the process. So
// Commit, Flush, and Compact first look at the free space (space.go).
//
// Files in reading order:
//
//	badgerdb.go  DB: open, commit, flush, close
//	txn.go       reads
//	compact.go   writes a new generation
//	table.go     the files of tables, and the blocks in them
//	list.go      the other files
//	space.go     free space
//	salvage.go   reads what is sound of damaged files
package badgerdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

const (
	memTable    = 4 << 20
	oldMemTable = 16 << 20 // of versions that had no generations
	tableBytes  = 2 << 20  // of Compact

	// MaxCommitBytes is how many bytes one commit may write.
	MaxCommitBytes = 500 << 10
)

// filler is a key that sorts behind all others.
const filler = "\xff\xff\xff\xff\xff\xff\xff\xfffiller"

// DB is a database. Any goroutine may read. One at a time may call Commit; Flush and Compact may run beside it.
type DB struct {
	dir  string
	log  *slog.Logger
	lock *os.File

	keep  atomic.Uint64
	clean bool
	met   met

	compacting sync.Mutex // held while Compact runs; locked before writing
	writing    sync.Mutex // held by whoever writes to the current generation, or replaces it
	dirty      bool       // something was committed since the last Flush
	last       uint64     // version of the last commit

	mu      sync.Mutex // guards current, and readers of all handles
	current *handle
}

// handle is an open generation.
type handle struct {
	db       *badger.DB
	dir      string // of the tables
	opened   string // where Badger works: dir, or a directory of links
	number   int
	log      *badgerLog
	list     list                         // guarded by DB.writing
	tables   atomic.Pointer[[]*tableFile] // all that Badger has, but for the newest
	met      *met
	readOnly bool

	readers int           // those who use it, and one while it is current
	old     bool          // it is no longer current
	closed  chan struct{} // after it is closed and removed
}

// Open opens or creates the database in dir. When the disk is nearly full, it can be read.
func Open(dir string, log *slog.Logger) (*DB, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d := &DB{dir: dir, log: log}
	var err error
	if d.lock, err = os.Open(dir); err != nil {
		return nil, err
	}
	if err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("another process has %s open: %w", dir, err)
	} else {
		err = d.open()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), d.lock.Close())
	}
	return d, nil
}

func (d *DB) open() error {
	unfinished, err := filepath.Glob(filepath.Join(d.dir, "g*"+newSuffix))
	for _, path := range unfinished {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return err
	}
	newest, older, err := generation(d.dir)
	if err != nil {
		return err
	}
	if newest < 0 {
		newest = 1
		if err := errors.Join(os.Mkdir(generationDir(d.dir, 1), 0o700), durable.SyncPath(d.dir)); err != nil {
			return err
		}
	}
	for _, n := range older {
		if err := removeGeneration(d.dir, n); err != nil {
			return err
		}
	}
	return d.use(newest, d.room(0) != nil)
}

// use makes a generation current.
func (d *DB) use(n int, readOnly bool) error {
	h, err := d.openGeneration(n, readOnly)
	if err == nil {
		d.current, h.readers = h, 1
		d.clean, d.last = h.list.closed, max(h.list.version, h.newestVersion())
		d.keep.Store(math.MaxUint64)
	}
	return err
}

// openGeneration checks the files of a generation, and opens it. To a reader that must not write, Badger gets a directory of links.
func (d *DB) openGeneration(n int, readOnly bool) (h *handle, err error) {
	h = &handle{dir: generationDir(d.dir, n), number: n, log: &badgerLog{log: d.log}, met: &d.met, readOnly: readOnly, closed: make(chan struct{})}
	tables, l, isNew, err := checkFiles(h.dir, h.log, readOnly)
	if err != nil {
		return nil, err
	}
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
		if hasLogs {
			opt = opt.WithMemTableSize(oldMemTable)
		}
		err = h.openBadger(opt, tables)
	}
	if err == nil && hasLogs {
		if err := h.close(); err != nil { // which makes tables of what the logs have
			return nil, err
		}
		return d.openGeneration(n, false)
	}
	if err == nil && !readOnly {
		l.closed = false
		err = l.write(h.dir)
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
func (h *handle) openBadger(opt badger.Options, tables map[uint64]*tableFile) (err error) {
	if h.db, err = badger.OpenManaged(opt); err != nil {
		return err
	}
	h.db.SetDiscardTs(math.MaxUint64)
	all := slices.Collect(maps.Values(tables))
	h.tables.Store(&all)
	if n := tableCount(h.db); n < len(all) { // it may have made some of its logs already
		err = fmt.Errorf("%w: Badger has opened %d of %d tables of %s", codec.ErrCorrupt, n, len(all), h.dir)
	}
	err = errors.Join(err, h.log.failure())
	if err != nil {
		err = errors.Join(err, h.db.Close())
	}
	return err
}

// close closes a generation. Badger makes a table of its memtable.
func (h *handle) close() error {
	err := h.db.Close()
	for _, t := range *h.tables.Load() {
		t.close()
	}
	if h.opened != h.dir {
		err = errors.Join(err, os.RemoveAll(h.opened))
	}
	return errors.Join(err, h.log.failure())
}

// badgerOptions: the reasons:
//   - SyncWrites is off: only tables count, which Badger syncs.
//   - No compactors, and level 0 never stalls: Compact does it. NumMemtables bounds what waits to be written to tables.
//   - Values are in tables: with its threshold, there is a value log, but nothing in it.
//   - No compression and no caches: what is in the tables does not compress, so Badger reads blocks from the mapped file.
//   - OnBlockRead: blocks were checked just before, but Badger must not read one that changes in this moment.
//   - BypassLockGuard: DB.lock is for all generations.
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
		WithBaseTableSize(tableBytes).
		WithChecksumVerificationMode(options.OnBlockRead).
		WithBlockCacheSize(0).
		WithCompression(options.None).
		WithNumVersionsToKeep(1)
	opt.TableSizeMultiplier = 1
	return opt
}

// OpenReadOnly opens an existing database, which no other process has open, to read it. It changes nothing.
func OpenReadOnly(dir string, log *slog.Logger) (*DB, error) {
	d := &DB{dir: dir, log: log}
	newest, _, err := generation(dir)
	if err == nil && newest < 0 {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = d.use(newest, true)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return d, nil
}

// StoppedCleanly reports whether the last stop was clean and less than 15 minutes ago. If not, Check finds what happened to the
// files since. Reads find it too.
func (d *DB) StoppedCleanly() bool { return d.clean }

// met is the first damage that a read, a compaction or Check has met since the database was opened, or Adopt.
type met struct{ first atomic.Pointer[error] }

func (m *met) note(err error) {
	if err != nil {
		m.first.CompareAndSwap(nil, &err)
	}
}

// Damage returns damage that was met, or nil.
func (d *DB) Damage() error {
	if err := d.met.first.Load(); err != nil {
		return *err
	}
	return nil
}

// Recheck reads all tables after damage was met, and returns the first damage. When they are sound, the disk had returned an error for a
// while: then Damage returns nil again.
func (d *DB) Recheck(ctx context.Context, pace func()) (damage error) {
	if err := d.Check(ctx, pace, func(found *Damage) { damage = cmp.Or(damage, error(found)) }); err != nil {
		return err
	}
	if damage == nil {
		d.met.first.Store(nil)
	}
	return damage
}

// acquire returns the current generation, which stays open until release.
func (d *DB) acquire() *handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current.readers++
	return d.current
}

// release closes and removes a generation after its last reader, when it is no longer current.
func (d *DB) release(h *handle) {
	d.mu.Lock()
	h.readers--
	last := h.readers == 0
	d.mu.Unlock()
	if !last {
		return
	}
	if err := h.close(); err != nil {
		d.log.Warn("an old generation cannot be closed", "dir", h.dir, "error", err)
	}
	if h.old {
		if err := removeGeneration(d.dir, h.number); err != nil {
			d.log.Warn("an old generation cannot be removed; the next start does it", "dir", h.dir, "error", err)
		}
	}
	close(h.closed)
}

// replace makes h the current generation. The caller holds writing.
func (d *DB) replace(h *handle, remove bool) (was *handle) {
	d.mu.Lock()
	was = d.current
	was.old = remove
	d.current, h.readers = h, 1
	d.mu.Unlock()
	d.release(was)
	return was
}

// View calls read with a transaction that reads as of a version. When a read has met damage, it returns a Damage.
func (d *DB) View(version uint64, read func(txn *Txn) error) error {
	h := d.acquire()
	defer d.release(h)
	return h.view(version, read)
}

func (h *handle) view(version uint64, read func(txn *Txn) error) (err error) {
	txn := &Txn{Txn: h.db.NewTransactionAt(version, false), h: h}
	defer txn.Discard()
	defer func() {
		if r := recover(); r != nil { // some damage makes Badger panic
			for _, t := range *h.tables.Load() {
				if _, err = t.readAll(atOnce); err != nil {
					err = txn.found(err)
					return
				}
			}
			panic(r)
		}
	}()
	err = read(txn)
	if txn.bad != nil && !errors.Is(err, txn.bad) {
		err = errors.Join(txn.bad, err)
	}
	return err
}

// Commit writes one transaction. Versions grow from commit to commit. It is on disk after Flush.
func (d *DB) Commit(version uint64, fill func(txn *Txn) error) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	h, err := d.writable()
	if err != nil {
		return err
	}
	if version <= d.last {
		return fmt.Errorf("commit %d after commit %d", version, d.last)
	}
	txn := &Txn{Txn: h.db.NewTransactionAt(math.MaxUint64, true), h: h}
	defer txn.Discard()
	if err := fill(txn); err != nil || txn.bad != nil {
		return errors.Join(txn.bad, err)
	}
	d.dirty = true
	if err := h.commit(txn.Txn, version); err != nil {
		return err
	}
	d.last = version
	return h.checkNew()
}

// commit commits a transaction. When Badger cannot write tables, it would wait for ever.
func (h *handle) commit(txn *badger.Txn, version uint64) error {
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

// writable returns the current generation to write to it. The caller holds writing.
func (d *DB) writable() (*handle, error) {
	if err := d.room(0); err != nil {
		return nil, err
	}
	h := d.current
	if h.readOnly { // since the disk was nearly full
		var err error
		if h, err = d.openGeneration(h.number, false); err != nil {
			return nil, err
		}
		d.replace(h, false)
	}
	return h, errors.Join(h.log.failure(), allocateLogs(h.dir))
}

// tableCount returns how many tables Badger has. Unlike badger.DB.Tables, it reads no index, which may be damaged.
func tableCount(db *badger.DB) (n int) {
	for _, level := range db.Levels() {
		n += level.NumTables
	}
	return n
}

// newestVersion returns the greatest version in tables.
func (h *handle) newestVersion() (version uint64) {
	for _, t := range *h.tables.Load() {
		version = max(version, t.version)
	}
	return version
}

// checkNew reads back the tables that Badger has written since the last call, and adds them to the list in memory. The caller holds
// writing.
func (h *handle) checkNew() error {
	if tableCount(h.db) == len(h.list.tables) {
		return nil
	}
	ids, _, err := readManifest(h.dir, h.log)
	if err != nil {
		return err
	}
	all := slices.Clone(*h.tables.Load())
	for _, id := range ids {
		if _, ok := h.list.tables[id]; ok {
			continue
		}
		t, err := openTable(h.dir, id)
		if err != nil {
			return err
		}
		c, err := t.readAll(atOnce)
		if err != nil {
			t.close()
			return err
		}
		h.list.tables[id] = listed{t.size, c, t.sum}
		all = append(all, t)
	}
	h.tables.Store(&all)
	return nil
}

// Flush makes all commits durable.
func (d *DB) Flush() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.flush()
}

func (d *DB) flush() error {
	if !d.dirty {
		return nil
	}
	h, err := d.writable()
	if err != nil {
		return err
	}
	version := d.last
	newest, err := newestLog(h.dir)
	if err != nil {
		return err
	}
	content := make([]byte, fillerBytes)
	for n := newest; n == newest; {
		for range 4 {
			txn := h.db.NewTransactionAt(math.MaxUint64, true)
			err := txn.Set([]byte(filler), content)
			if err == nil {
				err = h.commit(txn, version)
			}
			if txn.Discard(); err != nil {
				return err
			}
		}
		if n, err = newestLog(h.dir); err != nil {
			return err
		}
	}
	for h.newestVersion() < version {
		if err := errors.Join(h.log.failure(), h.checkNew()); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // Badger has no signal
	}
	h.list.version = version
	if err := h.list.write(h.dir); err != nil {
		return err
	}
	d.dirty = false
	return nil
}

const fillerBytes = 32 << 10

// Batch returns a batch of writes of any versions, for a new database, with values of at most MaxCommitBytes. It is durable after a Commit and Flush, or after Close. Nothing
// else may write meanwhile.
func (d *DB) Batch() *badger.WriteBatch {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.dirty = true
	return d.current.db.NewManagedWriteBatch()
}

// Room returns an error when the disk is nearly full. Call it before each MaxCommitBytes of a batch.
func (d *DB) Room() error { return d.room(0) }

// MaxVersion returns the greatest version of a commit or a batch.
func (d *DB) MaxVersion() uint64 {
	d.writing.Lock()
	defer d.writing.Unlock()
	return max(d.last, d.current.db.MaxVersion())
}

// Keep makes Compact keep what is needed to read as of a version or any later one, in transactions that begin after it. Without a
// call, it keeps only the newest data.
func (d *DB) Keep(version uint64) { d.keep.Store(version) }

// TableBytes returns how many bytes the tables have.
func (d *DB) TableBytes() (bytes int64) {
	h := d.acquire()
	defer d.release(h)
	for _, t := range *h.tables.Load() {
		bytes += t.size
	}
	return bytes
}

// Check reads all tables, and passes damage to found. A table that Compact removes meanwhile is left out. It calls pace
// between blocks; when pace returns an error, Check does too.
func (d *DB) Check(ctx context.Context, pace func(), found func(*Damage)) error {
	checked := map[string]bool{}
	for {
		h := d.acquire()
		d.writing.Lock()
		var next *tableFile
		for _, t := range *h.tables.Load() {
			if !checked[t.path] {
				next = t
				break
			}
		}
		var want listed
		if next != nil {
			want = h.list.tables[next.id]
		}
		d.writing.Unlock()
		if next == nil {
			d.release(h)
			return nil
		}
		checked[next.path] = true
		c, err := next.readAll(paced(ctx, pace))
		if err == nil && c != want.contents {
			err = damaged(next.path, "it has %d entries instead of %d, or other ones", c.entries, want.entries)
		}
		d.release(h)
		var damage *Damage
		if errors.As(err, &damage) {
			d.met.note(damage)
			found(damage)
		} else if err != nil {
			return err
		}
	}
}

func paced(ctx context.Context, pace func()) func() error {
	return func() error {
		pace()
		return ctx.Err()
	}
}

// Close closes the files. What was committed is on disk. No other method may run.
func (d *DB) Close() error {
	h := d.current
	err := h.log.failure() // Badger would wait for the table that it cannot write
	switch {
	case err != nil:
	case h.readOnly || d.room(0) == nil:
		err = h.close()
	case d.dirty:
		err = errNearlyFull
	} // else what Badger would write are fillers
	if err == nil && !h.readOnly { // closing may have made a table
		var tables map[uint64]*tableFile
		var l list
		if tables, l, _, err = checkFiles(h.dir, h.log, true); err == nil {
			closeTables(tables)
			l.version, l.closed = d.last, d.Damage() == nil
			err = l.write(h.dir)
		}
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
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
