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
//	DIR/sN/          a sealed part: a directory of Badger to which nothing is added
//	DIR/gN/          the last part, to which tables are added
//	DIR/gN/tables    our list of its tables, with counts, and of the sealed parts that count (list.go)
//	DIR/gN.new/      a last part that Compact or Merge is writing
//
// When the last part has many tables, Merge writes what is live in it, and in some sealed parts of about its size, into a new sealed part,
// with Badger's StreamWriter. So each entry is written again only a few times, however large the database becomes. Compact does that with
// all parts. Both count what they have read and written, rename the new last part, and remove the old parts. Readers that are in those
// keep them until they end. A kill at any point leaves one complete set of parts, and no file ever comes back.
//
// # Damage
//
// Open compares MANIFEST, our list, and the sizes and indexes of the tables. Reads check each block before Badger reads it (txn.go).
// Check reads everything. All of them return or report Damage, which names the file. Damage of one table costs the reads that need
// it, and compactions.
//
// # Memory and space
//
// A memtable of the last part takes about 5 MB; there are at most three. Those of sealed parts are small. Badger writes to memory maps, where a full disk ends the process. So
// Commit, Flush, Compact and Merge first look at the free space (space.go).
//
// Files in reading order:
//
//	badgerdb.go  DB: open, commit, flush, close
//	part.go      a part: opens and closes it, and removes it after its last reader
//	txn.go       reads of one part, checked
//	iterator.go  reads of all parts
//	runs.go      finds a key in the tables
//	compact.go   Compact and Merge
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
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"

	"mtagd/store/local/durable"
)

const (
	memTable    = 4 << 20
	oldMemTable = 16 << 20 // of versions that had no list of tables
	tableBytes  = 2 << 20  // of Compact
	// Nothing is written to a sealed part, but Badger makes a memtable for each.
	sealedMemTable = 64 << 10

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
	writing    sync.Mutex // held by whoever writes to the last part, or replaces parts
	dirty      bool       // something was committed since the last Flush
	last       uint64     // version of the last commit

	mu       sync.Mutex
	retiring sync.WaitGroup
	leaving  []*part // those that count no longer, and are not removed yet; guarded by mu
	parts    []*part // the oldest first; the last one is written to. Replaced, not changed, by who holds both locks
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
	counts, others, err := findParts(d.dir)
	if err != nil {
		return err
	}
	for _, dir := range others {
		if err := removePart(d.dir, dir); err != nil {
			return err
		}
	}
	if len(counts) == 0 {
		first := partDir(d.dir, 1)
		if err := errors.Join(os.Mkdir(first, 0o700), durable.SyncPath(d.dir)); err != nil {
			return err
		}
		counts = []int{1}
	}
	return d.openParts(counts, d.room(0) != nil)
}

// openParts opens the parts with these numbers.
func (d *DB) openParts(numbers []int, readOnly bool) (err error) {
	d.clean = true
	d.keep.Store(math.MaxUint64)
	var parts []*part
	for i, n := range numbers {
		dir, older := sealedDir(d.dir, n), []int(nil)
		if i == len(numbers)-1 {
			dir, older = partDir(d.dir, n), numbers[:i]
		}
		h, err := d.openPart(dir, n, older, readOnly)
		if err != nil {
			for _, h := range parts {
				err = errors.Join(err, h.close())
			}
			return err
		}
		d.clean = d.clean && h.clean
		d.last = max(d.last, h.list.version, h.newestVersion())
		parts = append(parts, h)
	}
	d.replace(nil, parts, false)
	return nil
}

// OpenReadOnly opens an existing database, which no other process has open, to read it. It changes nothing.
func OpenReadOnly(dir string, log *slog.Logger) (*DB, error) {
	d := &DB{dir: dir, log: log}
	counts, _, err := findParts(dir)
	if err == nil && len(counts) == 0 {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = d.openParts(counts, true)
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
	txn := &Txn{Txn: h.db.NewTransactionAt(math.MaxUint64, true)}
	defer txn.Discard()
	if err := fill(txn); err != nil {
		return err
	}
	d.dirty = true
	if err := h.commit(txn.Txn, version); err != nil {
		return err
	}
	d.last = version
	return h.checkNew()
}

// writable returns the last part to write to it. The caller holds writing.
func (d *DB) writable() (*part, error) {
	if err := d.room(0); err != nil {
		return nil, err
	}
	h := d.current()
	if was := h; was.readOnly { // since the disk was nearly full
		var err error
		if h, err = d.openPart(was.dir, was.number, was.list.older, false); err != nil {
			return nil, err
		}
		d.replace([]*part{was}, []*part{h}, false)
	}
	return h, errors.Join(h.log.failure(), allocateLogs(h.dir))
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
	return d.current().db.NewManagedWriteBatch()
}

// Room returns an error when the disk is nearly full. Call it before each MaxCommitBytes of a batch.
func (d *DB) Room() error { return d.room(0) }

// MaxVersion returns the greatest version of a commit or a batch.
func (d *DB) MaxVersion() uint64 {
	d.writing.Lock()
	defer d.writing.Unlock()
	return max(d.last, d.current().db.MaxVersion())
}

// Keep makes Compact keep what is needed to read as of a version or any later one, in transactions that begin after it. Without a
// call, it keeps only the newest data.
func (d *DB) Keep(version uint64) { d.keep.Store(version) }

// TableBytes returns how many bytes the tables have.
func (d *DB) TableBytes() (bytes int64) {
	parts := d.acquire()
	defer d.release(parts)
	for _, h := range parts {
		bytes += h.bytes()
	}
	return bytes
}

// Check reads all tables, and passes damage to found. A table that Compact removes meanwhile is left out. It calls pace
// between blocks; when pace returns an error, Check does too.
func (d *DB) Check(ctx context.Context, pace func(), found func(*Damage)) error {
	checked := map[string]bool{}
	for {
		parts := d.acquire()
		d.writing.Lock()
		var next *tableFile
		var want listed
		for _, h := range parts {
			for _, t := range h.tables.Load().all {
				if next == nil && !checked[t.path] {
					next, want = t, h.list.tables[t.id]
				}
			}
		}
		d.writing.Unlock()
		if next == nil {
			d.release(parts)
			return nil
		}
		checked[next.path] = true
		c, err := next.readAll(paced(ctx, pace), nil)
		if err == nil && c != want.contents {
			err = damaged(next.path, "it has %d entries instead of %d, or other ones", c.entries, want.entries)
		}
		d.release(parts)
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
	d.retiring.Wait()
	h := d.current()
	var err error
	for _, sealed := range d.parts[:len(d.parts)-1] {
		err = errors.Join(err, sealed.closeClean(d.Damage() == nil))
	}
	switch err = errors.Join(err, h.log.failure()); { // Badger would wait for the table that it cannot write
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
			l.version, l.closed, l.older = d.last, d.Damage() == nil, h.list.older
			err = l.write(h.dir)
		}
	}
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}
