package control

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/space"
	"mtagd/store/rules"
)

// control.copy is a second control.db: each change is committed to both. Damage of one file loses nothing: a start that
// finds control.db damaged puts the copy in its place. A copy that is missing, damaged, older or newer is rewritten when it
// is known that control.db is the newest (KeepCopy), or by the next change.
//
// The copy is written first, but synced last, so a change costs it one sync: a power cut leaves at least control.db whole,
// as it was before the change or after it.
const copyName = "control.copy"

func copyPath(path string) string { return filepath.Join(filepath.Dir(path), copyName) }

// readCopy reads the copy. It fails when anything in the copy is wrong.
func readCopy(path string, as purpose) (*reading, error) {
	f, err := os.Open(copyPath(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readWhole(f, as)
}

// openCopy opens the copy, if it has the records of control.db.
func (d *Data) openCopy() error {
	r, err := readCopy(d.path, toCompare)
	if err != nil || r.wanted.sum() != d.sums.sum() {
		return nil // it is missing, damaged, older or newer
	}
	err = d.useCopy()
	if err == nil || errors.Is(err, store.ErrInUse) { // as of a server, whose control.db was replaced
		return err
	}
	d.log.Error("control.copy cannot be used, and is rewritten", "error", err)
	return nil
}

func (d *Data) useCopy() error {
	db, err := boltfile.OpenChecked(copyPath(d.path), bolt.Options{NoSync: true}, func(*os.File) error { return nil })
	if err != nil {
		return err
	}
	if err := prepare(db, Format, d.sums); err != nil {
		return errors.Join(err, db.Close())
	}
	d.copy = db
	return nil
}

// dropCopy closes the copy. From then on, it may lack what control.db has.
func (d *Data) dropCopy() error {
	if d.copy == nil {
		return nil
	}
	old := d.copy
	d.copy = nil
	return old.Close()
}

// removeCopy removes the copy: the next change goes to control.db alone.
func (d *Data) removeCopy() error {
	return errors.Join(d.dropCopy(), durable.Remove(copyPath(d.path)), durable.SyncPath(filepath.Dir(d.path)))
}

// KeepCopy makes the copy, if there is none. On a full disk the next change does.
func (d *Data) KeepCopy() {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.syncCopy()
}

// syncCopy syncs the copy, or rewrites it. One that cannot be synced does not stay: a power cut could leave it as it was
// before the last change.
func (d *Data) syncCopy() {
	isOld := false
	if d.copy != nil {
		err := d.copy.Sync()
		if err == nil {
			return
		}
		isOld = true
		d.log.Error("control.copy cannot be synced, and is rewritten", "error", errors.Join(err, d.dropCopy()))
	}
	err := d.makeCopy()
	if isOld && err != nil && d.broken.Load() == nil {
		err = errors.Join(err, d.removeCopy())
	}
	if err != nil {
		d.log.Error("control.db has no copy now: damage of it now loses records", "error", err)
	}
}

// makeCopy rewrites the copy. When control.db turns out to be damaged, makeCopy keeps the old copy, which the next start may
// need, and no more changes are accepted.
func (d *Data) makeCopy() error {
	path := copyPath(d.path)
	err := d.db.View(func(tx *bolt.Tx) error {
		if free, err := space.Free(filepath.Dir(path)); err == nil && free < tx.Size() {
			return unix.ENOSPC // otherwise each change would write a part of it until the disk is full
		}
		return durable.Replace(path, func(f *os.File) error {
			if _, err := tx.WriteTo(f); err != nil {
				return err
			}
			r, err := readWhole(f, toCompare)
			if err == nil && r.wanted.sum() != d.sums.sum() {
				err = fmt.Errorf("%w: its records are not those in memory", codec.ErrCorrupt)
			}
			return err
		})
	})
	if errors.Is(err, codec.ErrCorrupt) {
		return d.breakOff(err)
	}
	if err == nil {
		err = d.useCopy()
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", fileName, err)
	}
	return nil
}

// takeCopy puts the copy in the place of control.db, and returns errReplaced; or else it returns why it cannot. It needs no
// space on the disk.
func (d *Data) takeCopy(r *reading, sums []uint64) error {
	c, err := readCopy(d.path, toLoad)
	if err == nil && !c.mayReplace(r, sums) {
		err = errors.New("it is older or newer than control.db: a key that was revoked could be valid again")
	}
	if err != nil {
		return err
	}
	if r != nil {
		for _, p := range r.wrong {
			d.log.Error("control.db is damaged", "problem", p.where()+" "+p.text)
		}
	}
	d.log.Error("control.db is damaged: its copy takes its place, and nothing is lost", "records", c.records, "file", d.path)
	if err := durable.SyncPath(copyPath(d.path)); err != nil { // a kill may have left it unsynced
		return err
	}
	err = errors.Join(os.Rename(copyPath(d.path), d.path), durable.SyncPath(filepath.Dir(d.path)))
	return cmp.Or(err, errReplaced)
}

// mayReplace reports whether a sound file may take the place of a damaged one: it must not be older. sums are the sums that
// the newest records may have, the former one first; empty: unknown.
func (r *reading) mayReplace(damaged *reading, sums []uint64) bool {
	own := r.wanted.sum()
	if len(sums) > 0 && !slices.Contains(sums, own) {
		return false
	}
	newest := damaged.newest()
	if newest == nil || newest.sum() == own {
		return true
	}
	// A kill between the two commits leaves the copy with the change, and control.db without it.
	return slices.Index(sums, own) > slices.Index(sums, newest.sum())
}

// errCopy is in an error that is the copy's: control.db may be sound.
var errCopy = errors.New("control.copy cannot be used")

// update makes a change in both files: build makes it in control.db, and returns the records for the copy, with the new sums.
// The copy is committed first. update returns the number of the transaction of control.db, or 0 if it did not get to commit
// it. The caller syncs the copy.
func (d *Data) update(build func(tx *bolt.Tx) ([]rules.Record, sums, error)) (committing int, err error) {
	err = d.db.Update(func(tx *bolt.Tx) error {
		writes, s, err := build(tx)
		if err == nil {
			err = d.updateCopy(writes, s)
		}
		if err == nil {
			committing = tx.ID()
		}
		return err
	})
	if err != nil && committing != 0 {
		err = errors.Join(err, d.dropCopy()) // it may have what control.db has not
	}
	return committing, err
}

// updateCopy makes a change in the copy. A copy that cannot be read or written is rebuilt, once.
func (d *Data) updateCopy(writes []rules.Record, s sums) error {
	for isAgain := false; ; isAgain = true {
		if d.copy == nil {
			if err := d.makeCopy(); err != nil {
				return err
			}
		}
		id := 0
		err := boltfile.CatchDamage(copyName, func() error {
			return d.copy.Update(func(tx *bolt.Tx) error {
				id = tx.ID()
				return putAll(tx, s, writes)
			})
		})
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%w: %w", errCopy, err)
		if space.IsFull(err) && isBefore(d.copy, id) {
			return err
		}
		if err = errors.Join(err, d.dropCopy()); isAgain {
			return err
		}
		d.log.Warn("control.copy cannot be read or written, and is rebuilt", "error", err)
	}
}
