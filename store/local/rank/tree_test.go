package rank

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sort"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// openMerger returns a merger of an empty file.
func openMerger(t *testing.T) *merger {
	db, err := openFile(filepath.Join(t.TempDir(), "index.db"), bolt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &merger{x: &Index{db: db, maxRun: maxRun}, ctx: t.Context(), budget: txBudget, commit: (*bolt.Tx).Commit}
	if err := w.begin(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.tx.Rollback(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// checkTree compares the first key and the counts of every child with the entries below it. It returns the number of
// entries of each leaf.
func checkTree(t *testing.T, r *reader, root *child) (leaves []int) {
	t.Helper()
	var walk func(c *child) []entry
	walk = func(c *child) (all []entry) {
		n, err := r.node(c)
		if err != nil {
			t.Fatal(err)
		}
		if n.children == nil {
			leaves = append(leaves, len(n.entries))
			all = n.entries
		}
		for i := range n.children {
			all = append(all, walk(&n.children[i])...)
		}
		if all[0].compare(&c.first) < 0 {
			t.Fatalf("entry %v is below a child that begins at %v", all[0], c.first)
		}
		var counted counts
		bytes := uint64(0)
		for _, e := range all {
			counted.add(e.series, 1)
			bytes += uint64(e.size)
		}
		if bytes != c.bytes {
			t.Fatalf("a child has %d bytes, but the entries below it %d", c.bytes, bytes)
		}
		if !slices.Equal(counted, c.counts) {
			t.Fatalf("a child has counts %v, but the entries below it are %v", c.counts, counted)
		}
		return all
	}
	walk(root)
	return leaves
}

// entriesOf returns the entries below c, in their order.
func entriesOf(c *child) (all []entry) {
	for _, leaf := range c.leaves() {
		all = append(all, leaf.node.entries...)
	}
	return all
}

func TestDrillTreeHoldsWhatWasInserted(t *testing.T) {
	testenv.Drill(t)
	orders := map[string]func(rng *rand.Rand, i int) int64{
		"ascending":        func(_ *rand.Rand, i int) int64 { return int64(i) * 1000 },
		"descending":       func(_ *rand.Rand, i int) int64 { return -int64(i) * 1000 },
		"shuffled":         func(rng *rand.Rand, _ int) int64 { return rng.Int64N(1 << 40) },
		"nearly ascending": func(rng *rand.Rand, i int) int64 { return int64(i)*1000 + rng.Int64N(100_000) },
		"all at once":      func(*rand.Rand, int) int64 { return 42 },
		"extremes":         func(rng *rand.Rand, _ int) int64 { return int64(rng.Uint64()) >> 2 },
	}
	for name, timeOf := range orders {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			const n = 30_000 // three levels
			w := openMerger(t)
			var m store.MerchantKey
			var merges uint64
			series := newDictionary(make([]string, 8), maxSeries)
			var recentRoot child
			var want []entry
			for i := range n {
				e := entry{Key{timeOf(rng, i), store.Position{Seq: uint64(1000 + i/5), Index: uint16(i % 5)}}, uint32(rng.IntN(8)), uint32(rng.IntN(300)), ""}
				want = append(want, e)
				if err := recentRoot.insertAtRoot(e, nil); err != nil {
					t.Fatal(err)
				}
				if rng.IntN(2000) == 0 || i == n-1 {
					before := entriesOf(&recentRoot)
					merges++
					if err := w.mergeTree(m, &recentEvents{frozen: eventsInMemory{root: recentRoot}, series: series}, merges); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(entriesOf(&recentRoot), before) {
						t.Fatal("the merge changed the frozen tree")
					}
					recentRoot = child{}
				}
			}
			sort.Slice(want, func(i, j int) bool { return want[i].compare(&want[j]) < 0 })
			stored, err := loadTree(w.tx, m)
			if err != nil {
				t.Fatal(err)
			}
			r := &reader{pages: *newPages(t.Context(), w.tx, m, &nodeArena{}), series: stored.series, trees: []*child{&stored.root}}
			leaves := checkTree(t, r, &stored.root)
			for _, size := range leaves[:len(leaves)-1] {
				if name == "ascending" && size < leafEntries/2 {
					t.Errorf("a leaf has %d entries, want it at least half full", size)
				}
			}
			for range testenv.Rounds(80) {
				compareWithSorted(t, rng, r, want)
			}
		})
	}
}

// Counts and runs are those of all trees together, whether the trees overlap in time or not.
func TestDrillTreesAreReadAsOne(t *testing.T) {
	testenv.Drill(t)
	for name, timeOf := range map[string]func(rng *rand.Rand, i int) int64{
		"one after the other": func(_ *rand.Rand, i int) int64 { return int64(i) - 15_000 },
		"mixed":               func(rng *rand.Rand, _ int) int64 { return int64(rng.Uint64()) >> 4 },
		"all at once":         func(*rand.Rand, int) int64 { return -42 },
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 6))
			const n = 30_000
			var trees [3]child
			var want []entry
			for i := range n {
				e := entry{Key{timeOf(rng, i), store.Position{Seq: uint64(1000 + i/5), Index: uint16(i % 5)}}, uint32(rng.IntN(8)), uint32(rng.IntN(300)), ""}
				want = append(want, e)
				if err := trees[i*len(trees)/n].insertAtRoot(e, nil); err != nil {
					t.Fatal(err)
				}
			}
			sort.Slice(want, func(i, j int) bool { return want[i].compare(&want[j]) < 0 })
			r := &reader{series: make([]string, 8), trees: []*child{&trees[0], &trees[1], &trees[2]}}
			for range 100 {
				compareWithSorted(t, rng, r, want)
			}
		})
	}
}

