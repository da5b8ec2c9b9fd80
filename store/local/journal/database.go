package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
	"mtagd/store/local/space"
)

// Database is a Badger database that keeps all values in its tables. As with the journal's database, its files are checked before
// Badger opens them, and allocated before Badger writes to them.
type Database struct {
	db     *badger.DB
	log    *badgerLog
	files  *allocator
	shadow string // of OpenDatabaseReadOnly
}

const (
	// Values in the tables must be smaller than 15 % of a memtable, and less than 1 MiB.
	databaseMemTable = 16 << 20
	databaseMemLog   = databaseMemTable + 1<<20 // the log of a memtable

	// MaxCommitBytes is how many bytes one commit of a Database may write.
	MaxCommitBytes = 900 << 10
)

func databaseOptions(dir string) badger.Options {
	return badgerOptions(dir).
		WithValueThreshold(1 << 20).
		WithValueLogFileSize(2 << 20). // there is always one, without values
		WithMemTableSize(databaseMemTable).
		WithNumLevelZeroTables(4).
		WithNumLevelZeroTablesStall(16)
}

// OpenDatabase opens or creates the database in dir.
func OpenDatabase(dir string, log *slog.Logger) (*Database, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := newAllocator(dir, log)
	if err != nil {
		return nil, err
	}
	files.memLog = databaseMemLog
	d := &Database{log: &badgerLog{log: log}, files: files}
	if d.db, err = openFiles(databaseOptions(dir), d.log, files); err != nil {
		files.close()
		return nil, err
	}
	files.opened()
	if free, err := space.Free(dir); err == nil {
		files.spare.fill(free, spareSize)
	}
	return d, nil
}

// OpenDatabaseReadOnly opens an existing database, which no other process has open. It changes nothing. Damage of the logs,
// which reads do not meet, is passed to wrong.
func OpenDatabaseReadOnly(dir string, log *slog.Logger, wrong func(where string, err error)) (*Database, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	d := &Database{log: &badgerLog{log: log}}
	var err error
	d.db, d.shadow, err = openReadOnly(databaseOptions(dir), d.log, wrong)
	return d, err
}

// View calls read with a transaction that reads as of a version. If read has met a damaged table, where data may be hidden, or the
// disk cannot be read, View returns an error.
func (d *Database) View(version uint64, read func(txn *badger.Txn) error) error {
	damaged := damagedBlocks.Load()
	err := catchFault(func() error {
		txn := d.db.NewTransactionAt(version, false)
		defer txn.Discard()
		return read(txn)
	})
	if damagedBlocks.Load() != damaged {
		return errDamagedBlock
	}
	return err
}

// Commit writes one transaction. When it returns nil, that is on disk. Only one goroutine may call it.
func (d *Database) Commit(version uint64, fill func(txn *badger.Txn) error) error {
	if err := d.failure(); err != nil {
		return err
	}
	if err := d.files.complete(); err != nil {
		return err
	}
	free, err := space.Free(d.files.dir)
	if err == nil && free < 2*databaseMemLog {
		return errNearlyFull
	}
	if err == nil {
		d.files.spare.fill(free, spareSize)
	}
	txn := d.db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	if err := catchFault(func() error { return fill(txn) }); err != nil {
		return err
	}
	if err := txn.CommitAt(version, nil); err != nil {
		return err
	}
	d.files.extendManifest()
	return d.failure()
}

var errNearlyFull = errors.New("the disk is nearly full")

// IsNearlyFull reports whether an error of Commit says that nothing was written because the disk is nearly full.
func IsNearlyFull(err error) bool { return errors.Is(err, errNearlyFull) || space.IsFull(err) }

// failure returns an error that Badger has ignored.
func (d *Database) failure() error { return errors.Join(d.log.failure(), d.files.failure()) }

// Batch returns a batch of writes of any versions, for a new database. Nothing else may write meanwhile.
func (d *Database) Batch() *badger.WriteBatch { return d.db.NewManagedWriteBatch() }

