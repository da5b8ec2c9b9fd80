package rank

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// removals is an index and its model, for random operations.
type removals struct {
	journal
	*Index
	model
	rng *rand.Rand
	dir string
}

// commit applies events of a merchant, at times around the present.
func (r *removals) commit(t *testing.T, m store.MerchantKey, n int) {
	t.Helper()
	now := int64(len(r.commits)) * 1000
	events := r.journal.commit(m, n, func(int) int64 {
		if r.rng.IntN(4) == 0 {
			return r.rng.Int64N(now + 1000)
		}
		return now + r.rng.Int64N(1500)
	})
	for i := range events {
		events[i].Size = 1 + uint32(r.rng.IntN(1000))
	}
	r.add(events)
	r.Push(events, events[0].Seq, func() {})
	if err := r.Wait(t.Context(), events[0].Seq); err != nil {
		t.Fatal(err)
	}
}

// remove removes what a random removal removes, from the index and the model.
func (r *removals) remove(t *testing.T, m store.MerchantKey) (what string) {
	t.Helper()
	var got, want uint64
	var err error
	events := r.model[m]
	switch r.rng.IntN(7) {
	case 0:
		what = "after all events were dropped"
		want = r.model.remove(m, func(*codec.Event) bool { return true })
		got, err = want, r.Drop(t.Context(), m)
	case 1, 2, 3:
		time := int64(len(r.commits)) * int64(r.rng.IntN(1200))
		what = fmt.Sprintf("after the events before %d were removed", time)
		want = r.model.remove(m, func(e *codec.Event) bool { return e.Time < time })
		got, _, err = r.RemoveBefore(t.Context(), m, time)
	case 4:
		chunks := []uint64{1 + r.rng.Uint64N(uint64(len(r.commits))), 1 + r.rng.Uint64N(uint64(len(r.commits)))}
		what = fmt.Sprintf("after chunks %d were removed", chunks)
		if err = r.Merge(t.Context()); err != nil {
			t.Fatal(err)
		}
		var found []Key
		if err = r.ScanEvents(t.Context(), m, func(k Key, _ string) {
			if slices.Contains(chunks, k.Seq) {
				found = append(found, k)
			}
		}); err == nil {
			want = r.model.remove(m, func(e *codec.Event) bool { return slices.Contains(chunks, e.Seq) })
			got, err = r.Remove(t.Context(), m, found)
		}
	default:
		share := []float64{0.001, 0.05, 0.5, 0.98}[r.rng.IntN(4)]
		what = fmt.Sprintf("after %g of the events were removed", share)
		keys := []Key{{Time: 5, Position: store.Position{Seq: 1, Index: 60_000}}} // no event has it
		gone := map[Key]bool{}
		for _, e := range events {
			if r.rng.Float64() < share {
				gone[keyOf(&e)] = true
				keys = append(keys, keyOf(&e), keyOf(&e))
			}
		}
		want = r.model.remove(m, func(e *codec.Event) bool { return gone[keyOf(e)] })
		got, err = r.Remove(t.Context(), m, keys)
	}
	if err != nil || got != want {
		t.Fatalf("%s: %v removed, %v; want %v", what, got, err, want)
	}
	return what
}

// open opens the index again. The replay brings back nothing that was removed.
func (r *removals) reopen(t *testing.T) {
	t.Helper()
	r.Index = r.journal.open(t, r.dir)
	r.Index.Start()
}

// Whatever is removed, pages, totals and usage are those of the events that are left, with merges, sweeps, kills and
// restarts in between.
func TestDrillRemovedEventsAreGone(t *testing.T) {
	testenv.Drill(t)
	for name, madeUp := range map[string]int{"one name": 0, "counted names": 20, "made-up names": 400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			r := &removals{journal: journal{names: madeUp, maxSeries: 30, bots: true}, model: model{}, rng: rng, dir: t.TempDir()}
			r.reopen(t)
			merchants := []store.MerchantKey{newMerchant(t), newMerchant(t)}
			for range 40 {
				m := merchants[rng.IntN(len(merchants))]
				when := ""
				switch rng.IntN(8) {
				case 0, 1, 2, 3:
					r.commit(t, m, 1+rng.IntN(1500))
					when = "after a commit"
				case 4, 5:
					if len(r.commits) == 0 {
						continue
					}
					when = r.remove(t, m)
				case 6:
					closeIndex(t, r.Index)
					r.reopen(t)
					when = "after a restart"
				case 7:
					tx, err := r.db.Begin(true) // so that nobody writes while the file is copied
					if err != nil {
						t.Fatal(err)
					}
					copied := copied(t, r.dir)
					if err := tx.Rollback(); err != nil {
						t.Fatal(err)
					}
					closeIndex(t, r.Index)
					r.dir = copied
					r.reopen(t)
					when = "after a kill"
				}
				r.check(t, rng, r.Index, when)
			}
			if err := r.Merge(t.Context()); err != nil {
				t.Fatal(err)
			}
			closeIndex(t, r.Index)
			x := r.open(t, r.dir)
			sweep(t, x)
			r.check(t, rng, x, "at the end")
			checkNothingLeftBehind(t, x)
			closeIndex(t, x)
		})
	}
}

