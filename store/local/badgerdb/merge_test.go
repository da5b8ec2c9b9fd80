package badgerdb

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

func TestMain(m *testing.M) {
	faultfs.Main()
	os.Exit(m.Run())
}

// sized are parts of these sizes, in MB.
func sized(sizes ...int64) (parts []*part) {
	for i, size := range sizes {
		h := &part{name: "s1"}
		if i == len(sizes)-1 {
			h.name = "g1"
		}
		h.tables.Store(&tables{all: []*tableFile{{size: size << 20}}})
		parts = append(parts, h)
	}
	return parts
}

func TestWhichPartsAreMerged(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		from  int
	}{
		{[]int64{10}, 0},
		{[]int64{20, 10}, 0},                                  // all are small
		{[]int64{2000, 170}, 1},                               // the last one alone
		{[]int64{2000, 170, 170}, 2},                          // and again
		{[]int64{2000, 170, 170, 170, 170}, 1},                // three more of its size
		{[]int64{9000, 700, 700, 700, 170, 170, 170, 170}, 1}, // they become as large as three others
		{[]int64{9000, 700, 700, 700, 170, 170}, 5},
		{[]int64{9000, 700, 20, 170}, 2}, // a small one comes along
	} {
		if from := toMerge(sized(c.sizes...)); from != c.from {
			t.Errorf("of parts of %v MB those from %d on are merged, want %d", c.sizes, from, c.from)
		}
	}
}

// However large a database becomes, an entry is written again a few times, and there are few parts.
func TestMergesWriteAnEntryAFewTimes(t *testing.T) {
	parts, written, most := sized(0), int64(0), 0
	for range 1000 { // 170 GB
		parts[len(parts)-1] = sized(170)[0]
		from := toMerge(parts)
		merged := size(parts[from:])
		written += merged
		parts = append(slices.Clone(parts[:from]), sized(merged>>20, 0)...)
		most = max(most, len(parts))
	}
	if times := float64(written) / float64(size(parts)); times > 7 || most > 20 {
		t.Errorf("each byte is written %.1f times, in up to %d parts", times, most)
	}
}

// A kill at any step of a merge changes nothing of what is read, and leaves no part that does not count.
func TestDrillAKillWhileMerging(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 3 {
		for range 8 {
			m.change(400_000)
		}
		check(t, m.mergeNewest())
	}
	m.change(100_000)
	check(t, m.Flush())
	steps := 0
	err := m.compact(ctx, func() {
		if steps++; steps%499 != 0 {
			return
		}
		d := open(t, copied(t, dir))
		if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
			t.Fatalf("step %d: %d keys instead of %d: %v", steps, len(found), len(m.live), err)
		}
		if left, _ := filepath.Glob(filepath.Join(d.dir, "[gs]*")); len(left) != 5 || slices.Contains(left, filepath.Join(d.dir, "s5")) {
			t.Errorf("step %d: after a start there is %q", steps, left)
		}
		check(t, errors.Join(d.Close(), os.RemoveAll(d.dir)))
	}, func([]*part) int { return 1 })
	check(t, errors.Join(err, m.awaitRemoval(ctx)))
	d := open(t, copied(t, dir)) // killed after the merge
	if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
		t.Errorf("after the merge: %d keys instead of %d: %v", len(found), len(m.live), err)
	}
	check(t, d.Close())
	m.check()
	if len(m.parts) != 3 {
		t.Errorf("%d parts", len(m.parts))
	}
	check(t, m.Close())
}

// When a sealed part is missing, or has lost its tables, it is reported as damaged, and nothing is removed. When only the
// list of parts is damaged, all keys are still read.
func TestPartsThatAreMissing(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 2 {
		m.change(300_000)
		check(t, m.mergeNewest())
	}
	m.change(1000)
	check(t, m.Close())

	for _, harm := range []func(work string) error{
		func(work string) error { return os.RemoveAll(filepath.Join(work, "s2")) },
		func(work string) error {
			return errors.Join(os.RemoveAll(filepath.Join(work, "s3")), os.Mkdir(filepath.Join(work, "s3"), 0o700))
		},
	} {
		work := copied(t, dir)
		check(t, harm(work))
		if _, err := Open(work, quiet); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("Open: %v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(work, "[gs]*", "*.sst")); len(left) < 2 {
			t.Errorf("only %q is left", left)
		}
	}

	work := copied(t, dir)
	damageList(t, filepath.Join(work, "g3"))
	d := open(t, work)
	for range 2 {
		if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
			t.Errorf("%d keys instead of %d: %v", len(found), len(m.live), err)
		}
		check(t, d.Close())
		d = open(t, work)
	}
	check(t, d.Close())
}

