package rank

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
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

// A merge may be cut off after any of its transactions. The next start must then find every event once, and the next
// merge must leave no unused nodes behind.
func TestDrillAMergeMayBeCutOffAnywhere(t *testing.T) {
	testenv.Drill(t)
	for name, with := range map[string]struct {
		budget int // of a transaction
		names  int // made-up ones
		timeOf func(rng *rand.Rand, i int) int64
	}{
		"in order of time":   {400, 0, func(_ *rand.Rand, i int) int64 { return int64(i) * 1000 }},
		"from all times":     {3000, 0, func(rng *rand.Rand, _ int) int64 { return rng.Int64N(1 << 40) }},
		"with made-up names": {1000, 300, func(_ *rand.Rand, i int) int64 { return int64(i) * 1000 }},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 6))
			merchants := []store.MerchantKey{newMerchant(t), newMerchant(t)}
			j := journal{names: with.names, maxSeries: 3, bots: true}
			recorded := 0
			commit := func(n int) {
				for _, m := range merchants {
					j.commit(m, n, func(int) int64 {
						recorded++
						return with.timeOf(rng, recorded)
					})
				}
			}
			dir := t.TempDir()
			commit(2000)
			x := j.open(t, dir)
			x.Start()
			closeIndex(t, x) // merges, so that there are nodes to replace

			commit(1200) // which replaces the run of the others
			x = j.open(t, dir)
			want := map[store.MerchantKey][]Key{}
			for _, m := range merchants {
				want[m] = list(t, x, m)
			}
			closeIndex(t, x)

			for commits := 0; ; commits++ {
				base := copied(t, dir)
				j := j
				j.commits = slices.Clone(j.commits)
				done := cutOffMerge(t, j.open(t, base), with.budget, commits)
				same := func(x *Index, when string) {
					t.Helper()
					for _, m := range merchants {
						if got := list(t, x, m); !slices.Equal(got, want[m]) {
							t.Errorf("cut off after %d commits, %s: %d events, want %d", commits, when, len(got), len(want[m]))
						}
					}
				}
				x := j.open(t, base)
				same(x, "after the next start")
				x.Start()
				j.push(t, x, newMerchant(t), 1) // so that there is something to merge
				closeIndex(t, x)                // merges
				x = j.open(t, base)
				same(x, "after the next merge")
				sweep(t, x)
				same(x, "after a sweep")
				checkNothingLeftBehind(t, x)
				closeIndex(t, x)
				if done {
					if commits < 4 {
						t.Errorf("the merge took only %d transactions, too few to test", commits)
					}
					return
				}
			}
		})
	}
}

// cutOffMerge merges, but fails after so many commits. Then it closes the index. It reports whether the merge was done
// before that.
func cutOffMerge(t *testing.T, x *Index, budget, commits int) (done bool) {
	t.Helper()
	defer closeIndex(t, x)
	errCutOff := errors.New("cut off")
	w := merger{x: x, ctx: t.Context(), budget: budget, commit: func(tx *bolt.Tx) error {
		if commits == 0 {
			return errCutOff
		}
		commits--
		return tx.Commit()
	}}
	err := w.mergeAll(x.freeze())
	if err != nil && err != errCutOff {
		t.Fatal(err)
	}
	return err == nil
}