// However many entries are removed, and in whatever portions, the rest is in nodes that are not nearly empty.
func TestDrillNodesAreJoinedAfterRemovals(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(5, 6))
	var root child
	var left []entry
	for i := range 30_000 {
		e := entry{Key{rng.Int64N(1 << 30), store.Position{Seq: 1, Index: uint16(i)}}, uint32(i % 3), uint32(i), ""}
		left = append(left, e)
		if err := root.insertAtRoot(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	for len(left) > 0 {
		n := min(1000, len(left))
		keys := slices.Clone(left[:n])
		left = left[n:]
		slices.SortFunc(keys, byName)
		removed, err := root.removeKeys(keys, nil)
		if err != nil || removed.counts.of(nil) != uint64(n) {
			t.Fatalf("%d of %d entries removed, %v", removed.counts.of(nil), n, err)
		}
		root.cutTop()
		if len(left) == 0 {
			break
		}
		if leaves := checkTree(t, &reader{}, &root); len(leaves) > 1+len(left)/(leafEntries/4) {
			t.Fatalf("%d leaves have %d entries", len(leaves), len(left))
		}
	}
	if !root.isEmpty() {
		t.Error("the tree without entries is not empty")
	}
}

// Listings, applying, merges and sweeps go on while events are removed; the race detector sees what they share.
func TestDrillRemovalsDisturbNothing(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(3, 4))
	r := &removals{journal: journal{names: 300, maxSeries: 30, bots: true}, model: model{}, rng: rng, dir: t.TempDir()}
	r.reopen(t)
	m, other := newMerchant(t), newMerchant(t)
	for range 8 {
		r.commit(t, m, 1000)
	}
	all := r.model[m]
	removed := make(chan error, 1)
	go func() {
		for i := 0; i < len(all); i += 500 {
			var keys []Key
			for _, e := range all[i : i+500] {
				keys = append(keys, keyOf(&e))
			}
			if _, err := r.Remove(t.Context(), m, keys); err != nil {
				removed <- err
				return
			}
		}
		removed <- nil
	}()
	for done := false; !done; {
		r.commit(t, other, 100)
		for _, by := range []store.SortKey{store.ByTime, store.ByName} {
			q := store.Query{SortBy: by, Limit: math.MaxInt}
			if total, page, err := r.Page(t.Context(), m, NewSelection(q)); err != nil || total != uint64(len(page)) || total%500 != 0 {
				t.Fatalf("%d events by %s, total %d, %v; want a multiple of 500", len(page), by, total, err)
			}
		}
		select {
		case err := <-removed:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
		}
	}
	r.model[m] = nil
	r.check(t, rng, r.Index, "at the end")
	closeIndex(t, r.Index)
}

// After a removal, a run knows its bounds again: else each later one, and each page of later events, would read it.
func TestRunsKnowTheirBoundsAfterARemoval(t *testing.T) {
	j := journal{names: 100, maxSeries: 1}
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	x.Start()
	defer closeIndex(t, x)
	j.push(t, x, m, 100)
	bounds := func() (from, to Key) {
		t.Helper()
		testenv.Check(t, x.db.View(func(tx *bolt.Tx) error {
			stored, err := loadTree(tx, m)
			if err == nil && len(stored.runs) != 1 {
				t.Fatalf("there are %d runs", len(stored.runs))
			}
			from, to = stored.runs[0].from, stored.runs[0].to
			return err
		}))
		return from, to
	}
	_, _, err := x.RemoveBefore(t.Context(), m, 50_000)
	testenv.Check(t, err)
	if from, _ := bounds(); from.Time < 50_000 {
		t.Errorf("the run begins at %d", from.Time)
	}
	keys := list(t, x, m)
	_, err = x.Remove(t.Context(), m, keys[len(keys)-10:])
	testenv.Check(t, err)
	left := list(t, x, m)
	if from, to := bounds(); from.compare(left[0]) > 0 || to.compare(keys[len(keys)-11]) > 0 {
		t.Errorf("the run is from %v to %v; events from %v to %v are left", from, to, left[0], left[len(left)-1])
	}
}
