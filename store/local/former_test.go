package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/testenv"
)

// newFormer makes a directory from before 1.0.0 with what an engine has, and returns the engine's contents. Its events are in
// the journal and in the archive, and its links are a muid alone.
func newFormer(t *testing.T) (dir string, m store.MerchantID, want contents) {
	t.Helper()
	x := newErasing(t)
	x.visit(x.shop, 100, 3)
	archiveAll(t, x.engine)
	record(t, x.engine, x.shop, 250)
	want = contentsOf(t, x.engine, x.shop)
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	point := backUp(t, x.engine, x.dir, d, nil)
	closeEngine(t, x.engine)
	points, err := backup.Points(ctx, d)
	testenv.Check(t, err)
	former := &formerTarget{events: formerDB(t, filepath.Join(x.dir, "events")), archive: formerDB(t, filepath.Join(x.dir, "archive"))}
	if _, err := backup.Restore(ctx, d, points, point.Point, nil, CheckEntry, former, nil); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, errors.Join(former.put(former.events, codec.Entry{Key: []byte("F"), Value: []byte("4"), Version: 1}),
		former.put(former.events, codec.Entry{Key: []byte("D"), Value: []byte("x"), Version: 1}),
		former.events.Close(), former.archive.Close(), os.Remove(filepath.Join(x.dir, generationFile))))
	return x.dir, x.shop, want
}

// formerDB makes a database of Badger in place of a directory.
func formerDB(t *testing.T, dir string) *badger.DB {
	t.Helper()
	testenv.Check(t, os.RemoveAll(dir))
	db, err := badger.OpenManaged(badger.DefaultOptions(dir).WithLogger(nil).WithValueThreshold(300).WithMemTableSize(32 << 20))
	testenv.Check(t, err)
	return db
}

// formerTarget writes the entries of a backup as versions before 1.0.0 had them.
type formerTarget struct{ events, archive *badger.DB }

func (f *formerTarget) Control([]byte) error             { return nil }
func (f *formerTarget) Certificate(string, []byte) error { return nil }

func (f *formerTarget) Entry(e codec.Entry) error {
	switch {
	case e.Key[0] == prefixBlock:
		e.Key = e.Key[1:]
		return f.put(f.archive, e)
	case e.Key[0] == prefixBoundary && len(e.Key) == 1:
		return f.put(f.archive, codec.Entry{Key: []byte("S"), Value: codec.Seal([]byte("S"), e.Value), Version: e.Version})
	case e.Key[0] == 'U' || e.Key[0] == 'F':
		return nil
	case e.Key[0] == 'L':
		e.Value = e.Value[len(e.Value)-len(muidOf(0)):]
	}
	return f.put(f.events, e)
}

func (f *formerTarget) put(db *badger.DB, e codec.Entry) error {
	txn := db.NewTransactionAt(e.Version, true)
	defer txn.Discard()
	entry := badger.NewEntry(slices.Clone(e.Key), slices.Clone(e.Value))
	entry.ExpiresAt = e.ExpiresAt
	return errors.Join(txn.SetEntry(entry), txn.CommitAt(max(1, e.Version), nil))
}

// Data from before 1.0.0 is served once more, whatever an upgrade that was killed has left.
func TestDataFromBeforeTheFirstRelease(t *testing.T) {
	former, m, want := newFormer(t)
	for name, killed := range map[string]func(dir string){
		"": func(string) {},
		"before the copy is complete": func(dir string) {
			testenv.Check(t, os.MkdirAll(filepath.Join(dir, upgradingDir, "events", "keys"), 0o700))
		},
		"when the copy is complete": func(dir string) {
			testenv.Check(t, writeFormer(ctx, dir, filepath.Join(dir, upgradingDir), quiet))
		},
		"between two directories": func(dir string) {
			next := filepath.Join(dir, upgradingDir)
			testenv.Check(t, errors.Join(writeFormer(ctx, dir, next, quiet), os.RemoveAll(filepath.Join(dir, "events")),
				os.Rename(filepath.Join(next, "events"), filepath.Join(dir, "events")), os.RemoveAll(filepath.Join(dir, "archive"))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, former)
			killed(dir)
			e := open(t, dir)
			if got := contentsOf(t, e, m); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("it has %d events, want %d, or other ones", got.Pages[0].Total, want.Pages[0].Total)
			}
			again := []store.Mark{newVisit(m, 1, 0), newVisit(m, 1, 2)} // the second one has only its email
			testenv.Check(t, e.Record(ctx, again))
			if again[0].Outcome != store.Duplicate || again[1].Outcome != store.Duplicate || !again[1].ByClaim {
				t.Errorf("events that come again are %+v", again)
			}
			findNothing(t, e)
			closeEngine(t, e)
			if found := withoutTags(closedFindings(t, dir)); len(found) > 0 || durable.Exists(filepath.Join(dir, upgradingDir)) {
				t.Errorf("found: %v", found)
			}
		})
	}
}

// When one of the two databases is missing, or written again already by another version, the other one is left as it is.
func TestHalfOfTheDataFromBeforeTheFirstRelease(t *testing.T) {
	former, _, _ := newFormer(t)
	for _, part := range upgradedParts {
		dir := copied(t, former)
		testenv.Check(t, os.Remove(filepath.Join(dir, part, badger.ManifestFilename)))
		testenv.Check(t, os.MkdirAll(filepath.Join(dir, part, "log"), 0o700))
		if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), filepath.Join(part, badger.ManifestFilename)) {
			t.Errorf("without %s: %v", part, err)
		}
		if !durable.Exists(filepath.Join(dir, part, "log")) || !isFormer(dir) {
			t.Errorf("without %s: the data is gone", part)
		}
	}
}

// When data from before 1.0.0 cannot be read, nothing is changed.
func TestDamagedDataFromBeforeTheFirstRelease(t *testing.T) {
	dir, _, _ := newFormer(t)
	tables, err := filepath.Glob(filepath.Join(dir, "archive", "*.sst"))
	testenv.Check(t, err)
	for _, path := range tables {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		b[len(b)/3] ^= 1
		testenv.Check(t, os.WriteFile(path, b, 0o600))
	}
	if _, err := Open(dir, Options{Log: quiet}); len(tables) == 0 || err == nil || !strings.Contains(err.Error(), "Nothing was lost") {
		t.Errorf("%d tables, %v", len(tables), err)
	}
	if !isFormer(dir) {
		t.Error("the data is gone")
	}
	if err := Repair(ctx, dir, filepath.Join(t.TempDir(), "new"), quiet, func(store.Finding) {}); err == nil || !strings.Contains(err.Error(), "before 1.0.0") {
		t.Errorf("repair: %v", err)
	}
}

// Data from before 1.0.0 that 1.0.0 has opened, and not written whole again, is refused, and not changed.
func TestDataThatTheFirstReleaseHasOpened(t *testing.T) {
	for _, name := range []string{"events/upgrading", "events/keys/MANIFEST", "events/keys/tables", "archive/tables"} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testenv.Check(t, os.WriteFile(path, nil, 0o600))
		_, err := Open(dir, Options{Log: quiet})
		_, controlErr := OpenControl(dir, Options{Log: quiet})
		repairErr := Repair(t.Context(), dir, filepath.Join(t.TempDir(), "new"), quiet, func(store.Finding) {})
		for _, err := range []error{err, controlErr, repairErr} {
			if err == nil || !strings.Contains(err.Error(), "1.0.0") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("%s: there are %v, %v", name, files, err)
		}
	}
}
