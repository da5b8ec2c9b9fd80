package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// Whatever bit of control.db is wrong, every answer is right, and the next change works.
func TestDrillEachWrongBitIsCorrectedOrHasNoEffect(t *testing.T) {
	testenv.Drill(t)
	for _, partners := range []int{1, 20} { // 1: small buckets are inside of the root page
		dir := t.TempDir()
		d := openHere(t, dir)
		filled(t, d, partners)
		merchants, _, err := d.Merchants(t.Context(), store.MerchantQuery{Partner: firstPartner(t, d), Limit: 1})
		testenv.Check(t, err)
		if _, err := d.DeleteMerchant(t.Context(), merchants[0].ID); err != nil { // which leaves free pages
			t.Fatal(err)
		}
		want := everything(t, d)
		testenv.Check(t, d.Close())
		sound, err := os.ReadFile(filepath.Join(dir, fileName))
		testenv.Check(t, err)
		second, err := os.ReadFile(filepath.Join(dir, copyName))
		testenv.Check(t, err)
		random := testenv.Random(t)
		for range testenv.Rounds(15) {
			at, bit := random.IntN(len(sound)), random.IntN(8)
			name := fmt.Sprintf("%d partners, byte %d, bit %d", partners, at, bit)
			sound[at] ^= 1 << bit
			if problem := tryFiles(t, files{sound, second}, want); problem != "" {
				t.Errorf("%s: %s", name, problem)
			}
			sound[at] ^= 1 << bit
		}
	}
}

// One wrong bit of the number of the last transaction makes its meta page look like that of the transaction before the other
// one.
func TestDrillOneWrongBitOfATransactionNumber(t *testing.T) {
	testenv.Drill(t)
	for more := range 2 { // so that either value of the second bit is the older number
		dir := t.TempDir()
		d := openHere(t, dir)
		filled(t, d, 1)
		for range 2 * more {
			if _, err := d.AddPartner(t.Context(), "More"); err != nil {
				t.Fatal(err)
			}
		}
		want := everything(t, d)
		testenv.Check(t, d.Close())
		sound, err := os.ReadFile(filepath.Join(dir, fileName))
		testenv.Check(t, err)
		second, err := os.ReadFile(filepath.Join(dir, copyName))
		testenv.Check(t, err)
		for _, page := range []int{0, os.Getpagesize()} {
			at := page + 16 + 48
			for bit := range 3 {
				sound[at] ^= 1 << bit
				if problem := tryFiles(t, files{sound, second}, want); problem != "" {
					t.Errorf("page at %d, bit %d: %s", page, bit, problem)
				}
				sound[at] ^= 1 << bit
			}
		}
	}
}

// files are the contents of control.db and its copy.
type files [2][]byte

func (f files) in(t *testing.T, dir string) {
	t.Helper()
	for i, name := range []string{fileName, copyName} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), f[i], 0o600))
	}
}

func filesIn(t *testing.T, dir string) (f files) {
	t.Helper()
	for i, name := range []string{fileName, copyName} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		testenv.Check(t, err)
		f[i] = b
	}
	return f
}

// with returns the files with a change in one of them.
func (f files) with(i int, change func(b []byte) []byte) files {
	f[i] = change(slices.Clone(f[i]))
	return f
}

func flip(at, bit int) func([]byte) []byte {
	return func(b []byte) []byte { b[at%len(b)] ^= 1 << bit; return b }
}

