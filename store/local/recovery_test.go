package local

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

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

// A merge may be several transactions. Cut off after any of them, the next start must find every event once, and the
// merges after it leave nothing behind.
func TestAMergeCutOffLeavesTheIndexWhole(t *testing.T) {
	for name, timeOf := range map[string]func(rng *rand.Rand, i int) int64{
		"in order of time": func(_ *rand.Rand, i int) int64 { return int64(i) * 1000 },
		"from all times":   func(rng *rand.Rand, _ int) int64 { return rng.Int64N(1 << 40) },
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 6))
			merchants := []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
			recorded := 0
			recordAll := func(e *Engine, n int) {
				for _, m := range merchants {
					marks := make([]store.Mark, n)
					for i := range marks {
						recorded++
						marks[i] = store.Mark{Merchant: m, Tag: "cs_a", Name: "Name", Time: time.UnixMicro(timeOf(rng, recorded)), Raw: []byte("{}")}
						marks[i].Identity.MUID = "u-1"
					}
					if err := e.Record(marks); err != nil {
						t.Fatal(err)
					}
				}
			}
			dir := t.TempDir()
			e := open(t, dir)
			recordAll(e, 4000)
			closeEngine(t, e) // with a first merge, so that there are nodes to replace

			e = open(t, dir)
			recordAll(e, 1000)
			want := map[store.MerchantID][2]store.Page{}
			for _, m := range merchants {
				want[m] = everything(t, e, m)
			}
			cut := copied(t, dir)
			closeEngine(t, e)

			states := map[int]bool{} // by the nodes that are stored
			for _, room := range []int{100, 1000, 10_000, mergeRoom} {
				base := copied(t, cut)
				states[cutOffMerge(t, base, room)] = true
				e := open(t, base)
				for _, m := range merchants {
					if got := everything(t, e, m); !reflect.DeepEqual(got, want[m]) {
						t.Errorf("transactions of %d entries: %d events, want %d", room, got[0].Total, want[m][0].Total)
					}
				}
				closeEngine(t, e) // which merges
				e = open(t, base)
				checkNothingLeftBehind(t, e)
				if got := everything(t, e, merchants[0]); !reflect.DeepEqual(got, want[merchants[0]]) {
					t.Errorf("transactions of %d entries, merged: %d events, want %d", room, got[0].Total, want[merchants[0]][0].Total)
				}
				closeEngine(t, e)
			}
			if len(states) < 3 {
				t.Errorf("merges were cut off at %d places only", len(states))
			}
		})
	}
}

// replayed returns the index of a directory with what it does not cover in memory, where it stays: nothing is merged.
func replayed(t *testing.T, dir string) (x *index, closeAll func()) {
	t.Helper()
	events, err := openEvents(filepath.Join(dir, "events"), &badgerLog{log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	db, err := openIndexFile(filepath.Join(dir, "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	x = newIndex(db)
	if err := x.replay(events); err != nil {
		t.Fatal(err)
	}
	return x, func() {
		if err := errors.Join(db.Close(), events.Close()); err != nil {
			t.Error(err)
		}
	}
}

// cutOffMerge makes all of a merge but its last transaction. It returns how many nodes are stored then.
func cutOffMerge(t *testing.T, dir string, room int) (nodes int) {
	t.Helper()
	x, closeAll := replayed(t, dir)
	defer closeAll()
	w := &merger{db: x.db, room: room}
	if _, err := w.mergeAll(x.freeze()); err != nil {
		t.Fatal(err)
	}
	if err := w.tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := x.db.View(func(tx *bolt.Tx) error {
		nodes = tx.Bucket(bucketNodes).Stats().KeyN
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return nodes
}

// A merge is committed a moment before the index hears of it.
func TestReadersSeeAMergeOnce(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	key, err := newMerchantKey(m)
	if err != nil {
		t.Fatal(err)
	}
	record(t, e, m, 1000)
	closeEngine(t, e) // which merges
	e = open(t, dir)
	record(t, e, m, 700)
	cut := copied(t, dir)
	closeEngine(t, e)

	x, closeAll := replayed(t, cut)
	defer closeAll()
	look := func(when string) {
		t.Helper()
		if err := x.view(key, func(r *reader) error {
			all, err := r.before(entryKey{time: math.MaxInt64})
			if n := sum(all, nil); n != 1700 {
				t.Errorf("%s: %d events, want 1700", when, n)
			}
			return err
		}); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	look("before a merge")
	w := &merger{db: x.db, room: 100}
	if _, err := w.mergeAll(x.freeze()); err != nil {
		t.Fatal(err)
	}
	look("during a merge")
	if err := w.tx.Commit(); err != nil {
		t.Fatal(err)
	}
	look("after its commit")
}

// checkNothingLeftBehind compares the stored nodes with those that can be reached.
func checkNothingLeftBehind(t *testing.T, e *Engine) {
	t.Helper()
	if err := e.index.db.View(func(tx *bolt.Tx) error {
		nodes, reachable := tx.Bucket(bucketNodes), 0
		var walk func(m merchantKey, c *child) error
		walk = func(m merchantKey, c *child) error {
			reachable++
			n, err := loadNode(nodes, m, c.id)
			if err != nil {
				return err
			}
			for i := range n.children {
				if err := walk(m, &n.children[i]); err != nil {
					return err
				}
			}
			return nil
		}
		if err := tx.Bucket(bucketRoots).ForEach(func(k, _ []byte) error {
			m := merchantKey(k)
			stored, err := loadTree(tx, m)
			if err != nil {
				return err
			}
			return walk(m, &stored.root)
		}); err != nil {
			return err
		}
		if stored := nodes.Stats().KeyN; stored != reachable {
			t.Errorf("%d nodes are stored, %d can be reached", stored, reachable)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("events older than their index are opened: %v", err)
	}
}
