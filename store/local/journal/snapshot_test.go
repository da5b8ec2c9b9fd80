package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// opened opens the journal in dir until the test ends.
func opened(t *testing.T, dir string) *testJournal {
	t.Helper()
	j := open(t, dir)
	t.Cleanup(func() { closeJournal(t, j) })
	return j
}

// entriesOf returns the entries of a snapshot by key.
func entriesOf(t *testing.T, s Snapshot, since uint64) map[string]codec.Entry {
	t.Helper()
	found := map[string]codec.Entry{}
	if err := s.Entries(t.Context(), since, func(e codec.Entry) error {
		key := string(e.Key)
		if _, twice := found[key]; twice {
			t.Errorf("%q comes twice", key)
		}
		e.Value = append([]byte(nil), e.Value...)
		found[key] = e
		return nil
	}, func(seq uint64, err error) { t.Errorf("chunk %d: %v", seq, err) }); err != nil {
		t.Fatal(err)
	}
	return found
}

// versions maps the keys of entries to their versions.
func versions(entries map[string]codec.Entry) map[string]uint64 {
	v := map[string]uint64{}
	for key, e := range entries {
		v[key] = e.Version
	}
	return v
}

// What the tap remembers is what a search finds, for any two commits. It forgets what is no longer needed.
func TestTheTapHasWhatASearchFinds(t *testing.T) {
	j := opened(t, t.TempDir())
	if _, ok := j.Tapped(0, 0, 0); ok {
		t.Error("the first call has something")
	}
	m := store.NewMerchantID()
	write := func(i int) uint64 {
		id := store.Identity{MUID: store.MUID(fmt.Sprintf("u-%d", i))}
		id.Add(store.Email, fmt.Sprintf("v%d@example.com", i%3)) // so that keys are written again
		if err := j.Record(t.Context(), []store.Mark{{Merchant: m, Tag: "cs_a", Identity: id, Name: "Purchase",
			DedupeID: fmt.Sprint(i), Time: time.Now(), Raw: []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
		return j.Version()
	}
	commits := []uint64{write(0)}
	for i := range 9 {
		commits = append(commits, write(i+1))
	}
	tapped := func(since, unneeded uint64) (map[string]uint64, bool) {
		values, ok := j.Tapped(since, j.Version(), unneeded)
		found := map[string]uint64{}
		for _, b := range values {
			for d := (codec.Decoder{B: b}); len(d.B) > 0; {
				e := d.Entry()
				if err := d.Err("entry"); err != nil {
					t.Fatal(err)
				}
				found[string(e.Key)] = e.Version
			}
		}
		return found, ok
	}
	s := j.Snapshot()
	defer s.Close()
	for _, since := range commits {
		got, ok := tapped(since, 0)
		if want := versions(entriesOf(t, s, since)); !ok || !maps.Equal(got, want) {
			t.Errorf("since %d, the tap has %d entries, %v; want %d", since, len(got), ok, len(want))
		}
	}
	if _, ok := tapped(commits[6], commits[5]); !ok {
		t.Error("the tap forgot what is needed")
	}
	if _, ok := tapped(commits[4], 0); ok {
		t.Error("the tap has what it was told to forget")
	}
}

// While a snapshot is open, it has what its moment had: later commits and compactions change nothing. Deletions are in it.
func TestASnapshotStaysAsItWas(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir)
	key := []byte("Lkey")
	set := func(value string) {
		t.Helper()
		txn := j.db.NewTransactionAt(math.MaxUint64, true)
		defer txn.Discard()
		var err error
		if value == "" {
			err = txn.Delete(key)
		} else {
			err = txn.Set(key, []byte(value))
		}
		version := j.committer.clock.next()
		if err == nil {
			err = txn.CommitAt(version, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		j.committer.version.Store(version)
	}
	set("old")
	before := j.Version()
	s := j.Snapshot()
	set("new")
	compacted := func() bool {
		return slices.ContainsFunc(j.db.Tables(), func(t badger.TableInfo) bool { return t.Level > 0 })
	}
	for i := 0; !compacted(); i++ { // until the memtable with both was written to a table, and that was compacted
		txn := j.db.NewTransactionAt(math.MaxUint64, true)
		for k := range 1000 {
			if err := txn.Set(fmt.Appendf(nil, "Lother%d-%d", i, k), make([]byte, 250)); err != nil {
				t.Fatal(err)
			}
		}
		version := j.committer.clock.next()
		if err := txn.CommitAt(version, nil); err != nil {
			t.Fatal(err)
		}
		j.committer.version.Store(version)
	}
	if e := entriesOf(t, s, 0)[string(key)]; string(e.Value) != "old" || e.Version != before {
		t.Errorf("the snapshot has %q of %d, want old of %d", e.Value, e.Version, before)
	}
	s.Close()
	before = j.Version()
	set("")
	s = j.Snapshot()
	defer s.Close()
	if e, ok := entriesOf(t, s, before)[string(key)]; !ok || !e.Deleted {
		t.Errorf("the deletion is not in the snapshot: %+v", e)
	}

	// A journal that is made of both has the key no longer, in whatever order.
	for _, deletedFirst := range []bool{false, true} {
		to := t.TempDir()
		w, err := Create(to, quiet)
		if err != nil {
			t.Fatal(err)
		}
		entries := []codec.Entry{{Key: key, Value: []byte("old"), Version: before}, {Key: key, Version: before + 1, Deleted: true}}
		if deletedFirst {
			entries[0], entries[1] = entries[1], entries[0]
		}
		for _, e := range entries {
			if err := w.Put(e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		restored := opened(t, to)
		txn := restored.db.NewTransactionAt(math.MaxUint64, false)
		if found, err := lookup(txn, key, func([]byte) error { return nil }); found || err != nil {
			t.Errorf("a deleted key is there: %v, %v", found, err)
		}
		txn.Discard()
	}
}

// unread opens a journal whose table was not read since. It returns the path of the table and the number of the last chunk.
func unread(t *testing.T) (j *Journal, table string, last uint64) {
	t.Helper()
	dir := t.TempDir()
	written := open(t, dir)
	m := store.NewMerchantID()
	var marks []store.Mark
	for i := range 3000 {
		mark := store.Mark{Merchant: m, Tag: "cs_a", Name: "Linked", DedupeID: fmt.Sprint(i), Time: time.Now(), Raw: []byte("{}")}
		mark.Identity.MUID = "u"
		mark.Identity.Add(store.Email, fmt.Sprintf("v%d@example.com", i))
		marks = append(marks, mark)
	}
	if err := written.Record(t.Context(), marks); err != nil {
		t.Fatal(err)
	}
	last = written.Committed()
	closeJournal(t, written)
	j, err := Open(dir, Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatalf("%d tables: %v", len(tables), err)
	}
	return j, tables[0], last
}

// all reads all entries of a journal.
func all(t *testing.T, j *Journal) (n int, err error) {
	t.Helper()
	s := j.Snapshot()
	defer s.Close()
	err = s.Entries(t.Context(), 0, func(codec.Entry) error { n++; return nil }, func(uint64, error) {})
	return n, err
}

// Badger takes a damaged block for the end of its table. A snapshot must not.
func TestASnapshotOfADamagedTableFails(t *testing.T) {
	j, table, _ := unread(t)
	f, err := os.OpenFile(table, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt([]byte("not what Badger has written"), info.Size()/2)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if n, err := all(t, j); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("%d entries, and the error %v", n, err)
	}
}

// makeUnreadable makes reads of the first half of a mapped file fault, as a failing disk does, until the test ends. The
// table's index is at its end.
func makeUnreadable(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), path) {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		half := uintptr(info.Size() / 2 &^ int64(os.Getpagesize()-1))
		protect := func(how uintptr) {
			if _, _, err := unix.Syscall(unix.SYS_MPROTECT, from, half, how); err != 0 {
				t.Fatal(err)
			}
		}
		protect(unix.PROT_NONE)
		t.Cleanup(func() { protect(unix.PROT_READ | unix.PROT_WRITE) })
		return
	}
	t.Fatalf("%s is not mapped", path)
}

// A disk that cannot be read is a memory fault, which must not end the process.
func TestASnapshotOfAnUnreadableTableFails(t *testing.T) {
	j, table, last := unread(t)
	makeUnreadable(t, table)
	if n, err := all(t, j); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("%d entries, and the error %v", n, err)
	}
	if seq, err := j.LastChunkAt(j.Version()); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("the last chunk is %d, and the error %v", seq, err)
	}
	if has, err := j.HasChunk(last); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("chunk %d is there: %v, and the error %v", last, has, err)
	}
}
