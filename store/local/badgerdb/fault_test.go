package badgerdb

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// When the disk is nearly full, a write fails with IsNearlyFull, and nothing is half done. The database can be read, also
// after a restart, and written again when there is space.
func TestDrillAFullDisk(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=160m"); err != nil {
		testenv.Skip(t, "a small file system cannot be mounted: "+err.Error())
	}
	defer func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	m := newModel(t, filepath.Join(dir, "db"))
	for range 20 {
		m.change(400_000)
	}
	check(t, m.Flush())
	fill := func(leave int64) {
		var s unix.Statfs_t
		check(t, unix.Statfs(dir, &s))
		f, err := os.Create(filepath.Join(dir, "other"))
		check(t, err)
		check(t, errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-leave), f.Close()))
	}
	fill(margin + 4<<20)
	var full error
	for range 80 {
		was, version := maps.Clone(m.live), m.version
		m.version++
		if full = commit(m.DB, m.version, func(txn *batch) error {
			k := fmt.Sprintf("key-%05d", m.r.IntN(20_000))
			m.live[k] = string(make([]byte, 400_000))
			return txn.Set([]byte(k), []byte(m.live[k]))
		}); full != nil {
			m.live, m.version = was, version
			break
		}
	}
	if !IsNearlyFull(full) {
		t.Fatal("commits on a full disk:", full)
	}
	if err := m.Flush(); !IsNearlyFull(err) {
		t.Fatal("a flush on a full disk:", err)
	}
	if err := m.CompactAndWait(ctx, noPace); !IsNearlyFull(err) {
		t.Fatal("a compaction on a full disk:", err)
	}
	if _, err := everything(m.DB, false); err != nil {
		t.Fatal("a read on a full disk:", err)
	}
	check(t, os.Remove(filepath.Join(dir, "other")))
	m.change(1000)
	check(t, m.Flush())
	fill(margin - 1<<20)
	check(t, m.Close())
	m.DB = open(t, filepath.Join(dir, "db"))
	m.checkFlushed()
	check(t, os.Remove(filepath.Join(dir, "other"))) // the close may have removed files
	fill(margin - 1<<20)
	if err := m.Room(0); !IsNearlyFull(err) {
		t.Fatal("room on a full disk after a restart:", err)
	}
	check(t, os.Remove(filepath.Join(dir, "other")))
	m.change(1000)
	check(t, m.CompactAndWait(ctx, noPace))
	m.check()
	check(t, m.Close())
}

// flip changes a bit of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	check(t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b[:], at)
	check(t, errors.Join(err, f.Close()))
}

// Damage of a block costs the reads that need it: not those of other keys, no commits, and nothing of another database. It
// can be repaired: only what is in the block is lost.
func TestDrillDamageCostsOnlyWhatIsThere(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m, other := newModel(t, dir), newModel(t, t.TempDir())
	for range 10 {
		m.change(400_000)
		other.change(100_000)
	}
	check(t, m.CompactAndWait(ctx, noPace))
	table := m.parts[0].tables.Load().all[0]
	flip(t, table.path, 1000)

	lost := 0
	for k, v := range m.live {
		err := m.View(func(txn *Txn) error {
			b, _, err := txn.Get([]byte(k))
			if err == nil && string(b) != v {
				t.Errorf("%s is wrong", k)
			}
			return err
		})
		var damage *Damage
		if errors.As(err, &damage) && errors.Is(err, codec.ErrCorrupt) && damage.Path == table.path {
			lost++
		} else if err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
	if lost == 0 || lost > 20 {
		t.Errorf("%d of %d keys cannot be read", lost, len(m.live))
	}
	if m.Damage() == nil || other.Damage() != nil {
		t.Errorf("the damage that was met is %v and %v", m.Damage(), other.Damage())
	}
	check(t, m.View(func(txn *Txn) error { // the last keys
		it := txn.NewIterator(IteratorOptions{Prefix: []byte("key-19")})
		n := 0
		for it.Rewind(); it.Valid(); it.Next() {
			n++
		}
		if n == 0 {
			t.Error("no keys")
		}
		return nil
	}))
	m.change(1000)
	check(t, m.Flush())
	if err := m.CompactAndWait(ctx, noPace); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("a compaction of damaged tables: %v", err)
	}
	other.change(1000)
	check(t, other.CompactAndWait(ctx, noPace))
	other.check()
	check(t, errors.Join(m.Close(), other.Close()))

	for name, spoil := range map[string]func(){
		"a block":  func() {},
		"the list": func() { check(t, os.Remove(filepath.Join(table.path, "..", listName))) },
	} {
		spoil()
		found, wrong := map[string]uint64{}, 0
		values := map[string]string{}
		ranges, err := EachEntry(ctx, dir, func([]byte) bool { return true }, func(e codec.Entry) error {
			if e.Version >= found[string(e.Key)] {
				found[string(e.Key)] = e.Version
				if values[string(e.Key)] = string(e.Value); e.Deleted {
					delete(values, string(e.Key))
				}
			}
			return nil
		}, func(string, error) { wrong++ })
		check(t, err)
		missing, within := 0, 0
		for k, v := range m.live {
			isLost := slices.ContainsFunc(ranges, func(r Range) bool { return r.Has([]byte(k)) })
			if isLost {
				within++
			}
			if values[k] == v {
				continue
			}
			if missing++; !isLost {
				t.Errorf("%s: %s is missing, and in none of the ranges %q", name, k, ranges)
			}
		}
		if name == "a block" && within > missing+2 {
			t.Errorf("%d keys are in the ranges, but %d are missing", within, missing)
		}
		if wrong != 1 || missing > lost {
			t.Errorf("%s: %d files are damaged, %d keys are missing, want 1 and %d", name, wrong, missing, lost)
		}
	}
}

