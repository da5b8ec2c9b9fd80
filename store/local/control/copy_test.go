package control

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
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

// overwrite writes over a part of a file that is open: bbolt maps it.
func overwrite(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	testenv.Check(t, err)
	_, err = f.WriteAt(b, at)
	testenv.Check(t, errors.Join(err, f.Close()))
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
	overwrite(t, d.path, 0, damageValue(t)(content))
	for range 2 {
		if _, err := d.AddPartner(t.Context(), "Later"); !isDamage(err) {
			t.Errorf("a change gives %v", err)
		}
	}
	testenv.Check(t, d.Close())
	if got := everything(t, open(t, dir)); !reflect.DeepEqual(got, want) {
		t.Errorf("after the next start there is %v", got)
	}
}

// isDamage reports whether an error is that of a change that meets damage of control.db.
func isDamage(err error) bool {
	return errors.Is(err, codec.ErrCorrupt) && store.KindOf(err) == store.KindUnavailable
}

// Damage of the copy alone costs no change. What a change meets is made anew.
func TestADamagedCopyIsMadeAnew(t *testing.T) {
	const page = 4096
	fill := openHere(t, t.TempDir())
	filled(t, fill, 2)
	testenv.Check(t, fill.Close())
	content := filesIn(t, filepath.Dir(fill.path))
	zeros := func(at, pages int) func(*testing.T, string) {
		return func(t *testing.T, path string) { overwrite(t, path, int64(at*page), make([]byte, pages*page)) }
	}
	damages := map[string]func(*testing.T, string){
		"a meta page": zeros(0, 1), "the other meta page": zeros(1, 1), "both meta pages": zeros(0, 2),
		"all of it": zeros(0, len(content[1])/page),
		"the end":   func(t *testing.T, path string) { testenv.Check(t, os.Truncate(path, page)) },
	}
	for at := 2; at < len(content[1])/page; at++ {
		damages[fmt.Sprint("page ", at)] = zeros(at, 1)
	}
	for name, damage := range damages {
		dir := t.TempDir()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, fileName), content[0], 0o600))
		testenv.Check(t, os.WriteFile(filepath.Join(dir, copyName), content[1], 0o600))
		var logged bytes.Buffer
		d, err := Open(dir, time.Now, slog.New(slog.NewTextHandler(&logged, nil)))
		testenv.Check(t, err)
		damage(t, copyPath(d.path))
		for i := range 3 {
			if _, err := d.AddPartner(t.Context(), fmt.Sprint("Later ", i)); err != nil {
				t.Errorf("without %s of the copy, a change gives %v", name, err)
			}
		}
		isMet := strings.Contains(logged.String(), "level=WARN")
		if d.Damage() != nil || strings.Contains(logged.String(), "level=ERROR") || !isMet && !strings.HasPrefix(name, "page") && !strings.HasSuffix(name, "meta page") {
			t.Errorf("without %s of the copy, Damage gives %v, and the log is %s", name, d.Damage(), logged.String())
		}
		want := everything(t, d)
		testenv.Check(t, d.Close())
		if isMet || strings.Contains(name, "meta") { // then the copy is sound again
			testenv.Check(t, os.Truncate(d.path, 10))
		}
		d = openHere(t, dir)
		if got := everything(t, d); !reflect.DeepEqual(got, want) {
			t.Errorf("without %s of the copy, after the next start there is %v", name, got)
		}
		testenv.Check(t, d.Close())
	}
}

// A change that needs a damaged part of control.db is refused, and Damage names it.
func TestDamageOfTheFileIsNamed(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, d *Data, m store.MerchantID){
		"a record": func(t *testing.T, d *Data, m store.MerchantID) {
			testenv.Check(t, d.db.Update(func(tx *bolt.Tx) error {
				return tx.Bucket([]byte(rules.Merchants)).Put([]byte(m), []byte("no record with a seal"))
			}))
		},
		"the meta pages": func(t *testing.T, d *Data, _ store.MerchantID) { overwrite(t, d.path, 0, make([]byte, 2*4096)) },
	} {
		d := openHere(t, t.TempDir())
		p, err := d.AddPartner(t.Context(), "Agency")
		testenv.Check(t, err)
		m, err := d.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
		testenv.Check(t, err)
		damage(t, d, m.ID)
		if d.Damage() != nil {
			t.Errorf("%s: Damage gives %v before anything has met it", name, d.Damage())
		}
		if _, err := d.DeleteMerchant(t.Context(), m.ID); !isDamage(err) {
			t.Errorf("%s: a change gives %v", name, err)
		}
		if !errors.Is(d.Damage(), codec.ErrCorrupt) || d.Failure() != nil {
			t.Errorf("%s: Damage gives %v, Failure %v", name, d.Damage(), d.Failure())
		}
		_ = d.Close() // fails without meta pages
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