// An erasure is done only when parts that an earlier merge has replaced are removed, too, though somebody reads them.
func TestCompactAndWaitWaitsForOlderReaders(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	check(t, commit(d, 1, func(txn *batch) error { return txn.Set([]byte("k"), []byte("secret")) }))
	check(t, d.Flush())
	reading, goOn, read := make(chan bool), make(chan bool), make(chan error)
	go func() {
		read <- d.View(func(*Txn) error {
			close(reading)
			<-goOn
			return nil
		})
	}()
	<-reading
	check(t, d.Merge(ctx, noPace))
	check(t, commit(d, 2, func(txn *batch) error { txn.Delete([]byte("k")); return nil }))
	compacted := make(chan error)
	go func() { compacted <- d.CompactAndWait(ctx, noPace) }()
	for done := false; !done; { // what it compacts itself is removed soon
		parts, err := filepath.Glob(filepath.Join(dir, "[gs]*"))
		check(t, err)
		done = slices.Contains(parts, filepath.Join(dir, "g3")) && !slices.Contains(parts, filepath.Join(dir, "g2"))
	}
	select {
	case err := <-compacted:
		t.Errorf("CompactAndWait returns %v, but g1 is there", err)
	default:
	}
	close(goOn)
	check(t, errors.Join(<-read, <-compacted))
	if left, _ := filepath.Glob(filepath.Join(dir, "g1")); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	check(t, d.Close())
}

// Without the last part, or its list, nobody knows what counts: that is damage, and nothing is removed. All can still be
// repaired.
func TestTheLastPartIsMissing(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	m.change(300_000)
	check(t, m.mergeNewest())
	sealed := len(m.live)
	m.change(300_000)
	check(t, m.Close())
	for name, harm := range map[string]func(last string) error{
		"directory": os.RemoveAll,
		"content":   func(last string) error { return errors.Join(os.RemoveAll(last), os.Mkdir(last, 0o700)) },
		"list":      func(last string) error { return os.Remove(filepath.Join(last, listName)) },
	} {
		work := copied(t, dir)
		check(t, harm(filepath.Join(work, "g2")))
		if _, err := Open(work, quiet); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("without the %s: Open gives %v", name, err)
		}
		found := map[string]bool{}
		lost, err := EachEntry(ctx, work, func([]byte) bool { return true }, func(e codec.Entry) error {
			found[string(e.Key)] = true
			return nil
		}, func(string, error) {})
		if check(t, err); !slices.ContainsFunc(lost, Range{}.Equal) {
			t.Errorf("without the %s: any key may be lost, but the ranges are %x", name, lost)
		}
		if len(found) < sealed {
			t.Errorf("without the %s: %d keys are repaired, want at least %d", name, len(found), sealed)
		}
	}
}

func damageList(t *testing.T, part string) {
	t.Helper()
	path := filepath.Join(part, listName)
	b, err := os.ReadFile(path)
	check(t, errors.Join(err, os.WriteFile(path, bytes.ToUpper(b), 0o600)))
}

// A kill leaves parts that count no longer, or do not count yet, and the list of the last part is damaged: they still do not
// count.
func TestADamagedListBesideOtherParts(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 2 {
		m.change(300_000)
		check(t, m.mergeNewest())
	}
	m.change(300_000)
	check(t, m.Flush())
	before := copied(t, dir) // s2 s3 g3
	check(t, m.CompactAndWait(ctx, noPace))
	after := copied(t, dir) // s4 g4
	add := func(to, from string, names ...string) {
		for _, name := range names {
			check(t, os.CopyFS(filepath.Join(to, name), os.DirFS(filepath.Join(from, name))))
		}
	}
	early, late := copied(t, before), copied(t, after)
	add(early, after, "s4")
	damageList(t, filepath.Join(early, "g3"))
	add(late, before, "s2", "s3")
	damageList(t, filepath.Join(late, "g4"))
	for _, work := range []string{early, late} {
		d := open(t, work)
		for range 2 {
			if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
				t.Errorf("%d keys instead of %d: %v", len(found), len(m.live), err)
			}
			check(t, d.CompactAndWait(ctx, noPace))
			check(t, d.Close())
			d = open(t, work)
		}
		check(t, d.Close())
	}
	check(t, m.Close())
}