// A merge commits a moment before the index drops the frozen events from memory, and a merge that fails is retried. At
// all times readers must see each event once.
func TestReadersSeeEachEventOnceDuringAMerge(t *testing.T) {
	j := journal{names: 50, maxSeries: 3}
	m := newMerchant(t)
	dir := t.TempDir()
	x := j.open(t, dir)
	x.Start()
	for range 10 {
		j.push(t, x, m, 100)
	}
	closeIndex(t, x) // merges
	for range 7 {
		j.commit(m, 100, func(i int) int64 { return int64(i) * 77 })
	}
	x = j.open(t, dir)
	defer closeIndex(t, x)
	expectAll := func(when string) {
		t.Helper()
		if err := x.view(t.Context(), m, func(r *reader) error {
			for _, by := range []store.SortKey{store.ByTime, store.ByName} {
				total, page, err := r.page(NewSelection(store.Query{SortBy: by, Limit: 2000}))
				if err != nil || total != 1700 || len(page) != 1700 {
					t.Errorf("%s: %d events by %s, total %d, %v; want 1700", when, len(page), by, total, err)
				}
			}
			return nil
		}); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	expectAll("before a merge")
	errFull := errors.New("the disk is full")
	f := x.freeze()
	for attempt := range 100 {
		commits := 0
		w := merger{x: x, ctx: t.Context(), budget: 4000, commit: func(tx *bolt.Tx) error {
			expectAll("before a commit")
			if commits++; commits > attempt {
				return errFull
			}
			err := tx.Commit()
			expectAll("after a commit")
			return err
		}}
		err := w.mergeAll(f)
		expectAll("after an attempt")
		if err == nil {
			return
		}
		if err != errFull {
			t.Fatal(err)
		}
	}
	t.Error("the merge is not done after 100 attempts")
}

// Events are applied while a merge runs in another goroutine; the race detector sees what the two share without a lock.
func TestEventsAreAppliedWhileAMergeEnds(t *testing.T) {
	j := journal{names: 50, maxSeries: 3}
	m := newMerchant(t)
	x := j.open(t, t.TempDir())
	defer closeIndex(t, x)
	if err := x.Replay(j.commit(m, 100, func(i int) int64 { return int64(i) }), 1); err != nil {
		t.Fatal(err)
	}
	f := x.freeze()
	merged := make(chan error, 1)
	go func() { merged <- x.merge(f) }()
	for {
		events := j.commit(m, 10, func(i int) int64 { return int64(i) })
		if err := x.apply(events, events[0].Seq); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-merged:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// While the disk is full, merges are retried. Meanwhile events are accepted and listed.
func TestAMergeIsRetriedUntilThereIsDiskSpace(t *testing.T) {
	var j journal
	m := newMerchant(t)
	x := j.open(t, t.TempDir())
	x.mergeInterval = 100 * time.Millisecond
	var full atomic.Bool
	full.Store(true)
	failed := make(chan struct{}, 100)
	x.commit = func(tx *bolt.Tx) error {
		if full.Load() {
			failed <- struct{}{}
			return &fs.PathError{Op: "write", Path: "index.db", Err: unix.ENOSPC}
		}
		return tx.Commit()
	}
	x.Start()
	j.push(t, x, m, 300)
	<-failed // the first merge
	j.push(t, x, m, 100)
	if err := x.Failure(); err != nil {
		t.Errorf("while the disk is full, the index failed: %v", err)
	}
	if n := len(list(t, x, m)); n != 400 {
		t.Errorf("%d events while the disk is full, want 400", n)
	}
	full.Store(false)
	waitMerged(t, x, m)

	if n := len(list(t, x, m)); n != 400 {
		t.Errorf("%d events after the merge, want 400", n)
	}
	closeIndex(t, x)
}

// When the disk is full at the end of a merge during which as much was applied as may be, the index goes on all the same:
// events that were accepted before are applied, all are listed, and the merge is retried.
func TestAFullDiskIsNoFailureWhileMuchIsInMemory(t *testing.T) {
	var j journal
	m := newMerchant(t)
	x := j.open(t, t.TempDir())
	const n, much = 1000, 20_000
	x.mergeInterval, x.mergeEntries = time.Hour, much // a merge begins at so many entries, however slow the machine is
	var full atomic.Bool
	full.Store(true)
	began, goOn := make(chan struct{}, 100), make(chan struct{})
	x.commit = func(tx *bolt.Tx) error {
		began <- struct{}{}
		<-goOn
		if full.Load() {
			return &fs.PathError{Op: "write", Path: "index.db", Err: unix.ENOSPC}
		}
		return tx.Commit()
	}
	x.Start()
	for range much / n {
		j.push(t, x, m, n)
	}
	<-began // the first merge is writing
	for range 2 * much / n {
		j.push(t, x, m, n)
	}
	close(goOn) // the disk is full
	j.push(t, x, m, n)
	if err := x.Merge(t.Context()); !errors.Is(err, unix.ENOSPC) { // the first merge is retried
		t.Errorf("another merge on the full disk gives %v, want ENOSPC", err)
	}
	full.Store(false)
	if err := x.Merge(t.Context()); err != nil {
		t.Errorf("a merge once there is space gives %v", err)
	}
	if total, _, err := x.Page(t.Context(), m, NewSelection(store.Query{Limit: 1})); err != nil || total != 3*much+n {
		t.Errorf("%d events, %v; want %d", total, err, 3*much+n)
	}
	closeIndex(t, x)
}

// waitMerged waits until a merge has stored the merchant's events.
func waitMerged(t *testing.T, x *Index, m store.MerchantKey) {
	t.Helper()
	merged := func() (done bool) {
		x.mu.Lock()
		defer x.mu.Unlock()
		r := x.recent[m]
		return r == nil || r.covered > 0
	}
	for deadline := time.Now().Add(time.Minute); !merged(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is merged though there is space again")
		}
	}
}

// A start on a full disk replays, and lists what it has replayed. The merge comes when there is space.
func TestAReplayOnAFullDiskIsMergedLater(t *testing.T) {
	var j journal
	m := newMerchant(t)
	x := j.open(t, t.TempDir())
	var full atomic.Bool
	full.Store(true)
	attempts := 0
	x.commit = func(tx *bolt.Tx) error {
		if full.Load() {
			attempts++
			return &fs.PathError{Op: "write", Path: "index.db", Err: unix.ENOSPC}
		}
		return tx.Commit()
	}
	replay := func() error {
		events := j.commit(m, 100, func(i int) int64 { return int64(i) * 1000 })
		return x.Replay(events, events[0].Seq)
	}
	// Each attempt to merge begins when there are another mergeEntries, as if there were so many.
	for _, entries := range []int{mergeEntries - 100, 100, mergeEntries - 100, 2*mergeEntries - 100, maxUnmerged - mergeEntries - 100} {
		x.entries = entries
		if err := replay(); err != nil {
			t.Fatalf("on the full disk, Replay with %d entries in memory gives %v", entries, err)
		}
	}
	if attempts != 4 {
		t.Errorf("%d attempts to merge, want 4", attempts)
	}
	if n := len(list(t, x, m)); n != 500 {
		t.Errorf("%d events on the full disk, want 500", n)
	}
	x.entries = maxUnmerged - 100
	if err := replay(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("when as much is in memory as may be, Replay gives %v, want ENOSPC", err)
	}
	x.entries = 500
	full.Store(false)
	x.mergeInterval = 100 * time.Millisecond
	x.Start()
	waitMerged(t, x, m)
	if n := len(list(t, x, m)); n != 600 {
		t.Errorf("%d events once there is space, want 600", n)
	}
	closeIndex(t, x)
}

// sweep deletes what is in no tree.
func sweep(t *testing.T, x *Index) {
	t.Helper()
	if err := x.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// checkNothingLeftBehind checks that every stored node is in a tree, and that no freed subtrees are left.
func checkNothingLeftBehind(t *testing.T, x *Index) {
	t.Helper()
	if err := x.db.View(func(tx *bolt.Tx) error {
		if freed := tx.Bucket(bucketFreed).Stats().KeyN; freed != 0 {
			t.Errorf("%d freed subtrees are left", freed)
		}
		reachable := 0
		if err := tx.Bucket(bucketRoots).ForEach(func(k, _ []byte) error {
			stored, err := loadTree(tx, store.MerchantKey(k))
			if err != nil {
				return err
			}
			nodes := tx.Bucket(bucketNodes)
			err = countNodes(nodes, store.MerchantKey(k), &stored.root, &reachable)
			for i := range stored.runs {
				err = errors.Join(err, countNodes(nodes, store.MerchantKey(k), &stored.runs[i].root, &reachable))
			}
			return err
		}); err != nil {
			return err
		}
		if stored := tx.Bucket(bucketNodes).Stats().KeyN; stored != reachable {
			t.Errorf("%d nodes are stored, but the trees have %d", stored, reachable)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func countNodes(nodes *bolt.Bucket, m store.MerchantKey, c *child, reachable *int) error {
	if c.isEmpty() {
		return nil
	}
	*reachable++
	n, err := loadNode(nodes, m, c.id, &nodeArena{})
	if err != nil {
		return err
	}
	for i := range n.children {
		if err := countNodes(nodes, m, &n.children[i], reachable); err != nil {
			return err
		}
	}
	return nil
}

// On a full disk nothing can be written, and a file must still open.
func TestOpeningAnExistingFileChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.db")
	opened := func() []byte {
		t.Helper()
		x, err := Open(path, quiet)
		testenv.Check(t, err)
		testenv.Check(t, x.Close())
		content, err := os.ReadFile(path)
		testenv.Check(t, err)
		return content
	}
	if created := opened(); !bytes.Equal(opened(), created) {
		t.Error("opening an existing file has changed it")
	}
}

// An index of an earlier format is rebuilt. For verify it is no damage, whatever buckets it has.
func TestAnEarlierFormat(t *testing.T) {
	var j journal
	dir := t.TempDir()
	x := j.open(t, dir)
	if err := x.db.Update(func(tx *bolt.Tx) error {
		return errors.Join(tx.DeleteBucket(bucketFreed), tx.Bucket(bucketMeta).Put([]byte("format"), []byte("3")))
	}); err != nil {
		t.Fatal(err)
	}
	closeIndex(t, x)
	if _, err := Open(filepath.Join(dir, "index.db"), quiet); !errors.As(err, &codec.UnknownFormat{}) {
		t.Fatalf("Open gives %v", err)
	}
	if _, err := OpenReadOnly(filepath.Join(dir, "index.db")); !errors.As(err, &codec.UnknownFormat{}) {
		t.Fatalf("OpenReadOnly gives %v", err)
	}
}

// A merge that replaces many nodes deletes only some in its transaction, which would keep a page of each in memory. The sweeper
// deletes the rest; before it has started, Replay does that.
func TestDrillAMergeLeavesManyReplacedNodesToTheSweeper(t *testing.T) {
	testenv.Drill(t)
	var j journal
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	defer closeIndex(t, x)
	const leaves = deletedAtOnce + 200
	merge := func(n int, timeOf func(i int) int64) {
		t.Helper()
		if err := x.Replay(j.commit(m, n, timeOf), uint64(len(j.commits))); err != nil {
			t.Fatal(err)
		}
		if err := x.merge(x.freeze()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(5) { // an index of an event has 16 bits
		merge(leaves*leafEntries/5, func(at int) int64 { return int64(at)*5 + i })
	}
	if err := x.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	merge(2*leaves, func(i int) int64 { return int64(i) * leafEntries / 2 })
	var freed []freedSubtree
	if err := x.db.View(func(tx *bolt.Tx) (err error) {
		freed, err = loadFreed(tx)
		return err
	}); err != nil || len(freed) < 100 {
		t.Errorf("%d nodes are left to the sweeper, %v", len(freed), err)
	}
	x.mergeEntries = 1
	merge(1, func(i int) int64 { return int64(i) })
	checkNothingLeftBehind(t, x)
	if n, _, err := x.Usage(t.Context(), m); n != leaves*leafEntries/5*5+2*leaves+1 || err != nil {
		t.Errorf("%d events, %v", n, err)
	}
}
