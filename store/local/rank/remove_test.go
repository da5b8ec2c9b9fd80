package rank

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// model is the events that an index must have, by merchant.
type model map[codec.MerchantKey][]codec.Event

func (events model) add(more []codec.Event) {
	for _, e := range more {
		events[e.Merchant] = append(events[e.Merchant], e)
	}
}

// remove removes a merchant's events that gone is true for. It returns what an index says that it has removed.
func (events model) remove(m codec.MerchantKey, gone func(e *codec.Event) bool) (removed Removed) {
	events[m] = slices.DeleteFunc(slices.Clone(events[m]), func(e codec.Event) bool {
		if gone(&e) {
			removed.Events++
			removed.Bytes += uint64(e.Size)
			return true
		}
		return false
	})
	return removed
}

func keyOf(e *codec.Event) Key { return Key{e.Time, e.Position} }

// check compares pages, totals and the usage of all merchants with those of the model.
func (events model) check(t *testing.T, rng *rand.Rand, x *Index, when string) {
	t.Helper()
	for m, events := range events {
		bytes := uint64(0)
		for _, e := range events {
			bytes += uint64(e.Size)
		}
		if n, size, err := x.Usage(t.Context(), m); err != nil || n != uint64(len(events)) || size != bytes {
			t.Fatalf("%s: usage is %d events with %d bytes, %v; want %d with %d", when, n, size, err, len(events), bytes)
		}
		want := make([]Key, 0, len(events))
		for _, e := range events {
			want = append(want, keyOf(&e))
		}
		slices.SortFunc(want, Key.compare)
		if got := list(t, x, m); !slices.Equal(got, want) {
			t.Fatalf("%s: %d events, want %d", when, len(got), len(want))
		}
		for range 5 {
			checkRandomPage(t, rng, x, m, events, when)
			checkCounts(t, rng, x, m, events, when)
		}
	}
}

// checkCounts compares a random summary with that of the model.
func checkCounts(t *testing.T, rng *rand.Rand, x *Index, m codec.MerchantKey, events []codec.Event, when string) {
	t.Helper()
	q := store.SummaryQuery{By: []store.SummaryGroup{store.Ungrouped, store.GroupByName, store.GroupByTag}[rng.IntN(3)]}
	if len(events) == 0 {
		if sum, err := x.Summarize(t.Context(), []Kept{{m, math.MinInt64}}, &q); err != nil || sum.All.Total > 0 {
			t.Fatalf("%s: the summary without events is %v, %v", when, sum, err)
		}
		return
	}
	bounds := []int64{events[0].Time, events[0].Time, events[0].Time + 1}
	for range 1 + rng.IntN(40) {
		bounds = append(bounds, events[rng.IntN(len(events))].Time+int64(rng.IntN(2)))
	}
	if rng.IntN(2) == 0 {
		bounds = append(bounds, math.MinInt64, math.MaxInt64)
	}
	slices.Sort(bounds)
	if rng.IntN(2) == 0 {
		q.Tag = "ss_b"
	}
	if rng.IntN(2) == 0 {
		for range 3 {
			_, name := codec.SplitSeries(events[rng.IntN(len(events))].Series)
			q.Names = append(q.Names, string(name))
		}
	}
	if rng.IntN(3) == 0 {
		q.Bot = new(rng.IntN(2) == 0)
	}
	kept := int64(math.MinInt64)
	if rng.IntN(3) == 0 {
		kept = events[rng.IntN(len(events))].Time
	}
	want, all := map[string][]int{}, make([]int, len(bounds)-1)
	for _, e := range events {
		if e.Time < kept {
			continue
		}
		tag, name := codec.SplitSeries(string(e.Series))
		if q.Tag != "" && tag != string(q.Tag) || q.Names != nil && !slices.Contains(q.Names, name) || q.Bot != nil && codec.IsBot(e.Series) != *q.Bot {
			continue
		}
		key := map[store.SummaryGroup]string{store.GroupByName: name, store.GroupByTag: tag}[q.By]
		if want[key] == nil {
			want[key] = make([]int, len(bounds)-1)
		}
		for i, b := range bounds[1:] {
			if bounds[i] <= e.Time && e.Time < b {
				want[key][i]++
				all[i]++
			}
		}
	}
	s := newSummary(&q)
	s.bounds = bounds
	sum, err := x.summarize(t.Context(), []Kept{{m, kept}}, s)
	if err != nil || !slices.Equal(sum.All.ByBuckets, all) {
		t.Fatalf("%s: %+v has the counts %v, %v; want %v", when, q, sum.All.ByBuckets, err, all)
	}
	grouped, most := make([]int, len(all)), math.MaxInt
	for _, g := range sum.Groups {
		if !slices.Equal(g.ByBuckets, want[g.Key]) || g.Total > most || g.Total == 0 {
			t.Fatalf("%s: %+v: %q has %d events by %v: %v; want %v", when, q, g.Key, g.Total, bounds, g.ByBuckets, want[g.Key])
		}
		most = g.Total
		for i, n := range g.ByBuckets {
			grouped[i] += n
		}
	}
	if q.By == store.Ungrouped {
		return
	}
	for i, n := range sum.Other.ByBuckets {
		if grouped[i]+n != all[i] {
			t.Fatalf("%s: %+v: bucket %d has %d events, but the groups have %d and the others %d", when, q, i, all[i], grouped[i], n)
		}
	}
	if sum.Other.Total > 0 && (q.Names != nil || q.By == store.GroupByTag) {
		t.Fatalf("%s: %+v: %d events are in no group", when, q, sum.Other.Total)
	}
}

