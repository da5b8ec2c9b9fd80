// Package control stores the control data of the embedded engine in a bbolt file and a second one with the same records. It
// is the driver of package rules, which has the rules and all records in memory. Each change is one synced transaction in
// each file.
//
//	inspect.go    what a data directory contains, before anything is opened
//	audit.go      the audit log
//	control.go    Data: changes
//	open.go       opens control.db: checks and loads all of it
//	move.go       what a move to another engine copies, and takes
//	snapshot.go   the control data as of one moment, for a backup
//	verify.go     checks all records
//	copy.go       the second file
//	repair.go     writes what can be read of damaged files into a new one
//	read.go       reads all of a file, and what is wrong with it
//	records.go    the bytes of records, their seals and sums
//
// # What is in control.db
//
// The file is of format "5". It has a bucket for each kind of record of package rules, with key → value as there, and one
// more; the file of an earlier version gets those that it does not have when it is opened:
//
//	meta        also "format" → version, without a seal; "sums" → see below
//	log         AuditID, time in nanoseconds since 1970 (8 bytes each, big endian) → store.AuditEntry
//
// Each value ends with a seal: the XXH64 (8 bytes, big endian) of bucket, key and value, each after its length (4 bytes, big
// endian). So a record that has moved to another key is damaged too. "sums" has for each bucket its name (length-prefixed),
// the number of its records (uvarint) and the sum of their seals modulo 2^64 (8 bytes, big endian); "format" and "sums"
// itself do not count. It changes in the transaction of each change, whose id is the number of a bucket without a name and
// with sum 0. So records that are missing or too old are noticed.
//
// # Damage
//
// Open reads the whole file, before bbolt does, and checks the pages (package boltfile), the seals and the sums.
//
//   - When anything is wrong, or the file is missing, control.copy takes its place (copy.go), unless it has older records.
//   - When the copy cannot, Open fails. "mtagd repair" makes a new file of what can be read of either.
//
// What the disk does to the files later does not reach requests. A change that meets damage of control.db fails, and changes
// nothing. One that meets damage of the copy rebuilds the copy.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
	"mtagd/store/local/space"
	"mtagd/store/rules"
)

// Data is the control data of a directory.
type Data struct {
	*rules.Data

	db   *boltfile.DB // nil with OpenReadOnly
	copy *boltfile.DB // of control.copy; guarded by writing; nil: the next change makes it
	file *os.File     // with OpenReadOnly
	path string
	now  func() time.Time
	log  *slog.Logger

	AuditLimits store.AuditLimits // of the audit log; set before the first change

	// Changing is called with the Sum that a change will make, before it is committed; its error keeps the change from being
	// made. Changed is called when the change is on disk. Both are set before the first change, and may be nil.
	Changing func(sum uint64) error
	Changed  func()

	writing sync.Mutex // held while a change is made
	frozen  error      // guarded by writing: why nothing is changed now; nil: changes are made
	sums    sums       // guarded by writing
	entries            // guarded by writing

	broken atomic.Pointer[error] // why nothing is changed until the next start; nil: changes are made
	damage atomic.Pointer[error] // of control.db; nil: none is known
}

// fileName is the name of the file in the data directory.
const fileName = "control.db"

// Format is the version of the whole data directory; control.db has it, because it is read first. Directories of
// version 1.0.0 have the same control.db, but Badger wrote their tables (package badgerdb). A version with one wrong bit is still
// recognised as this one. So the next version must differ in more bits: "10".
const (
	Format       = "5"
	formerFormat = "2"
)

// Close closes the file.
func (d *Data) Close() error {
	if d.db == nil {
		return d.file.Close()
	}
	return errors.Join(d.db.Close(), d.dropCopy())
}

// Sum returns a number that identifies all records. known is false if the record from which it is calculated is damaged:
// then no control data can be changed.
func (d *Data) Sum() (sum uint64, known bool) {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.sums.sum(), d.sums != nil
}

// driver implements rules.Driver.
type driver struct{ *Data }

// Now implements rules.Driver: the memory has all changes.
func (d driver) Now(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	return d.now(), nil
}

// Update implements rules.Driver.
func (d driver) Update(ctx context.Context, build func(rules.Turn) (rules.Change, error)) error {
	return d.change(ctx, build, d.Apply)
}

