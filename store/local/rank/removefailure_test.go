package rank

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// A removal may be cut off after any of its transactions. Then either all of the events are removed or none, the same
// removal can be done again, and nothing is left behind.
func TestDrillARemovalMayBeCutOffAnywhere(t *testing.T) {
	testenv.Drill(t)
	m := newMerchant(t)
	j := journal{names: 1000, maxSeries: 3}
	dir := t.TempDir()
	for range 3 {
		j.commit(m, 1200, func(i int) int64 { return int64(i) * 7919 % 1200 })
		x := j.open(t, dir)
		if err := x.merge(x.freeze()); err != nil {
			t.Fatal(err)
		}
		closeIndex(t, x)
	}
	everyThird := func(e *codec.Event) bool { return e.Index%3 == 0 }
	for name, c := range map[string]struct {
		gone   func(e *codec.Event) bool
		remove func(x *Index, keys []Key) error
		least  int // commits
	}{
		"Remove": {everyThird, func(x *Index, keys []Key) error {
			_, err := x.Remove(t.Context(), m, keys)
			return err
		}, 4},
		"RemoveBefore": {func(e *codec.Event) bool { return e.Time < 1000 }, func(x *Index, _ []Key) error {
			_, _, err := x.RemoveBefore(t.Context(), m, 1000)
			return err
		}, 1},
		"Drop": {func(*codec.Event) bool { return true }, func(x *Index, _ []Key) error { return x.Drop(t.Context(), m) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			errCutOff := errors.New("cut off")
			before, after := model{}, model{}
			var keys []Key
			for _, events := range j.commits {
				before.add(events)
				after.add(events)
			}
			for _, e := range before[m] {
				if c.gone(&e) {
					keys = append(keys, keyOf(&e))
				}
			}
			after.remove(m, c.gone)
			rng := rand.New(rand.NewPCG(1, 2))
			for commits := 0; ; commits++ {
				dir := copied(t, dir)
				x := j.open(t, dir)
				left := commits
				cutOff := func(tx *bolt.Tx) error {
					if left == 0 {
						return errCutOff
					}
					left--
					return tx.Commit()
				}
				x.commit, x.txBudget = cutOff, 3000
				err := c.remove(x, keys)
				if err != nil && !errors.Is(err, errCutOff) {
					t.Fatal(err)
				}
				when := fmt.Sprintf("cut off after %d commits", commits)
				left = math.MaxInt
				for range 2 {
					if n, _, _ := x.Usage(t.Context(), m); err != nil && n == uint64(len(before[m])) {
						before.check(t, rng, x, when)
					} else {
						after.check(t, rng, x, when)
					}
					sweep(t, x)
					when += ", and swept"
				}
				closeIndex(t, x)

				x = j.open(t, dir) // as after a kill
				x.Start()
				if err := c.remove(x, keys); err != nil {
					t.Fatal(err)
				}
				after.check(t, rng, x, when+", and removed again")
				closeIndex(t, x)
				x = j.open(t, dir)
				sweep(t, x)
				after.check(t, rng, x, when+", and swept")
				checkNothingLeftBehind(t, x)
				closeIndex(t, x)
				if err == nil {
					if commits < c.least {
						t.Errorf("the removal took only %d transactions, too few to test", commits)
					}
					return
				}
			}
		})
	}
}

// A removal that cannot be stored fails, and removes nothing: on a full disk, after Close, and when its context has ended.
func TestARemovalThatFailsRemovesNothing(t *testing.T) {
	var j journal
	m := newMerchant(t)
	dir := t.TempDir()
	x := j.open(t, dir)
	var full atomic.Bool
	x.commit = func(tx *bolt.Tx) error {
		if full.Load() {
			return &fs.PathError{Op: "write", Path: "index.db", Err: unix.ENOSPC}
		}
		return tx.Commit()
	}
	x.Start()
	expectAll := func(what string, x *Index, n int, err, want error) {
		t.Helper()
		if got := len(list(t, x, m)); got != n || !errors.Is(err, want) {
			t.Errorf("%s: %d events, %v; want %d and %v", what, got, err, n, want)
		}
	}
	j.push(t, x, m, 200)
	full.Store(true)
	_, _, err := x.RemoveBefore(t.Context(), m, 100_000) // has the events merged first
	expectAll("unmerged events on a full disk", x, 200, err, unix.ENOSPC)
	full.Store(false)
	removed, _, err := x.RemoveBefore(t.Context(), m, 50_000)
	if expectAll("once there is space", x, 150, err, nil); removed != 50 {
		t.Errorf("%d events removed, want 50", removed)
	}
	if _, bytes, err := x.Usage(t.Context(), m); err != nil || bytes != 15_000 {
		t.Errorf("%d bytes are left, %v; want 15,000: 50 events with 5000 bytes were removed", bytes, err)
	}
	full.Store(true)
	_, _, err = x.RemoveBefore(t.Context(), m, 100_000)
	expectAll("merged events on a full disk", x, 150, err, unix.ENOSPC)
	full.Store(false)
	ended, end := context.WithCancel(t.Context())
	end()
	_, _, err = x.RemoveBefore(ended, m, 100_000)
	expectAll("with an ended context", x, 150, err, context.Canceled)
	closeIndex(t, x)
	if err := x.Drop(t.Context(), m); err == nil {
		t.Error("after Close, Drop succeeds")
	}
	x = j.open(t, dir)
	expectAll("after a restart", x, 150, nil, nil)
	closeIndex(t, x)
}
