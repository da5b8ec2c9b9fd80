package badgerdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

var (
	ctx   = context.Background()
	quiet = slog.New(slog.DiscardHandler)
)

func noPace() {}

func open(t testing.TB, dir string) *DB {
	t.Helper()
	d, err := Open(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// batch is the entries of a version.
type batch struct {
	entries []codec.Entry
	version uint64
}

func (b *batch) Set(key, value []byte) error {
	b.entries = append(b.entries, codec.Entry{Key: key, Value: value, Version: b.version})
	return nil
}

func (b *batch) Delete(key []byte) {
	b.entries = append(b.entries, codec.Entry{Key: key, Version: b.version, Deleted: true})
}

// commit puts what fill adds.
func commit(d *DB, version uint64, fill func(b *batch) error) error {
	b := batch{version: version}
	if err := fill(&b); err != nil {
		return err
	}
	return d.Put(b.entries...)
}

// model is a database with what it must have.
type model struct {
	*DB
	t       testing.TB
	r       *rand.Rand
	version uint64
	live    map[string]string
}

func newModel(t testing.TB, dir string) *model {
	return &model{DB: open(t, dir), t: t, r: rand.New(rand.NewPCG(1, 2)), live: map[string]string{}}
}

// change commits some changes of about this many bytes.
func (m *model) change(bytes int) {
	m.t.Helper()
	m.version++
	check(m.t, commit(m.DB, m.version, func(txn *batch) error {
		for bytes > 0 {
			k := fmt.Sprintf("key-%05d", m.r.IntN(20_000))
			if m.r.IntN(10) == 0 {
				delete(m.live, k)
				bytes -= len(k)
				txn.Delete([]byte(k))
				continue
			}
			v := make([]byte, m.r.IntN(2000))
			for i := range v {
				v[i] = byte(m.r.Uint32())
			}
			m.live[k] = string(v)
			bytes -= len(k) + len(v)
			if err := txn.Set([]byte(k), v); err != nil {
				return err
			}
		}
		return nil
	}))
}

// everything reads a database in both directions.
func everything(d *DB, reverse bool) (found map[string]string, err error) {
	found = map[string]string{}
	err = d.View(func(txn *Txn) error {
		it := txn.NewIterator(IteratorOptions{Reverse: reverse})
		for it.Rewind(); it.Valid(); it.Next() {
			found[string(it.Entry().Key)] = string(it.Entry().Value)
		}
		return nil
	})
	return found, err
}

func (m *model) check() {
	m.t.Helper()
	check(m.t, m.Flush())
	m.checkFlushed()
}

func (m *model) checkFlushed() {
	m.t.Helper()
	for _, reverse := range []bool{false, true} {
		if found, err := everything(m.DB, reverse); err != nil || !maps.Equal(found, m.live) {
			m.t.Fatalf("%d keys instead of %d (reverse %v): %v", len(found), len(m.live), reverse, err)
		}
	}
	check(m.t, m.View(func(txn *Txn) error {
		keys := slices.Sorted(maps.Keys(m.live))
		for _, reverse := range []bool{false, true} {
			it := txn.NewIterator(IteratorOptions{Reverse: reverse})
			for range 50 {
				from := fmt.Sprintf("key-%05d", m.r.IntN(20_100))
				at, has := slices.BinarySearch(keys, from)
				if reverse && !has {
					at--
				}
				it.Seek([]byte(from))
				if it.Valid() != (at >= 0 && at < len(keys)) || it.Valid() && (string(it.Entry().Key) != keys[at] || string(it.Entry().Value) != m.live[keys[at]]) {
					m.t.Fatalf("a wrong entry is found from %s on (reverse %v)", from, reverse)
				}
			}
		}
		for range 100 {
			k := fmt.Sprintf("key-%05d", m.r.IntN(20_000))
			v, found, err := txn.Get([]byte(k))
			if want, ok := m.live[k]; err != nil || found != ok || string(v) != want && ok {
				m.t.Errorf("%s is wrong: found %v, want %v: %v", k, found, ok, err)
			}
		}
		return nil
	}))
	check(m.t, m.Check(ctx, noPace, func(d *Damage) { m.t.Error(d) }))
}

// mergeNewest merges the last part alone, so that there are many parts.
func (m *model) mergeNewest() error {
	return m.compact(ctx, noPace, func(parts []*part) int { return len(parts) - 1 })
}

func (m *model) reopen(dir string) {
	m.t.Helper()
	check(m.t, m.Close())
	m.DB = open(m.t, dir)
}

// What was committed is read, after flushes, compactions and restarts too.
func TestDrillCommitsAreRead(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m := newModel(t, dir)
	for i := range 60 {
		m.change(m.r.IntN(400_000))
		switch i % 12 {
		case 3:
			check(t, m.Flush())
		case 6:
			m.reopen(dir)
		case 9:
			check(t, m.CompactAndWait(ctx, noPace))
		case 0, 8:
			check(t, m.mergeNewest())
		case 11:
			m.check()
		}
	}
	m.reopen(dir)
	m.check()
	check(t, m.Close())
	d, err := OpenReadOnly(dir, quiet)
	check(t, err)
	if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
		t.Errorf("%d keys read-only instead of %d: %v", len(found), len(m.live), err)
	}
	check(t, d.Close())
}

// A child process that is being started has all files of its parent open, until it runs its program.
func TestCloseGivesUpTheLockThatAChildHas(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	child, err := unix.Dup(int(d.lock.Fd()))
	check(t, err)
	defer unix.Close(child)
	check(t, d.Close())
	check(t, open(t, dir).Close())
}

// Versions never come twice, even if a compaction drops what the last commit has written.
func TestVersionsGrow(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	check(t, commit(d, 1, func(txn *batch) error { return errors.Join(txn.Set([]byte("a"), nil), txn.Set([]byte("b"), nil)) }))
	check(t, commit(d, 2, func(txn *batch) error { txn.Delete([]byte("a")); return nil }))
	check(t, d.CompactAndWait(ctx, noPace))
	check(t, d.Close())
	d = open(t, dir)
	if v := d.MaxVersion(); v != 2 {
		t.Errorf("version %d after a restart, want 2", v)
	}
	check(t, d.Close())
}

// copied copies a directory as a kill would leave it.
func copied(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	for err := fs.ErrNotExist; err != nil; { // Badger may remove a file meanwhile
		check(t, os.RemoveAll(to))
		if err = os.CopyFS(to, os.DirFS(dir)); !errors.Is(err, fs.ErrNotExist) {
			check(t, err)
		}
	}
	return to
}

// After a kill, what was flushed is there, and nothing else.
func TestDrillAKillKeepsWhatWasFlushed(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m := newModel(t, dir)
	defer func() { check(t, m.Close()) }()
	states := []map[string]string{{}}
	for i := range 30 {
		m.change(700_000)
		states = append(states, maps.Clone(m.live))
		if i == 9 {
			check(t, m.Flush())
		}
	}
	if found, err := everything(m.DB, false); err != nil || !maps.Equal(found, states[10]) {
		t.Errorf("%d keys are read, %v", len(found), err)
	}
	d := open(t, copied(t, dir))
	defer d.Close()
	found, err := everything(d, false)
	check(t, err)
	at := slices.IndexFunc(states, func(s map[string]string) bool { return maps.Equal(s, found) })
	if at != 10 {
		t.Errorf("the state is that of commit %d, want 10", at)
	}
}

// A kill at any step of a compaction changes nothing of what is read.
func TestDrillAKillWhileCompacting(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 30 {
		m.change(400_000)
	}
	check(t, m.Flush())
	steps := 0
	seen := func() {
		if steps++; steps%997 != 0 {
			return
		}
		d := open(t, copied(t, dir))
		if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
			t.Fatalf("step %d: %d keys instead of %d: %v", steps, len(found), len(m.live), err)
		}
		check(t, errors.Join(d.Close(), os.RemoveAll(d.dir)))
	}
	check(t, m.CompactAndWait(ctx, seen))
	m.check()
	check(t, m.Merge(ctx, noPace)) // there is nothing to merge

	// After the rename, before the old generation is removed.
	check(t, m.Close())
	old := copied(t, filepath.Join(dir, "s2"))
	killed := copied(t, dir)
	check(t, os.CopyFS(filepath.Join(killed, "g1"), os.DirFS(old)))
	check(t, os.Remove(filepath.Join(killed, "g1", "000001.sst")))
	d := open(t, killed)
	if found, err := everything(d, false); err != nil || !maps.Equal(found, m.live) {
		t.Errorf("%d keys instead of %d: %v", len(found), len(m.live), err)
	}
	check(t, d.Close())
	if _, err := os.Stat(filepath.Join(killed, "g1")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the old generation is still there")
	}
}

