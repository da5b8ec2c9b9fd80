package local

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/testenv"
)

// damageKey damages a key in control.db.
func damageKey(dir string) error {
	return changeBolt(filepath.Join(dir, "control.db"), func(tx *bolt.Tx) error {
		keys := tx.Bucket([]byte("keys"))
		key, _ := keys.Cursor().First()
		return keys.Put(slices.Clone(key), []byte("{"))
	})
}

// junkInUnusedLog writes junk to the header of the file of the log that is not used yet.
func junkInUnusedLog(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "events", "log", "*.log"))
	if err != nil || len(paths) < 2 {
		return fmt.Errorf("%d files of the log, %w", len(paths), err)
	}
	return changeFile(paths[len(paths)-1], func(b []byte) { copy(b, bytes.Repeat([]byte{0xaa}, 512)) })
}

// Repair makes a sound directory of each of these damaged ones, with everything but what it says is lost, and does not change
// the old one.
func TestDrillRepair(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	merchants := soundDirectory(t, dir)
	killed := copiedWhileOpen(t, dir, merchants[0])
	recorded := func(dir string) map[store.MerchantID]store.Page {
		e := open(t, dir)
		defer closeEngine(t, e)
		all := map[store.MerchantID]store.Page{}
		for _, m := range merchants {
			all[m] = everything(t, e, m)[0]
		}
		return all
	}
	original := recorded(copied(t, killed))
	tables := func(dir string) []string {
		paths, err := filepath.Glob(filepath.Join(dir, "events", "keys", "*", "*.sst"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no tables, %v", err)
		}
		return paths
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		lost   int    // events
		says   string // one of what is lost; "": nothing is
	}{
		"nothing is damaged":  {func(string) error { return nil }, 0, ""},
		"index.db is missing": {func(dir string) error { return os.Remove(filepath.Join(dir, "index.db")) }, 0, "index.db"},
		"all tables are missing": {func(dir string) error { // the chunks are in the log
			var errs []error
			for _, table := range tables(dir) {
				errs = append(errs, os.Remove(table))
			}
			return errors.Join(errs...)
		}, 0, ""},
		"a table is damaged": {func(dir string) error {
			var errs []error
			for _, table := range tables(dir) {
				errs = append(errs, changeFile(table, func(b []byte) { b[10] ^= 0xff }))
			}
			return errors.Join(errs...)
		}, 0, ".sst"},
		"a record of the log is damaged":       {func(dir string) error { return damageChunk(dir, `{"n":`) }, 100, "is missing; merchant"},
		"an unused file of the log is damaged": {junkInUnusedLog, 0, ""},
		"a key is damaged":                     {damageKey, 0, ""}, // the copy has it
		"control.db is missing":                {func(dir string) error { return os.Remove(filepath.Join(dir, "control.db")) }, 0, ""},
		"control.db is cut short":              {func(dir string) error { return os.Truncate(filepath.Join(dir, "control.db"), 10) }, 0, ""},
		"a key is damaged in both files": {func(dir string) error {
			return errors.Join(damageKey(dir), os.Remove(filepath.Join(dir, "control.copy")))
		}, 0, "keys"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, to := copied(t, killed), filepath.Join(t.TempDir(), "new")
			testenv.Check(t, c.damage(dir))
			before := fileSums(t, dir)
			var lost []store.Finding
			testenv.Check(t, Repair(ctx, dir, to, quiet, func(f store.Finding) { lost = append(lost, f) }))
			if c.says == "" && lost != nil || c.says != "" && !slices.ContainsFunc(lost, func(f store.Finding) bool {
				return strings.Contains(f.Where+" "+f.Problem+"; merchant", c.says)
			}) {
				t.Errorf("it says that this is lost: %v, want %q", lost, c.says)
			}
			if after := fileSums(t, dir); !maps.Equal(before, after) {
				t.Errorf("repair has changed files: %v, before %v", after, before)
			}
			if found := closedFindings(t, to); found != nil {
				t.Errorf("the new directory is not sound: %v", found)
			}
			said, missing := uint64(0), 0
			for _, f := range lost {
				said += f.Events
			}
			for m, page := range recorded(to) {
				missing += original[m].Total - page.Total
				if c.lost == 0 && !reflect.DeepEqual(page, original[m]) {
					t.Errorf("%d events, want %d", page.Total, original[m].Total)
				}
			}
			if missing > c.lost || c.lost > 0 && missing == 0 || said != uint64(missing) {
				t.Errorf("%d events are missing, want at most %d; it says %d", missing, c.lost, said)
			}
			if err := Repair(ctx, dir, to, quiet, nil); store.KindOf(err) != store.KindInvalid {
				t.Errorf("into a directory with files: %v, want KindInvalid", err)
			}
		})
	}
}

