package control

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/durable"
)

// control.copy is a second control.db: each change is committed to both, to the copy first. Damage of one file loses nothing: a start that
// finds control.db damaged puts the copy in its place. A copy that is missing, damaged or of another time is made anew when it is known that
// control.db is the newest (KeepCopy), or by the next change.
const copyName = "control.copy"

func copyPath(path string) string { return filepath.Join(filepath.Dir(path), copyName) }

// readCopy reads the copy of a damaged file, of which found was read; nil: it is missing, not complete, or of another time. The caller
// closes it.
func readCopy(path string, found *reading, keep bool) *reading {
	f, err := os.Open(copyPath(path))
	if err != nil {
		return nil
	}
	defer f.Close()
	r, err := read(f, 0, keep)
	if err != nil {
		return nil
	}
	isNewest := found != nil && found.wanted != nil && found.wrote+1 >= found.scan.Txid() // else its pages may be older ones
	if len(r.wrong) > 0 || !r.isComplete() || isNewest && r.wanted.sum() != found.wanted.sum() {
		r.close()
		return nil
	}
	return r
}

// openCopy opens the copy, if it has the records that were found.
func (d *Data) openCopy(found *reading) error {
	if found.scan == nil { // it is new
		return nil
	}
	r := readCopy(d.path, found, false)
	if r == nil {
		return nil
	}
	r.close()
	if found.wanted == nil { // nothing can be changed
		return nil
	}
	return d.useCopy()
}

func (d *Data) useCopy() (err error) {
	if d.copy, err = boltfile.OpenChecked(copyPath(d.path), func(*os.File) error { return nil }); err != nil {
		return err
	}
	return upgrade(d.copy, Format, nil)
}

// dropCopy says that the copy has not what control.db has.
func (d *Data) dropCopy() error {
	if d.copy == nil {
		return nil
	}
	old := d.copy
	d.copy = nil
	return old.Close()
}

// removeCopy removes the copy before control.db gets something that it has not.
func (d *Data) removeCopy() error {
	err := os.Remove(copyPath(d.path))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(d.dropCopy(), err)
}

// KeepCopy makes the copy, if there is none. On a full disk the next change does.
func (d *Data) KeepCopy() {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.copy != nil || d.sums == nil {
		return
	}
	if err := d.makeCopy(); err != nil {
		d.log.Error("control.db has no copy now: damage of it would cost what it hits", "error", err)
	}
}

// makeCopy makes the copy anew.
func (d *Data) makeCopy() error {
	path := copyPath(d.path)
	err := d.db.View(func(tx *bolt.Tx) error {
		return replaceFile(path, func(f *os.File) error {
			_, err := tx.WriteTo(f)
			return err
		})
	})
	if err == nil {
		err = d.useCopy()
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", fileName, err)
	}
	return nil
}

// takeCopy puts the copy in the place of control.db. It returns false when there is none that is complete.
func (d *Data) takeCopy(r *reading) (taken bool, err error) {
	c := readCopy(d.path, r, false)
	if c == nil {
		return false, nil
	}
	defer c.close()
	if r != nil {
		for _, p := range r.wrong {
			d.log.Error("control.db is damaged", "problem", p.where()+" "+p.text)
		}
	}
	d.log.Error("control.db is damaged: its copy takes its place, and nothing is lost", "records", c.records, "file", d.path)
	from, err := os.Open(copyPath(d.path))
	if err != nil {
		return false, err
	}
	defer from.Close()
	return true, replaceFile(d.path, func(f *os.File) error {
		_, err := io.Copy(f, from)
		return err
	})
}

// replaceFile writes a file beside another one, and puts it in its place.
func replaceFile(path string, write func(f *os.File) error) error {
	next := path + boltfile.NewSuffix
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return errors.Join(os.Rename(next, path), durable.SyncPath(filepath.Dir(path)))
}

// transaction is a transaction of control.db, and that of the copy, if there is one.
type transaction struct {
	*bolt.Tx
	copy *bolt.Tx
}

// each calls change with both.
func (t transaction) each(change func(tx *bolt.Tx) error) error {
	err := change(t.Tx)
	if err == nil && t.copy != nil {
		err = change(t.copy)
	}
	return err
}

// update makes a change in both files. The copy is committed before control.db.
func (d *Data) update(change func(t transaction) error) error {
	if d.copy == nil {
		if err := d.makeCopy(); err != nil {
			return err
		}
	}
	second, err := d.copy.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = second.Rollback() }() // does nothing after a commit
	committed := false
	err = d.db.Update(func(tx *bolt.Tx) error {
		if err := change(transaction{tx, second}); err != nil {
			return err
		}
		committed = true
		return second.Commit()
	})
	if committed && err != nil { // the copy may have what control.db has not
		return errors.Join(err, d.dropCopy())
	}
	return err
}
