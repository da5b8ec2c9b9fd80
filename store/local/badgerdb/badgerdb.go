// Package badgerdb is Badger behind a log: large batches of entries in sorted tables, checked whenever they are read, and
// compacted when the caller says so. It uses only what Badger exports.
//
// # What is durable when
//
// Put writes to memory. A Flush makes everything before it durable, and readable, at once. A kill loses what was put since:
// the caller has a log of its own, and replays it.
//
// So this package needs no log and none of Badger's memtables. When the entries in memory have 8 MB, and at a Flush, they
// become a table of Badger (badger/v4/table). A table is written as a whole, synced, and read back. A Flush lists it.
// badger.DB is not used, because it would write each entry three times (log, skip list, table), and cannot be told to write
// a table.
//
// # Files
//
//	DIR/sN/          a sealed part: tables that Compact or Merge has written
//	DIR/gN/          the last part, to which tables are added; or an earlier one that was not merged yet
//	DIR/gN/tables    our list of its tables, with counts, and of the earlier parts that count (list.go)
//	DIR/gN.new/      a last part that is not complete
//
// When the unsealed parts have many tables, Merge begins a new last part. It writes the live entries of the other unsealed
// parts, and of some sealed parts of about their size, into a new sealed part. So each entry is rewritten only a few times,
// however large the database becomes. Compact does the same with all parts. Both count what they have read and written, note
// in the list that the new part replaces the old ones, and remove the old ones. A reader of an old part keeps its files
// until it ends. A kill at any point leaves one complete set of parts, and no file ever comes back.
//
// # Damage
//
// Open compares the sizes and the index checksums of the tables with our list. Reads do not use Badger's iterators, because
// these take a block that cannot be read for the end of a table; ours check each block. Check reads everything. All of them
// return or report Damage, which names the file. Damage of one table fails the reads that need the table, and compactions.
//
// # Memory and space
//
// Entries in memory take about 9 MB, and three times as much while a table is made of them. A million keys of event_ids in
// tables take 3 MB, and the filter of the unsealed tables 4 MB, however many keys they have. Flush, Compact and Merge first
// look at the free space of the disk.
//
// Files in reading order:
//
//	badgerdb.go  DB: open, put, flush, close
//	part.go      a part: opens and closes it, and removes it after its last reader
//	writer.go    entries in memory, and how they become tables
//	view.go      reads as of one Flush
//	iterator.go  reads entries in the order of their keys
//	runs.go      finds a key in the tables
//	compact.go   Compact and Merge
//	table.go     the files of tables, and the blocks in them
//	list.go      the other files
//	repair.go    reads what is sound of damaged files; replaces a database by another one
package badgerdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4/y"
	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

const (
	memTableBytes = 8 << 20
	tableBytes    = 2 << 20   // of Compact
	paceBytes     = 256 << 10 // read by Compact between two pauses

	maxKeyBytes   = 1 << 10
	maxValueBytes = 500 << 10
)

// filler is a key that sorts behind all others. Version 1.0.0 wrote it to fill a memtable of Badger.
const filler = "\xff\xff\xff\xff\xff\xff\xff\xfffiller"

// DB is a database. Any goroutine may read what was flushed. Flush and Compact may run beside Put.
type DB struct {
	dir  string
	log  *slog.Logger
	lock *os.File

	readOnly bool
	damage   atomic.Pointer[error] // the first that a read, a compaction or Check has met since it was opened or rebuilt

	compacting sync.Mutex // held while Compact runs; locked before writing
	writing    sync.Mutex // held by whoever writes to the last part, or replaces parts
	memory     memTable   // entries that are in no table
	last       uint64     // the greatest version
	failed     error      // nothing may be written any more

	mu       sync.Mutex
	retiring sync.WaitGroup
	leaving  []*part // those that do not count any more, and were not removed yet; guarded by mu
	parts    []*part // the oldest first; the last one is written to. Replaced, not changed, by who holds both locks
}

// Open opens or creates the database in dir. When the disk is nearly full, it can be read.
func Open(dir string, log *slog.Logger) (*DB, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d, err := lock(dir, log)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(os.RemoveAll(dir+rebuilt), d.open()); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), d.unlock())
	}
	return d, nil
}

// lock returns a database that is not open yet.
func lock(dir string, log *slog.Logger) (*DB, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process has %s open: %w", dir, err), f.Close())
	}
	return &DB{dir: dir, log: log, lock: f}, nil
}

// unlock gives up the lock before it closes the file: a child process that is being started has the file open, too.
func (d *DB) unlock() error {
	return errors.Join(unix.Flock(int(d.lock.Fd()), unix.LOCK_UN), d.lock.Close())
}

func (d *DB) open() error {
	counts, others, err := findParts(d.dir)
	if err != nil {
		return err
	}
	for _, name := range others {
		if err := removePart(d.dir, name); err != nil {
			return err
		}
	}
	if len(counts) == 0 {
		counts = []string{"g1"}
		if err := errors.Join(os.Mkdir(filepath.Join(d.dir, counts[0]), 0o700), durable.SyncPath(d.dir)); err != nil {
			return err
		}
	}
	return d.openParts(counts)
}

