package local

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// crash copies an open engine's files as a kill would leave them, and opens the copy.
func crash(t *testing.T, dir string) *Engine {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	e := open(t, to)
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
	closeEngine(t, e) // which merges
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

// A merge is several transactions. Cut off after any of its writes, the next start must find
// every event once.
func TestAMergeCutOffLeavesTheIndexWhole(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	merchants := []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
	for _, m := range merchants {
		record(t, e, m, 400)
	}
	closeEngine(t, e) // with a first merge, so that there are nodes to replace

	e = open(t, dir)
	for _, m := range merchants {
		record(t, e, m, 300)
	}
	want := map[store.MerchantID][2]store.Page{}
	for _, m := range merchants {
		want[m] = everything(t, e, m)
	}
	cut := t.TempDir()
	if err := os.CopyFS(cut, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)

	for done := 0; ; done++ {
		base := t.TempDir()
		if err := os.CopyFS(base, os.DirFS(cut)); err != nil {
			t.Fatal(err)
		}
		all := cutOffMerge(t, filepath.Join(base, "events"), done)
		e := open(t, base)
		for _, m := range merchants {
			if got := everything(t, e, m); !reflect.DeepEqual(got, want[m]) {
				t.Errorf("after %d of %d writes: %d events, want %d", done, all, got[0].Total, want[m][0].Total)
			}
		}
		record(t, e, merchants[0], 200)
		if got := everything(t, e, merchants[0]); got[0].Total != 900 || len(got[1].Events) != 900 {
			t.Errorf("after %d of %d writes and 200 events more: %d events, want 900", done, all, got[0].Total)
		}
		closeEngine(t, e)
		if done >= all {
			return
		}
	}
}

// cutOffMerge replays the chunks and makes only the first writes of a merge. It returns how many
// writes a whole one has.
func cutOffMerge(t *testing.T, dir string, writes int) (all int) {
	t.Helper()
	db, err := badger.OpenManaged(badgerOptions(dir).WithLogger(&badgerLog{log: quiet}))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	x := newIndex(db, &clock{now: time.Now, last: db.MaxVersion()})
	if err := x.replay(); err != nil {
		t.Fatal(err)
	}
	w := &merger{db: db, clock: x.clock}
	if _, err := w.mergeAll(x.freeze()); err != nil {
		t.Fatal(err)
	}
	all = len(w.writes)
	w.writes = w.writes[:min(writes, all)]
	if err := w.commit(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	txn := e.db.NewTransactionAt(math.MaxUint64, true)
	if err := txn.Set([]byte{prefixFormat}, []byte("99")); err != nil {
		t.Fatal(err)
	}
	if err := txn.CommitAt(e.index.clock.next(), nil); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), `format "99"`) {
		t.Errorf("opening it gives %v", err)
	}
}

func TestACorruptTableIsFatal(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	record(t, e, store.NewMerchantID(), 500)
	closeEngine(t, e)
	tables, err := filepath.Glob(filepath.Join(dir, "events", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	b, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-30] ^= 0xff // in the table's own index
	if err := os.WriteFile(tables[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := Open(dir, Options{Log: quiet}); err == nil {
		closeEngine(t, e.(*Engine))
		t.Error("a data directory with a corrupt table was opened")
	}
}

func TestADirectoryIsOpenedOnce(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer closeEngine(t, e)
	if _, err := Open(dir, Options{Log: quiet}); !errors.Is(err, ErrInUse) {
		t.Errorf("opening it again gives %v, want ErrInUse", err)
	}
}