// What a start makes of the two files, whatever is wrong with them.
func TestDrillDamageOfEitherFile(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 1)
	former, _ := d.Sum()
	before, older := everything(t, d), filesIn(t, dir)
	keys, err := d.Keys(t.Context(), firstPartner(t, d))
	testenv.Check(t, err)
	_, err = d.RevokeKey(t.Context(), keys[0].ID, true)
	testenv.Check(t, err)
	last, _ := d.Sum()
	want := everything(t, d)
	testenv.Check(t, d.Close())
	sound := filesIn(t, dir)
	const page = 4096
	random := testenv.Random(t)
	try := func(what string, f files, want []any, sums ...uint64) {
		t.Helper()
		if problem := tryFiles(t, f, want, sums...); problem != "" {
			t.Errorf("%s: %s", what, problem)
		}
	}
	refuse := func(what string, f files, sums ...uint64) {
		t.Helper()
		dir := t.TempDir()
		f.in(t, dir)
		if d, err := OpenNewest(dir, time.Now, quiet, func() ([]uint64, error) { return sums, nil }); err == nil || !strings.Contains(err.Error(), fileName) {
			t.Errorf("%s: the start gives %v", what, err)
			if err == nil {
				testenv.Check(t, d.Close())
			}
		}
		if after := filesIn(t, dir); !reflect.DeepEqual(after, f) {
			t.Errorf("%s: the start has changed a file", what)
		}
	}
	for i, name := range []string{fileName, copyName} {
		step := 97 * 5
		if testenv.Rounds(1) > 1 {
			step = 97
		}
		for at := random.IntN(step); at < len(sound[i]); at += step {
			try(fmt.Sprintf("byte %d of %s", at, name), sound.with(i, flip(at, at%8)), want, last)
		}
		for pages := range len(sound[i]) / page {
			try(fmt.Sprintf("%s is cut after %d pages", name, pages), sound.with(i, func(b []byte) []byte { return b[:pages*page+pages%2] }), want, last)
		}
	}
	try("control.db is empty", files{{}, sound[1]}, want, last)
	refuse("control.db is empty, and the copy is cut short", files{{}, sound[1][:8192]}, last)
	try("the files are swapped", files{sound[1], sound[0]}, want, last)
	try("an older copy", files{sound[0], older[1]}, want, last)
	stale := files{sound[0], older[1]}.with(0, damageValue(t))
	refuse("an older copy of a damaged file", stale, last)
	refuse("an older copy of a damaged file, when nothing else is known", stale)
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	refuse("both are cut short", sound.with(0, cut).with(1, cut), last)

	// A kill between the two commits of the revocation.
	between := files{older[0], sound[1]}
	try("a kill between the commits, and a value of control.db", between.with(0, damageValue(t)), want, former, last)
	try("a kill between the commits", between, before, former, last)
	for range testenv.Rounds(30) {
		at := random.IntN(len(older[0]))
		f := between.with(0, flip(at, at%8))
		problem := tryFiles(t, f, want, former, last)
		if unused := problem != "" && tryFiles(t, f, before, former, last) == ""; problem != "" && !unused {
			t.Errorf("a kill between the commits, and byte %d of control.db: %s", at, problem)
		}
	}
	try("a kill between the commits, and the copy is cut short", between.with(1, cut), before, former, last)
	refuse("a kill between the commits, and control.db is damaged, when nothing else is known", between.with(0, damageValue(t)))
}

// damageValue damages a value in use: the sums are still known.
func damageValue(t *testing.T) func([]byte) []byte {
	return func(b []byte) []byte {
		path := filepath.Join(t.TempDir(), fileName)
		for at := range b {
			if at%97 != 0 {
				continue
			}
			b[at] ^= 1
			testenv.Check(t, os.WriteFile(path, b, 0o600))
			f, err := os.Open(path)
			testenv.Check(t, err)
			r, _ := read(f, toCompare)
			testenv.Check(t, f.Close())
			if r.newest() != nil && len(r.wrong) > 0 && r.wrong[0].key != "" {
				return b
			}
			b[at] ^= 1
		}
		t.Fatal("there is no value")
		return nil
	}
}

// When both files are damaged, a repair takes from each what the other has not: damage in different places loses nothing.
func TestDrillRepairOfTwoDamagedFiles(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 3)
	want := everything(t, d)
	sum, _ := d.Sum()
	all, err := d.readAgain(toRepair)
	testenv.Check(t, err)
	testenv.Check(t, d.Close())
	sound := filesIn(t, dir)
	random := testenv.Random(t)
	for range testenv.Rounds(40) {
		dir, to := t.TempDir(), t.TempDir()
		a, b := 2+random.IntN(len(sound[0])/4096-2), 2+random.IntN(len(sound[1])/4096-2)
		zeros := func(page int) func([]byte) []byte {
			return func(b []byte) []byte { clear(b[page*4096 : page*4096+4096]); return b }
		}
		sound.with(0, zeros(a)).with(1, zeros(b)).in(t, dir)
		damaged, err := OpenReadOnly(dir)
		testenv.Check(t, err)
		inBoth := slices.ContainsFunc(all.raw, func(w rules.Record) bool {
			b1, b2 := sound[0][a*4096:a*4096+4096], sound[1][b*4096:b*4096+4096]
			return bytes.Contains(b1, seal(w.Kind, w.Key, w.Value)) && bytes.Contains(b2, seal(w.Kind, w.Key, w.Value))
		})
		lost := 0
		testenv.Check(t, damaged.Repair(to, func(string, string) { lost++ }, sum))
		testenv.Check(t, damaged.Close())
		repaired := openHere(t, to)
		got := everything(t, repaired)
		testenv.Check(t, repaired.Close())
		if same := reflect.DeepEqual(got, want); !same && lost == 0 || !inBoth && (!same || lost > 0) {
			t.Errorf("pages %d and %d: %d things are lost; everything is there: %v", a, b, lost, same)
		}
	}
}

