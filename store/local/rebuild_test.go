package local

import (
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// A listing waits for events that only the rebuilt index gets. It then reads that one.
func TestAListingThatWaitsForAReplacedIndex(t *testing.T) {
	e := open(t, t.TempDir())
	m := store.NewMerchantID()
	record(t, e, m, 100)
	calls := 0
	if err := e.index.withIndex(func(x *usedIndex) error {
		if calls++; calls > 1 {
			return x.wait(ctx, e.journal.Committed())
		}
		e.index.startRebuild(x.Index, codec.ErrCorrupt)
		return x.wait(ctx, e.journal.Committed()+1) // ends when it is replaced
	}); err != nil || calls != 2 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	closeEngine(t, e)
}

// Damage of an index that was replaced meanwhile is not damage of the new one.
func TestDamageOfTheReplacedIndexIsNoDamage(t *testing.T) {
	e := open(t, t.TempDir())
	record(t, e, store.NewMerchantID(), 100)
	old := e.index.now.Index
	for range 2 {
		e.index.startRebuild(old, codec.ErrCorrupt)
		e.index.work.Wait() // for the rebuild
	}
	if n := rebuilds(e); n != 1 {
		t.Errorf("the index was rebuilt %d times, want once", n)
	}
	closeEngine(t, e)
}

// An index of an earlier version is rebuilt, which does not count as damage.
func TestAnIndexOfAnEarlierVersionIsNotDamaged(t *testing.T) {
	dir, m := t.TempDir(), store.NewMerchantID()
	e := open(t, dir)
	record(t, e, m, 100)
	closeEngine(t, e)
	testenv.Check(t, changeBolt(filepath.Join(dir, "index.db"), func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("4"))
	}))
	e = open(t, dir)
	if page, err := listed(e, m); err != nil || page.Total != 100 || rebuilds(e) != 0 {
		t.Errorf("%d events, %v, %d rebuilds after damage", page.Total, err, rebuilds(e))
	}
	closeEngine(t, e)
}