// Room returns an error when the disk is nearly full. Call it before each MaxCommitBytes of a batch.
func (d *Database) Room() error {
	free, err := space.Free(d.files.dir)
	if err == nil && free < MinFree/2+3*databaseMemLog {
		return errNearlyFull
	}
	return nil
}

// MaxVersion returns the greatest version of a commit.
func (d *Database) MaxVersion() uint64 { return d.db.MaxVersion() }

// Keep makes compactions keep what is needed to read the database as of a version or any later one. Without a call, they keep only
// the newest data.
func (d *Database) Keep(version uint64) { d.db.SetDiscardTs(version) }

// Drop removes all versions of all keys that begin with one of keys from the files, with their tombstones. No Commit may run. Reads
// wait while Badger rewrites the tables that have such keys.
func (d *Database) Drop(keys [][]byte) error {
	need := int64(0)
	for _, t := range d.db.Tables() {
		if slices.ContainsFunc(keys, func(k []byte) bool {
			return bytes.Compare(k, y.ParseKey(t.Left)) >= 0 && bytes.Compare(k, y.ParseKey(t.Right)) <= 0
		}) {
			need += int64(t.OnDiskSize)
		}
	}
	if err := d.roomFor(need); err != nil {
		return err
	}
	return errors.Join(d.db.DropPrefix(keys...), d.failure())
}

// flattenBytes is about how much one compaction writes before it deletes anything.
const flattenBytes = 128 << 20

// Flatten compacts all tables, which drops what was deleted. Reads and commits go on.
func (d *Database) Flatten() error {
	if err := d.roomFor(flattenBytes); err != nil {
		return err
	}
	return errors.Join(d.db.Flatten(1), d.failure())
}

// roomFor returns an error when the disk has too little space to write so many bytes of tables: Badger would wait for space, and
// reads would wait for Badger.
func (d *Database) roomFor(bytes int64) error {
	free, err := space.Free(d.files.dir)
	if err == nil && free < bytes+2*databaseMemLog {
		return errNearlyFull
	}
	return err
}

// CheckTables reads all tables and checks their checksums. It passes damage to wrong, and returns an error only when ctx ends.
func (d *Database) CheckTables(ctx context.Context, wrong func(error)) error {
	v := verifier{Check: Check{Wrong: func(where string, err error) { wrong(fmt.Errorf("%s: %w", filepath.Base(where), err)) }}}
	for _, t := range d.db.Tables() {
		if err := ctx.Err(); err != nil {
			return err
		}
		v.table(tablePath(d.db.Opts().Dir, t.ID))
	}
	return nil
}

// TableBytes returns how many bytes the tables have.
func (d *Database) TableBytes() (bytes int64) {
	for _, t := range d.db.Tables() {
		bytes += int64(t.OnDiskSize)
	}
	return bytes
}

// Close closes the files.
func (d *Database) Close() error {
	if d.files == nil {
		return errors.Join(d.db.Close(), os.RemoveAll(d.shadow))
	}
	var err error
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		err = d.db.Close()
	}()
	if err := d.files.await(closed); err != nil {
		return err
	}
	if err == nil && d.failure() == nil && damagedBlocks.Load() == 0 {
		if err := noteClosed(d.files.dir); err != nil {
			d.log.log.Warn("a clean stop cannot be noted: the next start checks all tables", "error", err)
		}
	}
	d.files.close()
	if free, freeErr := space.Free(d.files.dir); freeErr == nil {
		d.files.spare.fill(free, 0) // for the next start
	}
	return err
}

// EachEntry reads the files of a database one by one, without MANIFEST, and calls use with the entries whose keys fit, in any
// order, older ones and deletions too. It looks for sound entries behind damage, which it passes to wrong.
func EachEntry(ctx context.Context, dir string, fits func(key []byte) bool, use func(codec.Entry) error, wrong func(path string, err error)) error {
	s := salvager{fits: fits, take: func(key []byte, version uint64, deleted bool, value []byte) error {
		return use(codec.Entry{Key: key, Value: value, Version: version, Deleted: deleted})
	}}
	err := s.files(ctx, dir, ".mem", s.memLog, wrong)
	if err == nil {
		err = s.files(ctx, dir, ".sst", s.table, wrong)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, s.failed)
}