// Commits during a compaction are in the new generation, and reads of a snapshot are as before.
func TestCompactBesideCommitsAndReaders(t *testing.T) {
	m := newModel(t, t.TempDir())
	defer func() { check(t, m.Close()) }()
	for range 20 {
		m.change(400_000)
	}
	check(t, m.Flush())
	kept, snapshot := maps.Clone(m.live), m.Snapshot()
	for range 5 {
		m.change(400_000)
	}
	asOf := func() {
		t.Helper()
		found := map[string]string{}
		check(t, snapshot.View(func(txn *Txn) error {
			it := txn.NewIterator(IteratorOptions{})
			for it.Rewind(); it.Valid(); it.Next() {
				found[string(it.Entry().Key)] = string(it.Entry().Value)
			}
			return nil
		}))
		if !maps.Equal(found, kept) {
			t.Errorf("%d keys in the snapshot instead of %d", len(found), len(kept))
		}
	}
	n := 0
	check(t, m.Compact(ctx, func() {
		if n++; n%500 == 0 {
			m.change(10_000)
			m.change(10_000)
		}
	}))
	m.check()
	asOf()
	snapshot.Close()
	check(t, m.CompactAndWait(ctx, noPace))
	m.check()
	entries := uint64(0)
	for _, h := range m.parts {
		for _, l := range h.list.tables {
			entries += l.entries
		}
	}
	if entries != uint64(len(m.live)) {
		t.Errorf("%d entries after a compaction, want %d", entries, len(m.live))
	}
}