// checkRandomPage compares a page of a random query.
func checkRandomPage(t *testing.T, rng *rand.Rand, x *Index, m codec.MerchantKey, events []codec.Event, when string) {
	t.Helper()
	q := store.Query{Asc: rng.IntN(2) == 0, SortBy: store.ByTime, Limit: 1 + rng.IntN(100), Offset: rng.IntN(len(events) + 10)}
	if rng.IntN(2) == 0 {
		q.SortBy = store.ByName
	}
	if rng.IntN(3) == 0 {
		q.Tag = []store.TagID{"cs_a", "ss_b"}[rng.IntN(2)]
	}
	if rng.IntN(2) == 0 && len(events) > 0 {
		from, to := time.UnixMicro(events[rng.IntN(len(events))].Time), time.UnixMicro(events[rng.IntN(len(events))].Time)
		q.From, q.To = &from, &to
		q.Offset = rng.IntN(100)
	}
	if rng.IntN(2) == 0 && len(events) > 0 {
		for range 3 {
			_, name := codec.SplitSeries(events[rng.IntN(len(events))].Series)
			q.Names = append(q.Names, string(name))
		}
		q.Offset = rng.IntN(10)
	}
	if rng.IntN(3) == 0 {
		q.Bot = new(rng.IntN(2) == 0)
	}
	var want []named
	for _, e := range events {
		tag, name := codec.SplitSeries(e.Series)
		if q.Tag != "" && string(tag) != string(q.Tag) || q.Names != nil && !slices.Contains(q.Names, string(name)) ||
			q.From != nil && (e.Time < q.From.UnixMicro() || e.Time > q.To.UnixMicro()) ||
			q.Bot != nil && codec.IsBot(e.Series) != *q.Bot {
			continue
		}
		want = append(want, named{string(name), entry{Key: keyOf(&e)}})
	}
	slices.SortFunc(want, func(a, b named) int {
		order := 0
		if q.SortBy == store.ByName {
			if order = (&named{name: a.name}).compare(&named{name: b.name}); order == 0 {
				return b.Key.compare(a.Key) // the newest first
			}
		} else {
			order = a.Key.compare(b.Key)
		}
		if !q.Asc {
			order = -order
		}
		return order
	})
	total := len(want)
	want = want[min(q.Offset, total):min(q.Offset+q.Limit, total)]
	positions := make([]codec.Position, 0, len(want))
	for _, e := range want {
		positions = append(positions, e.Position)
	}
	n, page, err := x.Page(t.Context(), m, NewSelection(q))
	if err != nil || n != uint64(total) || !slices.Equal(page, positions) {
		t.Fatalf("%s: the page of %+v has %d events, total %d, %v; want %d, total %d", when, q, len(page), n, err, len(positions), total)
	}
}

