package local

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

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
func crash(t *testing.T, dir string) *Engine {
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
	cut := copied(t, dir)
	closeEngine(t, e)

	for done := 0; ; done++ {
		base := copied(t, cut)
		all := cutOffMerge(t, base, func(int) int { return done })
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

// A merge of events from all times replaces more nodes than the root record can list. The lists that it leaves must be
// there as long as a root record names them.
func TestAMergeCutOffLeavesTheListsOfGarbage(t *testing.T) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(5, 6))
	m := store.NewMerchantID()
	scatter := func(e *Engine, n int) {
		for range n / 500 {
			marks := make([]store.Mark, 500)
			for i := range marks {
				marks[i] = store.Mark{Merchant: m, Tag: "cs_a", Name: "Name", Time: time.UnixMicro(rng.Int64N(1 << 40)), Raw: []byte("{}")}
				marks[i].Identity.MUID = "u-1"
			}
			if err := e.Record(marks); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range []int{40_000, 3_000} { // the second merge leaves lists, the third one deletes what they name
		e := open(t, dir)
		scatter(e, n)
		closeEngine(t, e)
	}
	e := open(t, dir)
	scatter(e, 3_000)
	want := everything(t, e, m)
	e.index.mu.RLock()
	for _, r := range e.index.recent {
		if len(r.stored.lists) == 0 {
			t.Error("there are no lists")
		}
	}
	e.index.mu.RUnlock()
	cut := copied(t, dir)
	closeEngine(t, e)
	for _, part := range []float64{0.5, 0.9, 0.99, 1} {
		base := copied(t, cut)
		cutOffMerge(t, base, func(all int) int { return int(part * float64(all)) })
		e := open(t, base)
		if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("after %.2f of a merge: %d events, want %d", part, got[0].Total, want[0].Total)
		}
		closeEngine(t, e)
	}
}

// cutOffMerge replays the chunks and makes only the first writes of a merge, as many as made says. It returns how many
// writes a whole one has.
func cutOffMerge(t *testing.T, dir string, made func(all int) int) (all int) {
	t.Helper()
	var dbs [2]*badger.DB
	for i, opt := range []badger.Options{eventsOptions(dir), indexOptions(dir)} {
		var err error
		if dbs[i], err = openBadger(opt, &badgerLog{log: quiet}); err != nil {
			t.Fatal(err)
		}
		defer dbs[i].Close()
	}
	x := newIndex(dbs[1], &clock{now: time.Now, last: max(dbs[0].MaxVersion(), dbs[1].MaxVersion())})
	if err := x.replay(dbs[0]); err != nil {
		t.Fatal(err)
	}
	w := &merger{db: x.db, clock: x.clock}
	if _, err := w.mergeAll(x.freeze()); err != nil {
		t.Fatal(err)
	}
	all = len(w.writes)
	w.writes = w.writes[:min(made(all), all)]
	if err := w.commit(); err != nil {
		t.Fatal(err)
	}
	return all
}

// The index is made anew from the events where it is gone, and refused where the events are.
func TestTheIndexFollowsTheEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	before := copied(t, filepath.Join(dir, "events"))
	record(t, e, m, 300)
	want := everything(t, e, m)
	closeEngine(t, e)

	if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
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
		t.Errorf("events older than their index are opened: %v", err)
	}
}
