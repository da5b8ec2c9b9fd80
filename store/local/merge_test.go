package local

import (
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
)

// A merge may be several transactions. Cut off after any of them, the next start must find every event once, and the
// merge after it leave nothing behind.
func TestAMergeCutOffLeavesTheIndexWhole(t *testing.T) {
	for name, with := range map[string]struct {
		room   int // of a transaction
		timeOf func(rng *rand.Rand, i int) int64
	}{
		"in order of time": {400, func(_ *rand.Rand, i int) int64 { return int64(i) * 1000 }},
		"from all times":   {3000, func(rng *rand.Rand, _ int) int64 { return rng.Int64N(1 << 40) }},
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
						marks[i] = store.Mark{Merchant: m, Tag: "cs_a", Name: "Name", Time: time.UnixMicro(with.timeOf(rng, recorded)), Raw: []byte("{}")}
						marks[i].Identity.MUID = "u-1"
					}
					if err := e.Record(ctx, marks); err != nil {
						t.Fatal(err)
					}
				}
			}
			dir := t.TempDir()
			e := open(t, dir)
			recordAll(e, 2000)
			closeEngine(t, e) // with a first merge, so that there are nodes to replace

			e = open(t, dir)
			recordAll(e, 500)
			want := map[store.MerchantID][2]store.Page{}
			for _, m := range merchants {
				want[m] = everything(t, e, m)
			}
			cut := copied(t, dir)
			closeEngine(t, e)

			for commits := 0; ; commits++ {
				base := copied(t, cut)
				whole := cutOffMerge(t, base, with.room, commits)
				same := func(e *Engine, when string) {
					t.Helper()
					for _, m := range merchants {
						if got := everything(t, e, m); !reflect.DeepEqual(got, want[m]) {
							t.Errorf("cut off after %d commits, %s: %d events, want %d", commits, when, got[0].Total, want[m][0].Total)
						}
					}
				}
				e := open(t, base)
				same(e, "opened")
				record(t, e, store.NewMerchantID(), 1) // so that there is something to merge
				closeEngine(t, e)                      // which merges
				e = open(t, base)
				same(e, "merged")
				checkNothingLeftBehind(t, e)
				closeEngine(t, e)
				if whole {
					if commits < 4 {
						t.Errorf("a merge of %d transactions is hardly cut off", commits)
					}
					return
				}
			}
		})
	}
}

// replayed returns the index of a directory with what it does not cover in memory, where it stays: nothing is merged.
func replayed(t *testing.T, dir string) (x *index, closeAll func()) {
	t.Helper()
	events, err := openBadger(filepath.Join(dir, "events"), &badgerLog{log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	x, err = openIndex(filepath.Join(dir, "index.db"), events, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return x, func() {
		if err := errors.Join(x.db.Close(), events.Close()); err != nil {
			t.Error(err)
		}
	}
}

// cutOffMerge makes a merge, but only so many of its commits. It reports whether that was all of it.
func cutOffMerge(t *testing.T, dir string, room, commits int) (whole bool) {
	t.Helper()
	x, closeAll := replayed(t, dir)
	defer closeAll()
	errCutOff := errors.New("cut off")
	w := newMerger(x.db, func(tx *bolt.Tx) error {
		if commits == 0 {
			return errCutOff
		}
		commits--
		return tx.Commit()
	})
	w.room = room
	err := w.mergeAll(x.freeze())
	if err != nil && err != errCutOff {
		t.Fatal(err)
	}
	return err == nil
}

// A merge is committed a moment before the index hears of it, and one that failed is tried again.
func TestReadersSeeAMergeOnce(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m, key := newMerchant(t)
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
	errFull := errors.New("the disk is full")
	f := x.freeze()
	for attempt := range 100 {
		commits := 0
		w := newMerger(x.db, func(tx *bolt.Tx) error {
			look("before a commit")
			if commits++; commits > attempt {
				return errFull
			}
			err := tx.Commit()
			look("after a commit")
			return err
		})
		w.room = 100
		err := w.mergeAll(f)
		look("after an attempt")
		if err == nil {
			return
		}
		if err != errFull {
			t.Fatal(err)
		}
	}
	t.Error("it is never done")
}

// On a full disk the index waits, and events are taken and listed meanwhile.
func TestAMergeWaitsForDiskSpace(t *testing.T) {
	e := open(t, t.TempDir())
	var full atomic.Bool
	full.Store(true)
	failed := make(chan struct{}, 100)
	e.index.commit = func(tx *bolt.Tx) error {
		if full.Load() {
			failed <- struct{}{}
			return &fs.PathError{Op: "write", Path: "index.db", Err: unix.ENOSPC}
		}
		return tx.Commit()
	}
	m, key := newMerchant(t)
	record(t, e, m, 300)
	<-failed // at the first merge
	record(t, e, m, 100)
	if err := e.Ready(); err != nil {
		t.Errorf("not ready while the index waits: %v", err)
	}
	if page := everything(t, e, m)[0]; page.Total != 400 {
		t.Errorf("%d events while the index waits, want 400", page.Total)
	}
	full.Store(false)
	merged := func() (done bool) {
		e.index.mu.RLock()
		defer e.index.mu.RUnlock()
		r := e.index.recent[key]
		return r == nil || r.covered > 0
	}
	for deadline := time.Now().Add(time.Minute); !merged(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it waits on though there is space")
		}
	}
	if page := everything(t, e, m)[0]; page.Total != 400 {
		t.Errorf("%d events once merged, want 400", page.Total)
	}
	closeEngine(t, e)
}

// checkNothingLeftBehind compares the stored nodes with those that can be reached.
func checkNothingLeftBehind(t *testing.T, e *Engine) {
	t.Helper()
	if err := e.index.db.View(func(tx *bolt.Tx) error {
		nodes, reachable := tx.Bucket(bucketNodes), 0
		var walk func(m merchantKey, c *child) error
		walk = func(m merchantKey, c *child) error {
			reachable++
			n, err := loadNode(nodes, m, c.id, &nodeArena{})
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
		if lists := tx.Bucket(bucketReplaced).Stats().KeyN; lists != 0 {
			t.Errorf("%d lists of replaced nodes are left", lists)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
