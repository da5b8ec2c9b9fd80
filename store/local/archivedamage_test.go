package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/durable"
	"mtagd/store/testenv"
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

// damageTable changes two bits of a block in each of the archive's tables: one would be corrected.
func damageTable(dir string) error {
	tables, err := filepath.Glob(filepath.Join(dir, "archive", "*", "*.sst"))
	if err != nil || len(tables) == 0 {
		return fmt.Errorf("tables %v: %w", tables, err)
	}
	for _, table := range tables { // some have no events
		if err := changeFile(table, func(b []byte) { b[500] ^= 5 }); err != nil {
			return err
		}
	}
	return nil
}

// Damage of a table of the archive is found by verify. The next start makes an archive of what can be read.
func TestDrillDamageOfATableOfTheArchive(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	recorded := archivedDirectory(t, dir)
	if found := withoutTags(closedFindings(t, dir)); len(found) > 0 {
		t.Fatalf("before: %+v", found)
	}
	testenv.Check(t, damageTable(dir))
	if found := withoutTags(closedFindings(t, dir)); len(found) == 0 || !strings.Contains(found[0].Problem, ".sst") {
		t.Errorf("verify finds %+v, want the table", found)
	}
	expectRepaired(t, dir, recorded)
}

// A table that is missing costs only what was in it: the next start makes databases of what there is.
func TestAMissingTable(t *testing.T) {
	dir := t.TempDir()
	recorded := archivedDirectory(t, dir)
	for _, database := range []string{"archive", "events/keys"} {
		tables, err := filepath.Glob(filepath.Join(dir, database, "*", "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("tables %v: %v", tables, err)
		}
		for _, table := range tables {
			testenv.Check(t, os.Remove(table))
		}
	}
	expectRepaired(t, dir, recorded)
}

// expectRepaired opens a directory with a damaged archive. It expects that only the events are missing that were noted as lost.
func expectRepaired(t *testing.T, dir string, recorded map[store.MerchantID]int) {
	t.Helper()
	e := open(t, dir)
	missing := func() (missing int) {
		for m, events := range recorded {
			for i, page := range everything(t, e, m) {
				if page.Total != len(page.Events) {
					t.Errorf("a page has %d of %d events", len(page.Events), page.Total)
				}
				if i == 0 {
					missing += events - page.Total
				}
			}
		}
		return missing
	}
	if missing() == 0 { // a listing takes out what it does not find
		t.Error("no events are missing")
	}
	until(t, "everything is verified", func() bool { return e.Impaired() == nil })
	was := missing()
	if lost := lostEvents(e.damage); lost != was {
		t.Errorf("%d events are missing, %d are noted as lost", was, lost)
	}
	findNothing(t, e)
	record(t, e, store.NewMerchantID(), 10)
	archiveAll(t, e)
	closeEngine(t, e)
	e = open(t, dir)
	if lost := lostEvents(e.damage); lost != was {
		t.Errorf("after a restart %d events are noted as lost, want %d", lost, was)
	}
	closeEngine(t, e)
	if durable.Exists(filepath.Join(dir, archivePart)) {
		t.Errorf("%s is left", archivePart)
	}
}

func lostEvents(d *damageLog) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, note := range d.notes {
		n += int(note.Events)
	}
	return n
}

// What a repair that was cut off has written is removed when the database can be opened: nobody would erase what is in it.
func TestALeftoverOfARepair(t *testing.T) {
	dir := t.TempDir()
	archivedDirectory(t, dir)
	leftovers := []string{filepath.Join(dir, archivePart), filepath.Join(dir, "events", "keys.part")}
	for _, path := range leftovers {
		testenv.Check(t, os.CopyFS(path, os.DirFS(filepath.Join(dir, "archive"))))
	}
	closeEngine(t, open(t, dir))
	for _, path := range leftovers {
		if durable.Exists(path) {
			t.Errorf("%s is left", path)
		}
	}
}

// A kill at any step of a repair loses nothing more.
func TestDrillAKillWhileAnArchiveIsRepaired(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	recorded := archivedDirectory(t, dir)
	sound, err := archive.OpenReadOnly(filepath.Join(dir, "archive"), quiet)
	testenv.Check(t, err)
	boundary := sound.Boundary()
	testenv.Check(t, errors.Join(sound.Close(), damageTable(dir)))
	errKilled := errors.New("killed")
	for name, kill := range map[string]func(dir string) error{
		"before the new archive is complete": func(dir string) error {
			return os.CopyFS(filepath.Join(dir, archivePart), os.DirFS(filepath.Join(dir, "archive")))
		},
		"before the new archive counts": func(dir string) error {
			return archive.Rebuild(ctx, filepath.Join(dir, "archive"), boundary, quiet, func(string, error) {}, func() error { return errKilled })
		},
		"before the old one is removed": func(dir string) error {
			return archive.Rebuild(ctx, filepath.Join(dir, "archive"), boundary, quiet, func(string, error) {}, func() error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, dir)
			if err := kill(dir); err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			expectRepaired(t, dir, recorded)
		})
	}
}

// Events that were erased may be back in a repaired archive, so they are erased again.
func TestARebuiltArchiveRepeatsErasures(t *testing.T) {
	testenv.NotShort(t, "time")
	t.Parallel() // it waits for the next attempt
	x := newErasing(t)
	x.visit(x.shop, 50, 20)
	archiveAll(t, x.engine)
	was := x.await(x.erase(byMUID(3), false).ID)
	closeEngine(t, x.engine)
	testenv.Check(t, damageTable(x.dir))
	x.engine = open(t, x.dir)
	findings(t, x.engine.Verify)
	for {
		era, err := x.Erasure(ctx, was.ID)
		testenv.Check(t, err)
		if era.State == store.ErasureDone && era.FinishedAt.After(was.FinishedAt) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	closeEngine(t, x.engine)
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
func TestDrillRepairOfAnArchive(t *testing.T) {
	testenv.Drill(t)
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
		"a block is damaged":     {damageTable, true},
		"the archive is missing": {func(dir string) error { return os.RemoveAll(filepath.Join(dir, "archive")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			damaged, to := copied(t, dir), filepath.Join(t.TempDir(), "repaired")
			testenv.Check(t, c.damage(damaged))
			lost := 0
			testenv.Check(t, Repair(ctx, damaged, to, quiet, func(f store.Finding) { lost += int(f.Events) }))
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