// After a compaction no file has a byte of what was deleted or replaced.
func TestCompactLeavesNoBytes(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	secret := func(i int) []byte { return fmt.Appendf(nil, "secret-%04d-secret", i) }
	for i := range 50 {
		check(t, commit(d, uint64(i+1), func(txn *batch) error {
			return txn.Set(fmt.Appendf(nil, "k%d", i), bytes.Repeat(secret(i), 100))
		}))
		if i%20 == 0 {
			check(t, d.Flush())
		}
	}
	check(t, commit(d, 51, func(txn *batch) error {
		for i := range 50 {
			if i%2 == 0 {
				txn.Delete(fmt.Appendf(nil, "k%d", i))
			} else {
				check(t, txn.Set(fmt.Appendf(nil, "k%d", i), []byte("x")))
			}
		}
		return nil
	}))
	find := func() (found int) {
		check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				var b []byte
				if b, err = os.ReadFile(path); bytes.Contains(b, []byte("-secret")) {
					found++
				}
			}
			return err
		}))
		return found
	}
	if find() == 0 {
		t.Error("nothing is found before")
	}
	check(t, d.CompactAndWait(ctx, noPace))
	if find() > 0 {
		t.Error("a file has bytes of what was deleted")
	}
	check(t, d.Close())
	if find() > 0 {
		t.Error("a file has bytes of what was deleted, after the stop")
	}
}

// A table that cannot be written keeps what was committed in memory: the next flush writes it.
func TestAFlushAfterAFailedOne(t *testing.T) {
	dir := t.TempDir()
	m := newModel(t, dir)
	m.change(100_000)
	inTheWay := tablePath(filepath.Join(dir, "g1"), 1) + ".new"
	check(t, os.Mkdir(inTheWay, 0o700))
	if err := m.Flush(); err == nil {
		t.Fatal("a flush succeeds without its table")
	}
	m.change(100_000)
	if found, err := everything(m.DB, false); err != nil || len(found) > 0 {
		t.Errorf("%d keys are read before a flush: %v", len(found), err)
	}
	check(t, os.Remove(inTheWay))
	m.check()
	m.reopen(dir)
	m.checkFlushed()
	check(t, m.Close())
}

// Of entries that are refused, nothing stays. Of the entries of a key that are put together, the last one counts.
func TestAPutThatFails(t *testing.T) {
	m := newModel(t, t.TempDir())
	m.change(1000)
	if err := m.Put(codec.Entry{Key: []byte("key-00001"), Value: []byte("wrong"), Version: m.version + 1}, codec.Entry{Version: m.version + 1}); err == nil {
		t.Error("an entry without a key is taken")
	}
	m.version++
	m.live["twice"] = "second"
	check(t, commit(m.DB, m.version, func(txn *batch) error {
		check(t, txn.Set([]byte("twice"), []byte("first")))
		txn.Delete([]byte("twice"))
		return txn.Set([]byte("twice"), []byte("second"))
	}))
	m.check()
	check(t, m.Close())
}

