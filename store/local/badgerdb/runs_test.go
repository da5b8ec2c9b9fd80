package badgerdb

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/testenv"
)

func TestDrillAKeyFilterHasItsKeysAndFewOthers(t *testing.T) {
	testenv.Drill(t)
	hash := func(n int) uint32 { return y.Hash(binary.BigEndian.AppendUint64(nil, uint64(n))) }
	f := new(keyFilter)
	const keys = 1_000_000
	for n := range keys {
		f.add(hash(n))
	}
	wrong := 0
	for n := range keys {
		if !f.mayHave(hash(n)) {
			t.Fatalf("key %d is missing", n)
		}
		if f.mayHave(hash(keys + n)) {
			wrong++
		}
	}
	if wrong > keys/50 {
		t.Errorf("%d of %d other keys pass", wrong, keys)
	}
}

// Get finds the newest entry, in tables of before and after a merge and an open, and not what was deleted.
func TestGetFindsTheNewestEntry(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	want := map[string]string{}
	key := func(n int) string { return fmt.Sprintf("key %03d", n) }
	checkAll := func(when string) {
		t.Helper()
		for n := range 300 {
			value, found, err := m.Get([]byte(key(n)))
			if was, has := want[key(n)]; err != nil || found != has || found && string(value) != was {
				t.Fatalf("%s: Get(%s) gives %q, %v, %v instead of %q, %v", when, key(n), value, found, err, was, has)
			}
		}
	}
	for round := range 6 {
		m.version++
		check(t, m.Commit(m.version, func(txn *Txn) error {
			for n := round; n < 250; n += 1 + round {
				k, v := key(n), fmt.Sprint("value ", round)
				if n%7 == round {
					delete(want, k)
					txn.Delete([]byte(k))
				} else {
					want[k] = v
					check(t, txn.Set([]byte(k), []byte(v)))
				}
			}
			return nil
		}))
		check(t, m.Flush())
		checkAll(fmt.Sprint("round ", round))
		switch round {
		case 2:
			check(t, m.mergeNewest())
			checkAll("merged")
		case 4:
			m.reopen(dir)
			checkAll("opened")
		}
	}
	if h := m.current().tables.Load(); len(m.parts) < 2 || len(h.added) == 0 {
		t.Errorf("%d parts; the new tables of the last one are in %d runs", len(m.parts), len(h.added))
	}
	check(t, m.Close())
}