// removals is an index and its model, for random operations.
type removals struct {
	journal
	*Index
	model
	rng *rand.Rand
	dir string
}

// commit applies events of a merchant, at times around the present.
func (r *removals) commit(t *testing.T, m codec.MerchantKey, n int) {
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
func (r *removals) remove(t *testing.T, m codec.MerchantKey) (what string) {
	t.Helper()
	var got, want Removed
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
		got, err = r.RemoveBefore(t.Context(), m, time)
	case 4:
		chunks := []uint64{1 + r.rng.Uint64N(uint64(len(r.commits))), 1 + r.rng.Uint64N(uint64(len(r.commits)))}
		what = fmt.Sprintf("after chunks %d were removed", chunks)
		var found map[codec.MerchantKey][]Key
		if found, err = r.FindChunks(t.Context(), chunks); err == nil {
			want = r.model.remove(m, func(e *codec.Event) bool { return slices.Contains(chunks, e.Seq) })
			got, err = r.Remove(t.Context(), m, found[m])
		}
	default:
		share := []float64{0.001, 0.05, 0.5, 0.98}[r.rng.IntN(4)]
		what = fmt.Sprintf("after %g of the events were removed", share)
		keys := []Key{{Time: 5, Position: codec.Position{Seq: 1, Index: 60_000}}} // no event has it
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

// Whatever is removed, pages, totals and usage are those of the events that are left, with merges, compactions, kills and
// restarts in between.
func TestRemovedEventsAreGone(t *testing.T) {
	for name, madeUp := range map[string]int{"one name": 0, "counted names": 20, "made-up names": 400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 1))
			r := &removals{journal: journal{names: madeUp, maxSeries: 30, bots: true}, model: model{}, rng: rng, dir: t.TempDir()}
			r.reopen(t)
			merchants := []codec.MerchantKey{newMerchant(t), newMerchant(t)}
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
			closeIndex(t, r.Index) // ends compactions
			x := r.open(t, r.dir)
			x.compactor.compactAll(t.Context())
			r.check(t, rng, x, "at the end")
			checkNothingLeftBehind(t, x)
			closeIndex(t, x)
		})
	}
}

