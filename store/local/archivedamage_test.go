package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mtagd/store"
)

// archivedDirectory makes a directory with archived events of two merchants, and returns them with their numbers of events.
func archivedDirectory(t *testing.T, dir string) map[store.MerchantID]int {
	t.Helper()
	shops := newShops(2)
	e := open(t, dir)
	recordMany(t, e, shops, 60)
	archiveAll(t, e)
	recordMany(t, e, shops, 60)
	archiveAll(t, e)
	pages := recordMany(t, e, shops, 10) // and some in the journal
	closeEngine(t, e)
	return map[store.MerchantID]int{shops[0]: pages[shops[0]][0].Total, shops[1]: pages[shops[1]][0].Total}
}

// damageTable changes neighbouring bytes of a block in the archive's first table. A single wrong bit would be corrected.
func damageTable(dir string) error {
	tables, err := filepath.Glob(filepath.Join(dir, "archive", "*.sst"))
	if err != nil || len(tables) == 0 {
		return fmt.Errorf("tables %v: %w", tables, err)
	}
	return changeFile(tables[0], func(b []byte) { b[1000], b[1004] = b[1000]^0x55, b[1004]^0x55 })
}

// A single wrong bit in a table of the archive is found by verify, and corrected at the next start. More damage is found too.
// The next start then refuses the directory, and names the table: repair keeps what can be read.
func TestDamageOfATableOfTheArchive(t *testing.T) {
	dir := t.TempDir()
	recorded := archivedDirectory(t, dir)
	if found := withoutTags(closedFindings(t, dir)); len(found) > 0 {
		t.Fatalf("before: %+v", found)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "archive", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	if err := changeFile(tables[0], func(b []byte) { b[1000] ^= 4 }); err != nil {
		t.Fatal(err)
	}
	forgetCleanStop(t, dir)
	if found := withoutTags(closedFindings(t, dir)); len(found) == 0 || !strings.Contains(found[0].Problem, filepath.Base(tables[0])) {
		t.Errorf("verify finds %+v, want the table", found)
	}
	e := open(t, dir)
	for m, events := range recorded {
		for _, page := range everything(t, e, m) {
			if page.Total != events || len(page.Events) != events {
				t.Errorf("a page has %d of %d events, want %d", len(page.Events), page.Total, events)
			}
		}
	}
	closeEngine(t, e)
	if found := withoutTags(closedFindings(t, dir)); len(found) > 0 {
		t.Errorf("after the correction: %+v", found)
	}
	if err := damageTable(dir); err != nil {
		t.Fatal(err)
	}
	forgetCleanStop(t, dir)
	if found := withoutTags(closedFindings(t, dir)); len(found) == 0 || !strings.Contains(found[0].Problem, filepath.Base(tables[0])) {
		t.Errorf("verify finds %+v, want the table", found)
	}
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), filepath.Base(tables[0])) {
		t.Errorf("Open gives %v, want an error that names the table", err)
	}
}

// forgetCleanStop makes the next start check all tables of the archive, as it does a while after a stop.
func forgetCleanStop(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, "archive", "closed")); err != nil {
		t.Fatal(err)
	}
}

func withoutTags(all []store.Finding) (found []store.Finding) {
	for _, f := range all {
		if f.Part != store.PartTags {
			found = append(found, f)
		}
	}
	return found
}

// Repair makes a sound directory of each of these, with all events but those that it says are lost.
func TestRepairOfAnArchive(t *testing.T) {
	dir := t.TempDir()
	recorded := archivedDirectory(t, dir)
	all := 0
	for _, n := range recorded {
		all += n
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		lost   bool
	}{
		"nothing is damaged":     {func(string) error { return nil }, false},
		"MANIFEST is missing":    {func(dir string) error { return os.Remove(filepath.Join(dir, "archive", "MANIFEST")) }, false},
		"a block is damaged":     {damageTable, true},
		"the archive is missing": {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "archive")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			damaged, to := copied(t, dir), filepath.Join(t.TempDir(), "repaired")
			if err := c.damage(damaged); err != nil {
				t.Fatal(err)
			}
			lost := 0
			if err := Repair(ctx, damaged, to, quiet, func(f store.Finding) { lost += int(f.Events) }); err != nil {
				t.Fatal(err)
			}
			e := open(t, to)
			defer closeEngine(t, e)
			kept := 0
			for m := range recorded {
				kept += everything(t, e, m)[0].Total
			}
			if kept+lost < all || c.lost != (lost > 0) || kept > all {
				t.Errorf("%d events are in the new directory, %d are reported as lost; there were %d", kept, lost, all)
			}
			findNothing(t, e)
		})
	}
}
