package local

import (
	"fmt"
	"math"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// A link that is replaced again and again takes the space of one.
func TestCompactionDropsWhatWasReplaced(t *testing.T) {
	dir := t.TempDir()
	m := store.NewMerchantID()
	for start := range 6 { // each close writes a table; so many are due for compaction
		e := open(t, dir)
		for i := range 10 {
			id := store.Identity{MUID: store.MUID(fmt.Sprintf("u-%d-%d", start, i))}
			id.Add(store.Email, "ann@example.com")
			if _, err := e.Resolve(ctx, m, id); err != nil {
				t.Fatal(err)
			}
		}
		closeEngine(t, e)
	}

	e := open(t, dir)
	defer closeEngine(t, e)
	if err := e.db.Flatten(1); err != nil {
		t.Fatal(err)
	}
	if n := storedVersions(e.db, prefixLink); n != 1 {
		t.Errorf("%d versions of the link are stored, want 1", n)
	}
}

// storedVersions counts the values that keys of a prefix have on disk, those that were replaced too.
func storedVersions(db *badger.DB, prefix byte) (n int) {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefix}, AllVersions: true})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		n++
	}
	return n
}
