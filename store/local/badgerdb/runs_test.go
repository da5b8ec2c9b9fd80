package badgerdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// A table is sorted by key, whatever the owners of the keys are, and the entries of a key by version.
func TestSortedIsTheOrderOfKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var m memTable
	var want [][]byte // keys in the byte form of tables, which sorts newer versions first
	for range 5000 {
		key := make([]byte, r.IntN(ownerBytes+10))
		for i := range key {
			key[i] = byte(r.IntN(2)) * 255 // so that many begin alike
		}
		version := uint64(r.IntN(3))
		m.add(key, entry{version: version})
		want = append(want, y.KeyWithTs(key, version))
	}
	slices.SortStableFunc(want, y.CompareKeys)
	last := sortPlace{}
	for i, p := range m.sorted() {
		e := m.entries[p.entry]
		if got := y.KeyWithTs(m.key(e), e.version); !bytes.Equal(got, want[i]) {
			t.Fatalf("entry %d is %x instead of %x", i, got, want[i])
		}
		if i > 0 && bytes.Equal(want[i], want[i-1]) && last.entry > p.entry {
			t.Fatalf("of two entries with the key %x, the later one comes first", want[i])
		}
		last = p
	}
}

// A key whose versions fill several blocks is found as of each of them, and so are its neighbours, without an allocation but for the value.
func TestGetFindsAllVersionsOfAKey(t *testing.T) {
	d := open(t, t.TempDir())
	defer func() { check(t, d.Close()) }()
	value := func(version uint64) string { return fmt.Sprintf("%0100d", version) }
	const versions = 200
	for v := uint64(1); v <= versions; v++ {
		check(t, d.Commit(v, func(txn *Txn) error {
			if v == 1 {
				check(t, errors.Join(txn.Set([]byte("a"), []byte("before")), txn.Set([]byte("c"), []byte("behind"))))
			}
			return txn.Set([]byte("b"), []byte(value(v)))
		}))
	}
	check(t, d.Flush())
	d.Keep(0)
	for v := uint64(1); v <= versions; v++ {
		check(t, d.View(v, func(txn *Txn) error {
			for key, want := range map[string]string{"a": "before", "b": value(v), "c": "behind", "aa": "", "bb": ""} {
				if got, found, err := txn.Get([]byte(key)); err != nil || found != (want != "") || string(got) != want {
					t.Errorf("as of %d, %s is %q, %v, %v", v, key, got, found, err)
				}
			}
			return nil
		}))
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = d.Get([]byte("c")) }); n > 1 && !testenv.Race {
		t.Errorf("a look-up allocates %.0f times", n)
	}
}