// What is lost of a sealed part is between the tables before and after it.
func TestRangesOfLostKeys(t *testing.T) {
	m := newModel(t, t.TempDir())
	key := func(i int) string { return fmt.Sprintf("key-%06d", i) }
	const keys = 60_000
	check(t, commit(m.DB, 1, func(txn *batch) error {
		for i := range keys {
			check(t, txn.Set([]byte(key(i)), fmt.Appendf(nil, "%0150d", i)))
		}
		return nil
	}))
	check(t, m.Flush())
	check(t, m.CompactAndWait(ctx, noPace))
	tables := m.parts[0].tables.Load().all
	if len(tables) < 4 || !isSealed(m.parts[0].name) {
		t.Fatalf("%d tables", len(tables))
	}
	slices.SortFunc(tables, func(a, b *tableFile) int { return int(a.id) - int(b.id) })
	second := tables[1]
	last, index := second.place(second.blocks-1), second.from
	for name, c := range map[string]struct {
		harm func(path, other string) error
		most int // keys in the ranges, about
	}{
		"the last block":      {func(path, _ string) error { return zero(path, last.at+50) }, 40},
		"the first block":     {func(path, _ string) error { return zero(path, 50) }, 40},
		"a block and index":   {func(path, _ string) error { return errors.Join(zero(path, 50_000), zero(path, index+50)) }, 40},
		"the table":           {func(path, _ string) error { return os.Remove(path) }, 2 * keys / len(tables)},
		"it is another table": {func(path, other string) error { return errors.Join(os.Remove(path), os.Link(other, path)) }, 2 * keys / len(tables)},
		"cut short":           {func(path, _ string) error { return os.Truncate(path, 1000) }, 2 * keys / len(tables)},
	} {
		dir := copied(t, m.dir)
		part := filepath.Join(dir, m.parts[0].name)
		check(t, c.harm(tablePath(part, second.id), tablePath(part, tables[3].id)))
		found := map[string]bool{}
		lost, err := EachEntry(ctx, dir, func([]byte) bool { return true }, func(e codec.Entry) error {
			found[string(e.Key)] = true
			return nil
		}, func(string, error) {})
		check(t, err)
		missing, within := 0, 0
		for i := range keys {
			isLost := slices.ContainsFunc(lost, func(r Range) bool { return r.Has([]byte(key(i))) })
			if isLost {
				within++
			}
			if !found[key(i)] {
				missing++
			}
			if !found[key(i)] && !isLost {
				t.Fatalf("%s: %s is missing, and in none of the ranges %q", name, key(i), lost)
			}
		}
		if missing == 0 || within > missing+4 || within > c.most {
			t.Errorf("%s: %d keys are in the ranges %q, and %d are missing", name, within, lost, missing)
		}
	}
	check(t, m.Close())
}

// zero overwrites 16 bytes of a file.
func zero(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 16), at)
	return errors.Join(err, f.Close())
}

