package control

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// A file without its format, but with records, is damaged, and not new.
func TestAMissingFormatIsDamage(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 1)
	want := everything(t, d)
	testenv.Check(t, d.Close())
	path := filepath.Join(dir, fileName)
	remove := func() {
		testenv.Check(t, changeFile(path, func(tx *bolt.Tx) error { return tx.Bucket([]byte(inMeta)).Delete([]byte(keyFormat)) }))
	}
	remove()
	d = openHere(t, dir)
	if got := everything(t, d); !reflect.DeepEqual(got, want) {
		t.Errorf("with the copy there is %v", got)
	}
	testenv.Check(t, d.Close())
	remove() // the copy is in its place
	if d, err := Open(dir, time.Now, quiet); err == nil {
		t.Errorf("without the copy there is %v", everything(t, d))
		testenv.Check(t, d.Close())
	}
}

// A copy is only replaced by a sound file. Else nothing is changed until the next start, which takes it.
func TestADamagedFileIsNotCopied(t *testing.T) {
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 1)
	want := everything(t, d)
	testenv.Check(t, d.dropCopy()) // as after a commit on a full disk
	content, err := os.ReadFile(d.path)
	testenv.Check(t, err)
	f, err := os.OpenFile(d.path, os.O_WRONLY, 0)
	testenv.Check(t, err)
	_, err = f.WriteAt(damageValue(t)(content), 0) // bbolt maps the file
	testenv.Check(t, errors.Join(err, f.Close()))
	for range 2 {
		if _, err := d.AddPartner(t.Context(), "Later"); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("a change gives %v", err)
		}
	}
	testenv.Check(t, d.Close())
	if got := everything(t, open(t, dir)); !reflect.DeepEqual(got, want) {
		t.Errorf("after the next start there is %v", got)
	}
}

// A repair that puts the records of both files together brings back nothing that was deleted after the time of an old copy.
func TestARepairBringsBackNothing(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	d := openHere(t, dir)
	_, err := d.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	gone, err := d.AddPartner(t.Context(), "Gone")
	testenv.Check(t, err)
	older := filesIn(t, dir)
	testenv.Check(t, driver{d}.Update(t.Context(), func(rules.Turn) (rules.Change, error) {
		return rules.Change{Records: []rules.Record{{Kind: rules.Partners, Key: string(gone.ID)}}}, nil
	}))
	last, _ := d.Sum()
	testenv.Check(t, d.Close())
	testenv.Check(t, changeFile(filepath.Join(dir, fileName), func(tx *bolt.Tx) error { return tx.Bucket([]byte(inMeta)).Delete([]byte(keySums)) }))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, copyName), older[1], 0o600))
	damaged, err := OpenReadOnly(dir)
	testenv.Check(t, err)
	testenv.Check(t, errors.Join(damaged.Repair(to, func(string, string) {}, last), damaged.Close()))
	if partners, err := open(t, to).Partners(t.Context()); err != nil || len(partners) != 1 || partners[0].ID == gone.ID {
		t.Errorf("after the repair there are %v, %v", partners, err)
	}
}
