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
	if h := m.current().tables.Load(); len(m.parts) < 2 || len(h.runs) == 0 {
		t.Errorf("%d parts; the new tables of the last one are in %d runs", len(m.parts), len(h.runs))
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
	table, err := b.write(h.dir, 1, atOnce, nil)
	check(t, err)
	h.list.tables[1], h.unread = listed{table.size, b.contents, table.sum}, []*tableFile{table}
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

// filterModel has some tables of before an open, with all that a look-up may meet: keys of one table, keys that are newer in
// another one, and deletions.
func filterModel(t *testing.T, dir string) (m *model, key func(n int) []byte, checkAll func(when string)) {
	m = newModel(t, dir)
	key = func(n int) []byte { return fmt.Appendf(nil, "key %03d", n) }
	for round := range 6 {
		m.version++
		check(t, commit(m.DB, m.version, func(txn *batch) error {
			for n := 50 * round; n < 50*round+80; n++ {
				if n%9 == round {
					delete(m.live, string(key(n)))
					txn.Delete(key(n))
				} else {
					m.live[string(key(n))] = fmt.Sprint("value ", round)
					check(t, txn.Set(key(n), []byte(fmt.Sprint("value ", round))))
				}
			}
			return nil
		}))
		check(t, m.Flush())
	}
	m.reopen(dir)
	return m, key, func(when string) {
		t.Helper()
		for n := range 400 {
			value, found, err := m.Get(key(n))
			if want, has := m.live[string(key(n))]; err != nil || found != has || found && string(value) != want {
				t.Fatalf("%s: Get(%s) gives %q, %v, %v instead of %q, %v", when, key(n), value, found, err, want, has)
			}
		}
	}
}

// After an open, too, a look-up of a new key asks no table.
func TestALookUpOfANewKeyReadsNoTableOfBeforeAnOpen(t *testing.T) {
	m, _, _ := filterModel(t, t.TempDir())
	defer func() { check(t, m.Close()) }()
	check(t, m.FilterTables(ctx, noPace))
	for _, f := range m.current().tables.Load().all { // a table that is asked cannot be read
		f.filter = nil
		check(t, f.file.Close())
	}
	reads := 0
	for n := range 1000 {
		if _, _, err := m.Get(fmt.Appendf(nil, "key %03d of another one", n%300)); err != nil {
			reads++
		}
	}
	if reads > 10 {
		t.Errorf("%d of 1000 look-ups of new keys read a table", reads)
	}
}

// While the keys of old tables are added to the filter, and afterwards, each is found, or not when it was deleted. The same
// is true beside new tables, a merge, and after a merge of the tables and another open. Tables that a merge has replaced are
// not read any more: an erasure may wait until they are removed.
func TestKeysAreFoundWhileTheirTablesAreFiltered(t *testing.T) {
	for _, beside := range []string{"nothing", "a flush", "a merge"} {
		dir := t.TempDir()
		m, key, checkAll := filterModel(t, dir)
		pauses := 0
		check(t, m.FilterTables(ctx, func() {
			checkAll("while it is built")
			if pauses++; pauses != 3 || beside == "nothing" {
				return
			}
			m.version++
			check(t, commit(m.DB, m.version, func(txn *batch) error {
				for n := 20; n < 320; n += 30 { // one goes, one comes or changes
					txn.Delete(key(n))
					delete(m.live, string(key(n)))
					m.live[string(key(n+1))] = "newest"
					check(t, txn.Set(key(n+1), []byte("newest")))
				}
				return nil
			}))
			check(t, m.Flush())
			if beside == "a merge" {
				check(t, m.Merge(ctx, noPace))
			}
			checkAll("beside " + beside)
		}))
		if merged := beside == "a merge"; merged && pauses != 3 || !merged && pauses != 6 {
			t.Errorf("beside %s: %d pauses", beside, pauses)
		}
		checkAll("after it was built beside " + beside)
		check(t, m.mergeNewest())
		checkAll("merged")
		m.reopen(dir)
		check(t, m.FilterTables(ctx, noPace))
		checkAll("opened again")
		m.check()
		check(t, m.Close())
	}
}

// A damaged table is noticed when it is to be filtered. No key is missing because of it: what was in the damaged block gives
// an error, and all other keys are found.
func TestADamagedTableIsNotFiltered(t *testing.T) {
	m, key, _ := filterModel(t, t.TempDir())
	defer func() { check(t, m.Close()) }()
	damagedTable := m.current().tables.Load().all[2]
	flip(t, damagedTable.path, 40)
	if err := m.FilterTables(ctx, noPace); !errors.Is(err, codec.ErrCorrupt) || m.Damage() == nil {
		t.Errorf("damage gives %v, and %v is noted", err, m.Damage())
	}
	errs := 0
	for n := range 400 {
		value, found, err := m.Get(key(n))
		if damage, ok := errors.AsType[*Damage](err); ok && damage.Path == damagedTable.path {
			errs++
		} else if want, has := m.live[string(key(n))]; err != nil || found != has || string(value) != want {
			t.Errorf("Get(%s) gives %q, %v, %v instead of %q, %v", key(n), value, found, err, want, has)
		}
	}
	if errs < 70 || errs > 90 {
		t.Errorf("%d look-ups meet the damage", errs)
	}
}