// After a kill, a table that the list does not have does not count. When the list cannot be read, all tables do, unless one
// is missing.
func TestTablesWithoutAList(t *testing.T) {
	was := t.TempDir()
	m := newModel(t, was)
	for range 3 {
		m.change(1000)
		check(t, m.Flush())
	}
	check(t, m.Close())
	dir := copied(t, was)
	check(t, os.CopyFS(filepath.Join(dir, "other"), os.DirFS(filepath.Join(was, "g1"))))
	check(t, os.Rename(filepath.Join(dir, "other", "000001.sst"), filepath.Join(dir, "g1", "000004.sst")))
	check(t, os.RemoveAll(filepath.Join(dir, "other")))
	m.DB = open(t, dir)
	m.checkFlushed()
	if tables, _ := filepath.Glob(filepath.Join(dir, "g1", "*.sst")); len(tables) != 3 {
		t.Errorf("%d tables after a start, want 3", len(tables))
	}
	check(t, m.Close())

	list := filepath.Join(dir, "g1", listName)
	check(t, os.WriteFile(list, []byte("damaged"), 0o600))
	m.DB = open(t, dir)
	m.checkFlushed()
	check(t, m.Close())
	check(t, os.WriteFile(list, []byte("damaged"), 0o600))
	check(t, os.Remove(tablePath(filepath.Join(dir, "g1"), 2)))
	if _, err := Open(dir, quiet); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("a database without its list and a table opens: %v", err)
	}
}

// A part of the former version has Badger's files, and gaps in the numbers of its tables. The files go. When the list is
// lost as well, it is not known whether a table is missing: that is damage, and all entries are found.
func TestAPartOfTheFormerVersion(t *testing.T) {
	m := newModel(t, t.TempDir())
	for range 3 {
		m.change(1000)
		check(t, m.Flush())
	}
	check(t, m.Close())
	part := filepath.Join(m.dir, "g1")
	l, err := readList(part)
	check(t, err)
	l.tables[7] = l.tables[2]
	delete(l.tables, 2)
	check(t, errors.Join(l.write(part), os.Rename(tablePath(part, 2), tablePath(part, 7))))
	for _, name := range []string{"MANIFEST", "DISCARD", "KEYREGISTRY", "000001.vlog", "00001.mem"} {
		check(t, os.WriteFile(filepath.Join(part, name), []byte("Badger's"), 0o600))
	}
	m.DB = open(t, m.dir)
	m.change(1000)
	m.check()
	check(t, m.Close())
	left, err := filepath.Glob(filepath.Join(part, "*"))
	if err != nil || len(left) != 5 || !slices.Contains(left, tablePath(part, 8)) {
		t.Errorf("%q is left, %v", left, err)
	}
	check(t, os.WriteFile(filepath.Join(part, listName), []byte("damaged"), 0o600))
	if _, err := Open(m.dir, quiet); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("without a list: %v", err)
	}
	newest := map[string]codec.Entry{}
	lost, err := EachEntry(ctx, m.dir, func([]byte) bool { return true }, func(e codec.Entry) error {
		if e.Value = bytes.Clone(e.Value); e.Version >= newest[string(e.Key)].Version {
			newest[string(e.Key)] = e
		}
		return nil
	}, func(path string, err error) { t.Error(path, err) })
	if check(t, err); !slices.ContainsFunc(lost, Range{}.Equal) { // a table is missing
		t.Errorf("any key may be lost, but the ranges are %x", lost)
	}
	for k, v := range m.live {
		if string(newest[k].Value) != v {
			t.Errorf("%s is lost", k)
		}
	}
}