// change makes a change, and passes its records to apply, before the next one. KindUnavailable: the disk is full, or
// control.db is damaged.
func (d *Data) change(ctx context.Context, build func(rules.Turn) (rules.Change, error), apply func([]rules.Record) error) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := cmp.Or(ctx.Err(), d.frozen); err != nil {
		return err
	}
	c, err := build(rules.Turn{Now: d.now(), LastEntry: d.lastEntry})
	if err == nil && len(c.Records)+len(c.Entries) > 0 {
		err = d.store(c)
	}
	if space.IsFull(err) && !errors.Is(err, store.ErrNeedsRestart) {
		return store.Unavailable("the disk is full")
	}
	if err != nil {
		return err
	}
	return apply(c.Records)
}

// store makes a change on disk. Nothing is written any more
//
//   - after a panic, as bbolt may hold a lock or wrong pages,
//   - after a failed commit. Its meta page may have been written but not synced. Then bbolt would build the next change on
//     this one, which neither the memory nor the sums have. A full disk is no reason while the meta page is the old one.
func (d *Data) store(c rules.Change) error {
	if broken := d.broken.Load(); broken != nil {
		return *broken
	}
	writes, err := writesOf(c)
	if err != nil {
		return err
	}
	var next sums
	var dropped map[store.PartnerID]holding
	returned := false
	var committing int // the transaction whose commit has begun; 0: none
	err = boltfile.CatchDamage(fileName, func() (err error) {
		committing, err = d.update(func(tx *bolt.Tx) (_ []rules.Record, _ sums, err error) {
			next = maps.Clone(d.sums)
			var old []rules.Record
			if old, dropped, err = d.dropOldest(tx, c.Entries); err != nil {
				return nil, nil, err
			}
			writes = slices.Concat(old, writes, documentsOf(tx, c))
			if err = storeAll(tx, next, writes); err == nil && d.Changing != nil {
				err = d.Changing(next.sum())
			}
			return writes, next, err
		})
		returned = true
		return err
	})
	switch {
	case err == nil:
		d.sums = next
		for holder, left := range dropped {
			*d.held[holder] = left
		}
		d.note(c.Entries)
		d.syncCopy()
		if d.Changed != nil {
			d.Changed()
		}
	case !returned:
		err = d.breakOff(err)
	case errors.Is(err, codec.ErrCorrupt) && !errors.Is(err, errCopy): // it needs a damaged record, and others may not
		err = d.noteDamage(err)
	case committing != 0 && !(space.IsFull(err) && isBefore(d.db, committing)):
		err = fmt.Errorf("%w: a change of %s could not be committed: %w", store.ErrNeedsRestart, fileName, err)
		d.broken.Store(&err)
		d.log.Error("a change of control.db could not be committed: until the next start nothing is changed in it, and no event is accepted",
			"error", err)
	}
	return err
}

// breakOff ends all changes, because control.db is damaged. It returns the error of the change that has found that.
func (d *Data) breakOff(damage error) error {
	damage = d.noteDamage(damage)
	d.broken.Store(&damage)
	return damage
}

func (d *Data) noteDamage(damage error) error {
	d.log.Error("control.db is damaged. Nothing that needs the damaged part can be changed. The next start checks the file", "error", damage)
	damage = fmt.Errorf("%w: %w", store.Unavailable("the control data cannot be changed"), damage)
	d.damage.Store(&damage)
	return damage
}

// isBefore reports whether bbolt would build the next change on one before the transaction id.
func isBefore(db *boltfile.DB, id int) bool {
	before := false
	err := db.View(func(tx *bolt.Tx) error {
		before = tx.ID() < id
		return nil
	})
	return err == nil && before
}

// Failure returns a store.ErrNeedsRestart after a failed commit: the control data cannot be changed until a restart. It
// returns nil after damage: a restart might fail. Failure takes no lock, nor does Damage.
func (d *Data) Failure() error {
	if broken := d.broken.Load(); broken != nil && errors.Is(*broken, store.ErrNeedsRestart) {
		return *broken
	}
	return nil
}

// Damage returns the damage of control.db that changes have met. What is in memory is still served.
func (d *Data) Damage() error {
	if damage := d.damage.Load(); damage != nil {
		return *damage
	}
	return nil
}