// A removal may be cut off after any of its transactions. Then either all of the events are removed or none, the same
// removal can be done again, and nothing is left behind.
func TestARemovalMayBeCutOffAnywhere(t *testing.T) {
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
			_, err := x.RemoveBefore(t.Context(), m, 1000)
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
				x.commit, x.compactor.commit = cutOff, cutOff
				x.compactor.budget = 3000
				err := c.remove(x, keys)
				if err != nil && !errors.Is(err, errCutOff) {
					t.Fatal(err)
				}
				when := fmt.Sprintf("cut off after %d commits", commits)
				if n, _, _ := x.Usage(t.Context(), m); err != nil && n == uint64(len(before[m])) {
					before.check(t, rng, x, when)
				} else {
					after.check(t, rng, x, when)
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
				x.compactor.compactAll(t.Context())
				after.check(t, rng, x, when+", and compacted")
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

// A compaction that has read a segment before events were removed from it is discarded: it would bring them back.
func TestARemovalDuringACompaction(t *testing.T) {
	m := newMerchant(t)
	for name, remove := range map[string]func(x *Index) error{
		"RemoveBefore": func(x *Index) error {
			_, err := x.RemoveBefore(t.Context(), m, 500)
			return err
		},
		"Drop": func(x *Index) error { return x.Drop(t.Context(), m) },
	} {
		j := journal{names: 1000, maxSeries: 3}
		x := j.open(t, t.TempDir())
		for i := range uint64(3) {
			if err := x.Replay(j.commit(m, 1200, func(i int) int64 { return int64(i) }), i+1); err != nil {
				t.Fatal(err)
			}
			if err := x.merge(x.freeze()); err != nil {
				t.Fatal(err)
			}
		}
		c := x.compactor
		from, err := c.due(m)
		if err != nil || from == nil {
			t.Fatalf("no compaction is due, %v", err)
		}
		merged, err := c.write(t.Context(), m, from, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := remove(x); err != nil {
			t.Fatal(err)
		}
		want := list(t, x, m)
		expect := func(when string) {
			t.Helper()
			if got := list(t, x, m); !slices.Equal(got, want) {
				t.Errorf("%s, %s: %d events, want %d", name, when, len(got), len(want))
			}
			for _, tag := range []store.TagID{"cs_a", "ss_b"} { // which have segments of their own
				q := store.Query{Tag: tag, SortBy: store.ByName, Limit: len(want)}
				if total, page, err := x.Page(t.Context(), m, NewSelection(q)); err != nil || total != uint64(len(want)/2) || len(page) != len(want)/2 {
					t.Errorf("%s, %s: %d events of %s, total %d, %v; want %d", name, when, len(page), tag, total, err, len(want)/2)
				}
			}
		}
		if err := c.update(t.Context(), func(w *merger) error { return w.useCompacted(m, from, merged) }); err != nil {
			t.Fatal(err)
		}
		expect("after the compaction")
		c.compactAll(t.Context())
		expect("after the next compaction")
		checkNothingLeftBehind(t, x)
		closeIndex(t, x)
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
	_, err := x.RemoveBefore(t.Context(), m, 100_000) // has the events merged first
	expectAll("unmerged events on a full disk", x, 200, err, unix.ENOSPC)
	full.Store(false)
	removed, err := x.RemoveBefore(t.Context(), m, 50_000)
	if expectAll("once there is space", x, 150, err, nil); removed != (Removed{50, 5000}) {
		t.Errorf("%v removed, want 50 events with 5000 bytes", removed)
	}
	full.Store(true)
	_, err = x.RemoveBefore(t.Context(), m, 100_000)
	expectAll("merged events on a full disk", x, 150, err, unix.ENOSPC)
	full.Store(false)
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = x.RemoveBefore(ended, m, 100_000)
	expectAll("with an ended context", x, 150, err, context.Canceled)
	closeIndex(t, x)
	if err := x.Drop(t.Context(), m); err == nil {
		t.Error("after Close, Drop succeeds")
	}
	if _, err := x.FindChunks(t.Context(), []uint64{1}); err == nil {
		t.Error("after Close, FindChunks succeeds")
	}
	x = j.open(t, dir)
	expectAll("after a restart", x, 150, nil, nil)
	closeIndex(t, x)
}

// However many entries are removed, and in whatever portions, the rest is in nodes that are not nearly empty.
func TestNodesAreJoinedAfterRemovals(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var root child
	var left []entry
	for i := range 30_000 {
		e := entry{Key{rng.Int64N(1 << 30), codec.Position{Seq: 1, Index: uint16(i)}}, uint32(i % 3), uint32(i)}
		left = append(left, e)
		if err := root.insertAtRoot(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	for len(left) > 0 {
		var keys []Key
		n := min(1000, len(left))
		for _, e := range left[:n] {
			keys = append(keys, e.Key)
		}
		left = left[n:]
		slices.SortFunc(keys, Key.compare)
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

// Listings, applying, merges and compactions go on while events are removed; the race detector sees what they share.
func TestRemovalsDisturbNothing(t *testing.T) {
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