// A repair that is killed at any moment leaves a directory that cannot be opened and says what to do, or one that is complete. The
// next repair begins again.
func TestDrillARepairThatIsKilled(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	merchants := soundDirectory(t, dir)
	to, ended := filepath.Join(t.TempDir(), "new"), make(chan error)
	go func() { ended <- Repair(ctx, dir, to, quiet, func(store.Finding) {}) }()
	var killed []string
	for done := false; !done; {
		select {
		case err := <-ended:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
		at := filepath.Join(t.TempDir(), "new")
		if err := copyFiles(to, at); err == nil { // else a file was removed meanwhile
			killed = append(killed, at)
		}
	}
	refused := 0
	for i, at := range killed {
		opened, err := Open(at, Options{Log: quiet})
		if err != nil {
			if refused++; !strings.Contains(err.Error(), "mtagd repair") || !strings.Contains(err.Error(), "run it again") {
				t.Fatalf("a repair that was killed: %v", err)
			}
			continue
		}
		e := opened.(*engine)
		for _, m := range merchants {
			if n := everything(t, e, m)[0].Total; n != 2000 {
				t.Errorf("copy %d of %d was opened with %d events, want 2000", i, len(killed), n)
			}
		}
		closeEngine(t, e)
	}
	if refused < 2 {
		t.Errorf("of %d copies %d were refused", len(killed), refused)
	}
	if err := Repair(ctx, dir, killed[refused/2], quiet, func(store.Finding) {}); err != nil {
		t.Error(err)
	}
	closeEngine(t, open(t, killed[refused/2]))
}

// copiedWhileOpen records more events, and returns a copy of the directory as a kill leaves it.
func copiedWhileOpen(t *testing.T, dir string, m store.MerchantID) string {
	t.Helper()
	e := open(t, dir)
	page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 1})
	if err != nil || page.Total == 0 {
		t.Fatal(page, err)
	}
	tags, err := e.Merchant(ctx, m)
	testenv.Check(t, err)
	mark := newMark(m, "Later", 5, bytes.Repeat([]byte(`{"a":1}`), 1))
	mark.Tag = tags.Tags[0].ID
	testenv.Check(t, e.Record(ctx, []store.Mark{mark}))
	killed := copied(t, dir)
	closeEngine(t, e)
	return killed
}

// A repaired directory knows the erasures, does them again, and refuses events of the persons; it has the default retention too.
func TestRepairRepeatsErasures(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 10, 2)
	done := x.await(x.erase(byMUID(3), true).ID)
	testenv.Check(t, x.SetDefaultRetention(ctx, 1000))
	oldID, err := x.ID()
	testenv.Check(t, err)
	closeEngine(t, x.engine)
	to := filepath.Join(t.TempDir(), "repaired")
	testenv.Check(t, Repair(ctx, x.dir, to, quiet, func(f store.Finding) { t.Errorf("lost: %+v", f) }))
	x.engine = open(t, to)
	if again := x.await(done.ID); !again.FinishedAt.After(done.FinishedAt) {
		t.Errorf("the erasure was not done again: %+v", again)
	}
	marks := []store.Mark{newVisit(x.shop, 3, 9)}
	testenv.Check(t, x.Record(ctx, marks))
	if marks[0].Outcome != store.Suppressed {
		t.Errorf("an event of the erased person: %v", marks[0].Outcome)
	}
	if r := x.RetentionOf(""); r != 1000 {
		t.Errorf("the default retention is %d", r)
	}
	if id, err := x.ID(); err != nil || id == oldID {
		t.Errorf("the id %q is the old one; %v", id, err)
	}
	closeEngine(t, x.engine)
}