// When a list cannot be written, that of the new last part, that of the sealed one, or that which makes it count, the old
// parts go on, and a kill finds them.
func TestDrillASwitchThatFails(t *testing.T) {
	testenv.Drill(t)
	for skip, all := range [][]int{{1}, {1}, {1, 2, 0}} {
		for _, times := range all { // 0: always
			disk := faultfs.New(t)
			dir := filepath.Join(disk.Dir, "db")
			m := newModel(t, dir)
			for range 3 {
				m.change(300_000)
			}
			check(t, m.Flush())
			disk.Fail(faultfs.Rule{Op: faultfs.Write, Files: listName, Skip: skip, Count: times, Errno: syscall.EIO})
			if err := m.CompactAndWait(ctx, noPace); !errors.Is(err, syscall.EIO) {
				t.Errorf("CompactAndWait gives %v", err)
			}
			disk.Fail()
			d := open(t, copied(t, dir))
			if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
				t.Errorf("after %d errors from write %d on %d keys instead of %d: %v", times, skip, len(found), len(m.live), err)
			}
			check(t, d.Close())
			if isStuck := skip == 2 && times != 1; isStuck != (m.failed != nil) {
				t.Errorf("after %d errors from write %d on: %v", times, skip, m.failed)
			} else if !isStuck {
				m.change(1000)
				m.check()
				check(t, m.CompactAndWait(ctx, noPace))
				m.check()
				if left, _ := filepath.Glob(filepath.Join(dir, "[gs]*")); len(left) > 3 {
					t.Errorf("%q is left", left)
				}
			}
			_ = m.Close() // it may have failed for good
		}
	}
}

// When the name of a new last part cannot be synced, it does not keep it: what is flushed later is not lost, and a kill
// finds all.
func TestANameThatCannotBeSynced(t *testing.T) {
	for name, begin := range map[string]func(m *model, by string) error{
		"a compaction": func(m *model, _ string) error { return m.Compact(ctx, noPace) },
		"a rebuild":    func(m *model, by string) error { return m.adopt(by) },
	} {
		disk := faultfs.New(t)
		dir := filepath.Join(disk.Dir, "db")
		m := newModel(t, dir)
		m.change(100_000)
		check(t, m.Flush())
		other := newModel(t, filepath.Join(disk.Dir, "other"))
		other.change(1000)
		check(t, other.Close())
		disk.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "db", Count: 1, Errno: syscall.EIO})
		if err := begin(m, other.dir); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", name, err)
		}
		disk.Fail()
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
			t.Errorf("%s: %q is left", name, left)
		}
		m.change(1000)
		check(t, m.Flush())
		d := open(t, copied(t, dir))
		if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
			t.Errorf("after %s: %d keys instead of %d: %v", name, len(found), len(m.live), err)
		}
		check(t, errors.Join(d.Close(), m.Close()))
	}
}

// Reads of many parts are those of a model, and so are those of a snapshot.
func TestDrillReadsOfManyParts(t *testing.T) {
	testenv.Drill(t)
	for seed := range uint64(2) {
		dir := t.TempDir()
		m := newModel(t, dir)
		m.r = rand.New(rand.NewPCG(seed, 0))
		kept, snapshot := map[string]string{}, m.Snapshot()
		keep := func() {
			check(t, m.Flush())
			kept, snapshot = maps.Clone(m.live), m.Snapshot()
		}
		for range 30 {
			switch m.r.IntN(9) {
			case 0:
				check(t, m.mergeNewest())
			case 1:
				n := m.r.IntN(3)
				check(t, m.compact(ctx, noPace, func(parts []*part) int { return max(0, len(parts)-1-n) }))
			case 2:
				check(t, m.Flush())
			case 3:
				snapshot.Close()
				keep()
			case 4:
				snapshot.Close()
				m.reopen(dir)
				keep()
			default:
				m.changeFew()
			}
			check(t, m.Flush())
			for _, reverse := range []bool{false, true} {
				for _, prefix := range []string{"", "k1", "z"} {
					m.compare(m.View, m.live, reverse, prefix)
					m.compare(snapshot.View, kept, reverse, prefix)
				}
			}
		}
		snapshot.Close()
		check(t, m.Close())
	}
}

