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

	"mtagd/store/local/codec"
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
		check(t, commit(m.DB, m.version, func(txn *batch) error {
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

// Entries of one version may be in several tables, whose keys may lie in any order, and in two parts when a merge begins between them.
// Everywhere the last one counts.
func TestTheLastEntryOfAVersionCounts(t *testing.T) {
	d := open(t, t.TempDir())
	keys := []string{"c", "d", "e"}
	put := func(value string, others ...string) {
		t.Helper()
		for _, key := range append(others, keys...) {
			check(t, d.Put(codec.Entry{Key: []byte(key), Value: []byte(value), Version: 1}))
		}
		d.writing.Lock()
		defer d.writing.Unlock()
		check(t, d.writeTable())
	}
	checkAll := func(when, want string) {
		t.Helper()
		for _, reverse := range []bool{false, true} {
			found, err := everything(d, reverse)
			check(t, err)
			for _, key := range keys {
				value, _, err := d.Get([]byte(key))
				if err != nil || string(value) != want || found[key] != want {
					t.Errorf("%s, %s is %q, reading all gives %q, %v; want %q", when, key, value, found[key], err, want)
				}
			}
		}
	}
	put("1", "b")
	put("2", "a", "z")
	put("3", "f")
	check(t, d.Flush())
	checkAll("flushed", "3")
	put("4", "g")
	d.writing.Lock()
	check(t, errors.Join(d.flush(), d.beginPart())) // as a compaction does
	d.writing.Unlock()
	put("5", "b")
	check(t, d.Flush())
	checkAll("in two parts", "5")
	check(t, d.Compact(ctx, noPace))
	checkAll("compacted", "5")
	check(t, d.Close())
}

// A table is sorted by key, however many bytes the keys have in common, and the entries of a key by version.
func TestSortedIsTheOrderOfKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var m memTable
	var want [][]byte // keys in the byte form of tables, which sorts newer versions first
	for range 5000 {
		key := make([]byte, r.IntN(27))
		for i := range key {
			key[i] = byte(r.IntN(2)) * 255 // so that many begin alike
		}
		version := uint64(r.IntN(3))
		m.add(&codec.Entry{Key: key, Version: version})
		want = append(want, y.KeyWithTs(key, version))
	}
	slices.SortStableFunc(want, y.CompareKeys)
	last := sortPlace{}
	for i, p := range m.sorted() {
		e := m.entries[p.entry]
		if got := y.KeyWithTs(m.key(e), e.version); !bytes.Equal(got, want[i]) {
			t.Fatalf("entry %d is %x instead of %x", i, got, want[i])
		}
		if i > 0 && bytes.Equal(want[i], want[i-1]) && last.entry < p.entry {
			t.Fatalf("of two entries with the key %x, the earlier one comes first", want[i])
		}
		last = p
	}
}

// In a table of an earlier version, a key has several entries, which may fill several blocks. The newest is found, and so
// are its neighbours, without an allocation but for the value. Damage among the others is met.
func TestATableWithManyEntriesOfAKey(t *testing.T) {
	d := open(t, t.TempDir())
	defer func() { check(t, d.Close()) }()
	h, b := d.current(), newBuilder(1<<20)
	defer b.release()
	check(t, h.prepare())
	h.filter = new(keyFilter)
	add := func(key, value string, version uint64) {
		h.filter.add(y.Hash([]byte(key)))
		b.add(&codec.Entry{Key: []byte(key), Value: []byte(value), Version: version})
	}
	add("a", "before", 1)
	for version := uint64(200); version > 0; version-- {
		add("b", fmt.Sprintf("%0100d", version), version)
	}
	add("c", "behind", 1)
	table, err := b.write(h.dir, 1, atOnce, func([]byte) {})
	check(t, err)
	h.list.tables[1], h.unread, d.dirty = listed{table.size, b.contents, table.sum}, []*tableFile{table}, true
	check(t, d.Flush())
	for key, want := range map[string]string{"a": "before", "b": fmt.Sprintf("%0100d", 200), "c": "behind", "aa": "", "bb": ""} {
		if got, found, err := d.Get([]byte(key)); err != nil || found != (want != "") || string(got) != want {
			t.Errorf("%s is %q, %v, %v", key, got, found, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = d.Get([]byte("c")) }); n > 1 && !testenv.Race {
		t.Errorf("a look-up allocates %.0f times", n)
	}
	if found, err := everything(d, false); err != nil || len(found) != 3 {
		t.Errorf("%d keys, %v", len(found), err)
	}
	middle := table.place(table.blocks / 2)
	flip(t, table.path, middle.at+middle.size/2)
	for _, reverse := range []bool{false, true} {
		if found, err := everything(d, reverse); !errors.Is(err, codec.ErrCorrupt) || len(found) > 2 {
			t.Errorf("reverse %v: %d keys behind damage, %v", reverse, len(found), err)
		}
	}
}
