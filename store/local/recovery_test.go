package local

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"mtagd/store"
)

// copied returns a copy of a directory.
func copied(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// crash copies an open engine's files as a kill would leave them, and opens the copy.
func crash(t *testing.T, dir string) *engine {
	t.Helper()
	e := open(t, copied(t, dir))
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func TestACrashLosesNothing(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 700)
	if got, want := everything(t, crash(t, dir), m), everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("before any merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e) // merges
	e = open(t, dir)
	record(t, e, other, 300)
	record(t, e, m, 300)
	after := crash(t, dir)
	for _, m := range []store.MerchantID{m, other} {
		if got, want := everything(t, after, m), everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("after a merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
		}
	}
}

// A missing index is rebuilt from the events. An index that covers events which are gone is refused.
func TestTheIndexMustFitTheEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	before := copied(t, filepath.Join(dir, "events"))
	record(t, e, m, 300)
	want := everything(t, e, m)
	closeEngine(t, e)

	if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("%d events without the index, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e)

	if err := os.RemoveAll(filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(before, filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "index") {
		t.Errorf("with events older than the index, Open gives %v; want an error that names the index", err)
	}
}