// Whatever happens to the file of an open table, a key that was flushed is found, or its read fails. Check sees it.
func TestDrillNothingHidesAKey(t *testing.T) {
	testenv.Drill(t)
	m := newModel(t, t.TempDir())
	for version := range uint64(2) {
		// Entries of the same size, so that many blocks have the same size.
		check(t, commit(m.DB, version+1, func(txn *batch) error {
			for i := range 6000 {
				k := fmt.Sprintf("key-%d-%04d", version, i)
				m.live[k] = fmt.Sprintf("%0100d", i)
				check(t, txn.Set([]byte(k), []byte(m.live[k])))
			}
			return nil
		}))
		check(t, m.Flush())
		if version == 0 {
			check(t, m.CompactAndWait(ctx, noPace))
		}
	}
	r := testenv.Random(t)
	failed := 0
	for range testenv.Rounds(8) {
		tables := m.parts[r.IntN(2)].tables.Load().all
		table := tables[r.IntN(len(tables))]
		sound, err := os.ReadFile(table.path)
		check(t, err)
		b, what := bytes.Clone(sound), "the index is zero"
		p, q := table.place(r.IntN(table.blocks)), table.place(r.IntN(table.blocks))
		switch r.IntN(4) {
		case 0:
			clear(b[table.from:])
		case 1:
			what = "a bit of the index is wrong"
			b[int(table.from)+r.IntN(len(b)-int(table.from))] ^= 1 << r.IntN(8)
		case 2:
			what = "the blocks are shifted"
			copy(b[q.at:table.from], sound[p.at:])
		case 3:
			what = "two blocks are exchanged"
			for p.size != q.size {
				q = table.place(r.IntN(table.blocks))
			}
			copy(b[p.at:], sound[q.at:q.at+q.size])
			copy(b[q.at:], sound[p.at:p.at+p.size])
		}
		check(t, os.WriteFile(table.path, b, 0o600))
		for k, v := range m.live {
			switch found, has, err := m.Get([]byte(k)); {
			case err != nil:
				failed++
			case !has || string(found) != v:
				t.Fatalf("%s: %s is not found", what, k)
			}
		}
		reported := 0
		check(t, m.Check(ctx, noPace, func(*Damage) { reported++ }))
		if isChanged := !bytes.Equal(b, sound); isChanged != (reported > 0) {
			t.Errorf("%s: Check reports %d files", what, reported)
		}
		check(t, os.WriteFile(table.path, sound, 0o600))
	}
	t.Logf("%d reads have failed", failed)
	check(t, m.Close())
}

// An entry that does not fit into a table is refused, also one of a backup.
func TestLargeEntries(t *testing.T) {
	d := open(t, t.TempDir())
	for key, value := range map[int]int{0: 1, maxKeyBytes + 1: 1, 1 << 16: 1, 1: maxValueBytes + 1} {
		e := codec.Entry{Key: make([]byte, key), Value: make([]byte, value), Version: 1}
		if d.Put(e) == nil {
			t.Errorf("a key of %d bytes with a value of %d is taken", key, value)
		}
	}
	check(t, d.Put(codec.Entry{Key: make([]byte, maxKeyBytes), Value: make([]byte, maxValueBytes), Version: 1}))
	check(t, errors.Join(d.Flush(), d.Close()))
}

// Where the index of a table is damaged, its blocks are found.
func TestBlocksAreFoundWithoutAnIndex(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 3 {
		m.change(400_000)
	}
	check(t, m.Close())
	tables, err := filepath.Glob(filepath.Join(dir, "g1", "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	info, err := os.Stat(tables[0])
	check(t, err)
	flip(t, tables[0], info.Size()-1000)
	if _, err := Open(dir, quiet); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("it opens: %v", err)
	}
	found := map[string]bool{}
	lost, err := EachEntry(ctx, dir, func([]byte) bool { return true }, func(e codec.Entry) error {
		found[string(e.Key)] = true
		return nil
	}, func(string, error) {})
	check(t, err)
	for k := range m.live {
		if slices.ContainsFunc(lost, func(r Range) bool { return r.Has([]byte(k)) && string(r.From) != k }) {
			t.Errorf("%s may be lost: %q", k, lost)
		}
	}
	for k := range m.live {
		if !found[k] {
			t.Errorf("%s is not found", k)
		}
	}
}