// One wrong bit anywhere is harmless or is reported: at Open, or by each read that needs the place, and by Check. A
// database is never shorter in silence.
func TestDrillOneWrongBit(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	m := newModel(t, dir)
	for range 8 {
		m.change(400_000)
	}
	check(t, m.CompactAndWait(ctx, noPace))
	m.change(300_000)
	check(t, m.Flush())
	m.change(100)
	check(t, m.Flush())
	sound := copied(t, dir) // as after a kill
	check(t, m.Close())

	r := rand.New(rand.NewPCG(3, 4))
	type place struct {
		path string
		at   int
	}
	var places []place
	files, err := filepath.Glob(filepath.Join(sound, "[gs]*", "*"))
	check(t, err)
	for _, path := range files {
		b, err := os.ReadFile(path)
		check(t, err)
		if len(b) == 0 { // copied before its first write
			continue
		}
		for range 4 {
			places = append(places, place{path, r.IntN(len(b))})
		}
		if filepath.Ext(path) != ".sst" {
			for i := range min(len(b), 20) { // the list
				places = append(places, place{path, i}, place{path, len(b) - 1 - i})
			}
			continue
		}
		for i := range 14 { // the footer
			places = append(places, place{path, len(b) - 1 - i})
		}
		id, _ := tableID(filepath.Base(path))
		f, err := openTable(filepath.Dir(path), id)
		if err != nil { // it was being written
			continue
		}
		for block := range min(f.blocks, 2) { // ends of blocks: number of entries, checksum, its length
			end := int(f.from)
			if block+1 < f.blocks {
				all, err := f.readBlock(block, &buffer{})
				check(t, err)
				end = bytes.Index(b, all[:40]) + len(all)
			}
			for i := range 14 {
				places = append(places, place{path, end - 1 - i})
			}
		}
		for range 6 { // the index
			places = append(places, place{path, int(f.from) + r.IntN(int(f.size-f.from))})
		}
		f.close()
	}
	atOpen, atRead, harmless := 0, 0, 0
	testenv.Random(t).Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	places = places[:min(len(places), testenv.Rounds(24))]
	for _, p := range places {
		for _, running := range []bool{false, true} {
			work := copied(t, sound)
			p := place{filepath.Join(work, filepath.Base(filepath.Dir(p.path)), filepath.Base(p.path)), p.at}
			flipIn := func() {
				b, err := os.ReadFile(p.path)
				if errors.Is(err, fs.ErrNotExist) {
					return
				}
				check(t, err)
				if p.at >= len(b) {
					return
				}
				b[p.at] ^= 1 << (p.at % 8)
				f, err := os.OpenFile(p.path, os.O_WRONLY, 0)
				check(t, err)
				_, err = f.WriteAt(b[p.at:p.at+1], int64(p.at))
				check(t, errors.Join(err, f.Close()))
			}
			name := fmt.Sprintf("%s byte %d, running: %v", filepath.Base(p.path), p.at, running)
			if !running {
				flipIn()
			}
			d, err := Open(work, quiet)
			if err != nil {
				var damage *Damage
				if running || !errors.As(err, &damage) || !errors.Is(err, codec.ErrCorrupt) {
					t.Errorf("%s: Open: %v", name, err)
				}
				atOpen++
				os.RemoveAll(work)
				continue
			}
			if running {
				flipIn()
			}
			reported := false
			check(t, d.Check(ctx, noPace, func(damage *Damage) { reported = reported || damage.Path == p.path }))
			bad := 0
			for _, reverse := range []bool{false, true} {
				found, err := everything(d, reverse)
				if err == nil && !maps.Equal(found, m.live) {
					t.Errorf("%s: %d keys instead of %d without an error (reverse %v, reported: %v)", name, len(found), len(m.live), reverse, reported)
				}
				if err != nil {
					bad++
					if !errors.Is(err, codec.ErrCorrupt) {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			if bad > 0 != reported && filepath.Ext(p.path) == ".sst" && bad > 0 {
				t.Errorf("%s: %d reads fail, but Check has reported: %v", name, bad, reported)
			}
			if err := d.CompactAndWait(ctx, noPace); bad > 0 != (err != nil) || err != nil && !errors.Is(err, codec.ErrCorrupt) {
				t.Errorf("%s: %d reads have failed, but Compact returns %v", name, bad, err)
			}
			wrong := 0
			for k, v := range m.live {
				var got []byte
				err := d.View(func(txn *Txn) error {
					var err error
					got, _, err = txn.Get([]byte(k))
					return err
				})
				if errors.Is(err, codec.ErrCorrupt) {
					wrong++
				} else if err != nil || string(got) != v {
					t.Fatalf("%s: %s is wrong, %v", name, k, err)
				}
			}
			if wrong > 0 && !reported {
				t.Errorf("%s: %d keys are damaged, but Check has reported nothing", name, wrong)
			}
			if reported {
				atRead++
			} else {
				harmless++
			}
			if err := d.Close(); err != nil && !reported {
				t.Errorf("%s: Close: %v", name, err)
			}
			os.RemoveAll(work)
		}
	}
	t.Logf("%d bits: %d found at Open, %d by Check, %d harmless", 2*len(places), atOpen, atRead, harmless)
}