// openParts opens the parts with these names.
func (d *DB) openParts(names []string) (err error) {
	var parts []*part
	for i, name := range names {
		h, err := d.openPart(name)
		if err != nil {
			for _, h := range parts {
				h.close()
			}
			return err
		}
		if i == len(names)-1 {
			h.list.older = names[:i]
		}
		d.last = max(d.last, h.list.version, h.newestVersion())
		parts = append(parts, h)
	}
	for _, h := range parts {
		if err != nil || d.readOnly || d.Room(0) != nil {
			break
		}
		if !h.list.found {
			err = h.prepare()
		} else if err = durable.SyncPath(h.dir); err == nil { // a kill may have come before the list's name was synced
			err = h.removeOthers() // the list is written again before a table is added
		}
	}
	d.replace(nil, parts)
	return err
}

// OpenReadOnly opens an existing database, which no other process has open, to read it. It changes nothing.
func OpenReadOnly(dir string, log *slog.Logger) (*DB, error) {
	d := &DB{dir: dir, log: log, readOnly: true}
	counts, _, err := findParts(dir)
	if err == nil && len(counts) == 0 {
		err = fs.ErrNotExist
	}
	if err == nil {
		err = d.openParts(counts)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	return d, nil
}

func (d *DB) noteDamage(err error) {
	if err != nil {
		first := err // so that only an error is allocated
		d.damage.CompareAndSwap(nil, &first)
	}
}

// Damage returns damage that was met, or nil.
func (d *DB) Damage() error {
	if err := d.damage.Load(); err != nil {
		return *err
	}
	return nil
}

// Recheck reads all tables after damage was found, and returns all damage. When all tables are sound, the damage was a
// passing disk error: then Damage returns nil again.
func (d *DB) Recheck(ctx context.Context, pace func()) error {
	var found []error
	if err := d.Check(ctx, pace, func(damage *Damage) { found = append(found, damage) }); err != nil {
		return err
	}
	if found == nil {
		d.damage.Store(nil)
	}
	return errors.Join(found...)
}

// Put writes entries of any versions to memory, all of them or, with an error, none. They are on disk, and read, after
// Flush. Of the entries of a key, the one with the greatest version counts, and of those the last one.
func (d *DB) Put(entries ...codec.Entry) error {
	for i := range entries {
		if err := checkSizes(&entries[i]); err != nil {
			return err
		}
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.memory.isFull() {
		if err := cmp.Or(d.failed, d.Room(0)); err != nil {
			return err
		}
		if err := d.writeTable(); err != nil {
			return err
		}
	}
	for i := range entries {
		d.memory.add(&entries[i])
		d.last = max(d.last, entries[i].Version)
	}
	return nil
}

// Flush makes everything that was put durable, and readable.
func (d *DB) Flush() error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.flush()
}

func (d *DB) flush() error {
	if len(d.memory.entries) == 0 && len(d.current().unread) == 0 {
		return nil
	}
	if err := cmp.Or(d.failed, d.Room(0)); err != nil {
		return err
	}
	if err := d.writeTable(); err != nil {
		return err
	}
	h := d.current()
	h.list.version = d.last
	if err := h.list.write(h.dir); err != nil {
		return err
	}
	h.publish()
	return nil
}

// MaxVersion returns the greatest version that was written.
func (d *DB) MaxVersion() uint64 {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.last
}

// TableBytes returns how many bytes the tables have.
func (d *DB) TableBytes() (bytes int64) {
	parts := d.acquire()
	defer d.release(parts)
	for _, h := range parts {
		bytes += h.bytes()
	}
	return bytes
}

// Check reads all tables that are not removed meanwhile. It passes damage to found, calls pace between blocks, and fails
// when ctx ends.
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
		err := d.checkTable(next, want, paced(ctx, pace), nil)
		d.release(parts)
		if damage, ok := errors.AsType[*Damage](err); ok {
			found(damage)
		} else if err != nil {
			return err
		}
	}
}

// checkTable reads a table whole, and compares it with what is listed. It notes damage, and returns it.
func (d *DB) checkTable(t *tableFile, want listed, pace func() error, use func(key []byte, v y.ValueStruct)) error {
	c, err := t.readAll(pace, use)
	if err == nil && c != want.contents {
		err = damaged(t.path, "it has %d entries instead of %d, or other ones", c.entries, want.entries)
	}
	if damage, ok := errors.AsType[*Damage](err); ok {
		d.noteDamage(damage)
	}
	return err
}

func paced(ctx context.Context, pace func()) func() error {
	return func() error {
		pace()
		return ctx.Err()
	}
}

// Close closes the files. What was put is on disk. No other method may run.
func (d *DB) Close() error {
	d.retiring.Wait()
	err := d.flush()
	for _, h := range d.parts {
		h.close()
	}
	if d.lock != nil {
		err = errors.Join(err, d.unlock())
	}
	return err
}