// tryFiles opens control data with these files, and says what is not as it should be.
func tryFiles(t *testing.T, f files, want []any, sums ...uint64) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	testenv.Check(t, err)
	defer os.RemoveAll(dir)
	f.in(t, dir)
	d, err := OpenNewest(dir, time.Now, quiet, func() ([]uint64, error) { return sums, nil })
	if err != nil {
		return err.Error()
	}
	if got := everything(t, d); !reflect.DeepEqual(got, want) {
		return fmt.Sprintf("WRONG: %v\nwant %v", got, want)
	}
	if _, err := d.AddPartner(t.Context(), "New"); err != nil {
		return "change: " + err.Error()
	}
	changed := everything(t, d)
	if err := d.Close(); err != nil {
		return err.Error()
	}
	if d, err = Open(dir, time.Now, quiet); err != nil {
		return "another start: " + err.Error()
	}
	defer d.Close()
	if got := everything(t, d); !reflect.DeepEqual(got, changed) {
		return fmt.Sprintf("WRONG after a change: %v\nwant %v", got, changed)
	}
	return ""
}

func firstPartner(t *testing.T, d *Data) store.PartnerID {
	t.Helper()
	partners, err := d.Partners(t.Context())
	if err != nil || len(partners) == 0 {
		t.Fatal(partners, err)
	}
	return partners[0].ID
}

// A wrong bit in a branch's key of a page hides nothing, but bbolt would lose its way with the next change below that key.
// The next change of tryFiles is below the last key of two branches. Of the other keys as many are tried as of the flips
// above.
func TestDrillAWrongBitInTheKeyOfABranch(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	d := openHere(t, dir)
	filled(t, d, 20)
	want := everything(t, d)
	testenv.Check(t, d.Close())
	sound, err := os.ReadFile(filepath.Join(dir, fileName))
	testenv.Check(t, err)
	second, err := os.ReadFile(filepath.Join(dir, copyName))
	testenv.Check(t, err)
	u32 := func(at int) int { return int(binary.LittleEndian.Uint32(sound[at:])) }
	var last, others []int // the offsets of the elements
	for page := 0; page < len(sound); page += os.Getpagesize() {
		// Only branches.
		if binary.LittleEndian.Uint16(sound[page+8:]) != 1 || binary.LittleEndian.Uint64(sound[page:]) != uint64(page/os.Getpagesize()) {
			continue
		}
		n := int(binary.LittleEndian.Uint16(sound[page+10:]))
		for i := range n - 1 {
			others = append(others, page+16+16*i)
		}
		last = append(last, page+16+16*(n-1))
	}
	if len(last) == 0 {
		t.Error("there is no branch")
	}
	testenv.Random(t).Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for _, element := range append(last, others[:min(len(others), testenv.Rounds(15))]...) {
		end := element + u32(element) + u32(element+4) - 1
		sound[end] ^= 1
		if problem := tryFiles(t, files{sound, second}, want); problem != "" {
			t.Errorf("key at byte %d of page %d: %s", end%os.Getpagesize(), element/os.Getpagesize(), problem)
		}
		sound[end] ^= 1
	}
}

// Verify finds nothing while control data changes all the time.
func TestVerifyBesideChanges(t *testing.T) {
	d := open(t, t.TempDir())
	stop, changed := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				changed <- nil
				return
			default:
				if _, err := d.ReplaceID(); err != nil {
					changed <- err
					return
				}
			}
		}
	}()
	for range 100 {
		if _, err := d.Verify(context.Background(), func(where, problem string) { t.Errorf("%s %s", where, problem) }); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	testenv.Check(t, <-changed)
}