// compareWithSorted compares a random count and a random run with what the sorted entries give.
func compareWithSorted(t *testing.T, rng *rand.Rand, r *reader, want []entry) {
	t.Helper()
	k := want[rng.IntN(len(want))].Key
	k.Index += uint16(rng.IntN(2))
	before, err := r.before(k)
	if err != nil {
		t.Fatal(err)
	}
	members := make([]bool, len(before))
	for i := range members {
		members[i] = rng.IntN(2) == 0
	}
	counted := make([]uint64, len(before))
	var matching []entry
	for _, e := range want {
		if e.Key.compare(k) < 0 {
			counted[e.series]++
		}
		if members[e.series] {
			matching = append(matching, e)
		}
	}
	if !slices.Equal(before, counted) {
		t.Fatalf("events before %v: %v by series, want %v", k, before, counted)
	}
	from := rng.IntN(len(matching) + 1)
	to := min(len(matching), from+rng.IntN(300))
	all := sources{compare: byKey}
	for _, root := range r.trees {
		if n := int(root.counts.of(members)); n > 0 {
			all.all = append(all.all, &treeSource{pages: &r.pages, series: len(r.series), root: root, sections: []treeSection{{members: members, end: n}}})
		}
	}
	got, err := all.collect(from, to)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(got, matching[from:to], func(a, b entry) bool { return a == b }) {
		t.Fatalf("the run %d ≤ rank < %d of %d events is wrong", from, to, len(matching))
	}
}

func FuzzNode(f *testing.F) {
	first, other := entry{Key{5, store.Position{Seq: 7, Index: 1}}, 2, 300, ""}, entry{Key{1, store.Position{Seq: 2, Index: 3}}, 4, 200, ""}
	firstNamed, otherNamed := first, other
	firstNamed.name, otherNamed.name = "Purchase", "PageView"
	for _, b := range slices.Concat(nodesOf(first), nodesOf(other), nodesOf(firstNamed), nodesOf(otherNamed)) {
		f.Add(b)
	}
	f.Add([]byte{1, 0})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		checkNode(t, b, slices.Concat(nodesOf(other), nodesOf(otherNamed)))
	})
}

// nodesOf returns a leaf and an inner node.
func nodesOf(e entry) [][]byte {
	c := child{first: entry{Key: e.Key, name: e.name}, id: 3, tally: tally{counts{{1, 2}, {9, 1}}, 900}}
	return [][]byte{(&node{entries: []entry{e, e}}).encode(nil), (&node{children: []child{c, c}}).encode(nil)}
}

func checkNode(t *testing.T, b []byte, others [][]byte) {
	arena := &nodeArena{}
	n, err := decodeNode(b, arena)
	if err != nil {
		if !errors.Is(err, codec.ErrCorrupt) {
			t.Fatal(err)
		}
		return
	}
	stored := n.encode(nil)
	for _, b := range others {
		if _, err := decodeNode(b, arena); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(n.encode(nil), stored) {
		t.Fatal("decoding other nodes into the same arena changed the node")
	}
	again, err := decodeNode(stored, arena)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.entries, n.entries) {
		t.Fatalf("entries %v became %v when encoded and decoded again", n.entries, again.entries)
	}
	if len(again.children) != len(n.children) {
		t.Fatalf("%d children became %d when encoded and decoded again", len(n.children), len(again.children))
	}
	for i, c := range n.children {
		if a := again.children[i]; a.first != c.first || a.id != c.id || a.bytes != c.bytes || a.node != nil || !slices.Equal(a.counts, c.counts) {
			t.Fatalf("child %v became %v when encoded and decoded again", c, a)
		}
	}
	arena.reset()
	if again, err = decodeNode(stored, arena); err != nil || !bytes.Equal(again.encode(nil), stored) {
		t.Fatalf("decoding into a reused arena gives another node, %v", err)
	}
}

// A snapshot of a tree in memory stays as it is, whatever is inserted later.
func TestDrillASnapshotDoesNotChange(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(7, 8))
	var root child
	var all []entry
	snapshots := map[int]child{} // by the number of events
	for i := range 20_000 {
		if rng.IntN(1000) == 0 {
			snapshots[i] = root.share()
		}
		e := entry{Key{rng.Int64N(1 << 30), store.Position{Seq: uint64(i)}}, uint32(1 + i%3), uint32(rng.IntN(300)), []string{"", "A", "B"}[rng.IntN(3)]}
		all = append(all, e)
		if err := root.insertAtRoot(e, nil); err != nil {
			t.Fatal(err)
		}
	}
	snapshots[len(all)] = root
	for n, s := range snapshots {
		if s.isEmpty() {
			continue
		}
		want := slices.Clone(all[:n])
		slices.SortFunc(want, byName)
		if !slices.Equal(entriesOf(&s), want) {
			t.Errorf("the snapshot of %d events has others", n)
		}
		checkTree(t, &reader{}, &s)
	}
	if len(snapshots) < 10 {
		t.Errorf("only %d snapshots", len(snapshots))
	}
}
