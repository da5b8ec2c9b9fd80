package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"mtagd/store"
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
		parts := inUse(t, dir)
		random := testenv.Random(t)
		refused := 0
		for range testenv.Rounds(15) {
			part := parts[random.IntN(len(parts))]
			at, bit := part[0]+random.IntN(part[1]), random.IntN(8)
			name := fmt.Sprintf("%d partners, byte %d, bit %d", partners, at, bit)
			sound[at] ^= 1 << bit
			if problem := tryFiles(t, sound, second, want); problem != "" {
				t.Errorf("%s: %s", name, problem)
				refused++
			}
			sound[at] ^= 1 << bit
		}
		t.Logf("%d pages in use, %d not repaired", len(parts), refused)
	}
}

// One wrong bit of the number of the last transaction makes its meta page look like that of the transaction before the other one.
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
				if problem := tryFiles(t, sound, second, want); problem != "" {
					t.Errorf("page at %d, bit %d: %s", page, bit, problem)
				}
				sound[at] ^= 1 << bit
			}
		}
	}
}

// tryFiles opens control data with this content and this copy, and says what is not as it should be.
func tryFiles(t *testing.T, content, second []byte, want []any) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	testenv.Check(t, err)
	defer os.RemoveAll(dir)
	testenv.Check(t, errors.Join(os.WriteFile(filepath.Join(dir, fileName), content, 0o600), os.WriteFile(filepath.Join(dir, copyName), second, 0o600)))
	d, err := Open(dir, time.Now, quiet)
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

// inUse returns the offsets and sizes of what is in use in control.db.
func inUse(t *testing.T, dir string) [][2]int {
	t.Helper()
	d, err := OpenReadOnly(dir)
	testenv.Check(t, err)
	defer d.Close()
	r, err := d.readAgain(toLoad)
	testenv.Check(t, err)
	defer r.close()
	return r.scan.InUse()
}

func firstPartner(t *testing.T, d *Data) store.PartnerID {
	t.Helper()
	partners, err := d.Partners(t.Context())
	if err != nil || len(partners) == 0 {
		t.Fatal(partners, err)
	}
	return partners[0].ID
}

// A wrong bit in a branch's key of a page hides nothing, but bbolt would lose its way with the next change below that key. The
// next change of tryFile is below the last key of two branches. Of the other keys as many are tried as of the flips above.
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
	for _, part := range inUse(t, dir) {
		page := part[0]
		if binary.LittleEndian.Uint16(sound[page+8:]) != 1 { // a branch
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
		if problem := tryFiles(t, sound, second, want); problem != "" {
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