func (m *model) changeFew() {
	m.version++
	check(m.t, commit(m.DB, m.version, func(txn *batch) error {
		for range m.r.IntN(60) {
			k, v := fmt.Sprintf("k%d", m.r.IntN(200)), fmt.Sprint(m.version)
			if m.r.IntN(3) == 0 {
				delete(m.live, k)
				txn.Delete([]byte(k))
				continue
			}
			m.live[k] = v
			check(m.t, txn.Set([]byte(k), []byte(v)))
		}
		return nil
	}))
}

// compare compares all reads of a view with what there must be.
func (m *model) compare(view func(func(*Txn) error) error, all map[string]string, reverse bool, prefix string) {
	m.t.Helper()
	want := maps.Clone(all)
	maps.DeleteFunc(want, func(k, _ string) bool { return !strings.HasPrefix(k, prefix) })
	check(m.t, view(func(txn *Txn) error {
		it := txn.NewIterator(IteratorOptions{Reverse: reverse, Prefix: []byte(prefix)})
		found, last := map[string]string{}, ""
		it.Seek([]byte("k150"))
		from := []byte(prefix)
		if reverse {
			from = append(from, 0xff)
		}
		for it.Seek(from); it.Valid(); it.Next() {
			k := string(it.Entry().Key)
			if found[k] = string(it.Entry().Value); last != "" && (k <= last) != reverse {
				m.t.Fatalf("%s comes after %s", k, last)
			}
			last = k
		}
		if !maps.Equal(found, want) {
			m.t.Fatalf("reverse %v, prefix %q: %d entries instead of %d", reverse, prefix, len(found), len(want))
		}
		sorted := slices.Sorted(maps.Keys(want))
		for range 100 { // a cursor may stay only if it has passed nothing
			key := fmt.Sprintf("k%d", m.r.IntN(200))
			if m.r.IntN(3) > 0 && it.Valid() {
				key = string(it.Entry().Key) + []string{"", "\x00", "0", "5"}[m.r.IntN(4)]
			}
			at, has := slices.BinarySearch(sorted, key)
			if reverse && !has {
				at--
			}
			it.Seek([]byte(key))
			for range 1 + m.r.IntN(3) {
				if it.Valid() != (at >= 0 && at < len(sorted)) || it.Valid() && string(it.Entry().Key) != sorted[at] {
					m.t.Fatalf("reverse %v, prefix %q: a wrong entry from %q on", reverse, prefix, key)
				}
				if !it.Valid() {
					break
				}
				if at++; reverse {
					at -= 2
				}
				it.Next()
			}
		}
		for i := range 200 {
			k := fmt.Sprintf("k%d", i)
			if v, found, err := txn.Get([]byte(k)); err != nil || found != (all[k] != "") || string(v) != all[k] && found {
				m.t.Fatalf("Get(%s) gives %s, %v, %v", k, v, found, err)
			}
		}
		return nil
	}))
}

// A start uses a list whose name a kill has left unsynced. What it has read stays after a power cut.
func TestAStartSyncsTheListOfTables(t *testing.T) {
	disk := faultfs.New(t)
	dir := filepath.Join(disk.Dir, "db")
	m := newModel(t, dir)
	m.change(1000)
	check(t, m.Flush())
	list := filepath.Join(dir, "g1", listName)
	before, err := os.ReadFile(list)
	check(t, err)
	m.change(1000)
	check(t, m.Close())
	after, err := os.ReadFile(list)
	check(t, err)
	check(t, durable.ReplaceFile(list, before))
	check(t, os.WriteFile(list+newSuffix, after, 0o600))
	check(t, errors.Join(durable.SyncPath(list+newSuffix), os.Rename(list+newSuffix, list))) // a kill comes before the sync of the directory
	d := open(t, dir)
	disk.Cut()
	check(t, d.Close())
	disk.Restore(0, 1)
	d = open(t, dir)
	defer func() { check(t, d.Close()) }()
	if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
		t.Errorf("%d keys instead of %d, %v", len(found), len(m.live), err)
	}
}
