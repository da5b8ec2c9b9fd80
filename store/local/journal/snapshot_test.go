package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
	"mtagd/store/testenv"
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
	if err := s.Entries(t.Context(), since, func(e codec.Entry, events int) error {
		if n, err := CheckEntry(e); err != nil || n != events {
			t.Errorf("entry %x has %d events, but %d are passed: %v", e.Key, n, events, err)
		}
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

// What Recent passes is what a search finds, for any two commits, also after flushes. The log keeps what is needed, and no
// more.
func TestRecentHasWhatASearchFinds(t *testing.T) {
	j := opened(t, t.TempDir())
	if _, entries := j.Recent(0, 0); entries != nil && j.Version() > 0 {
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
	shorten := func() {
		t.Helper()
		last, err := j.LastChunk()
		testenv.Check(t, errors.Join(err, j.log.Roll(), j.Forget(last), j.flush(), j.trim()))
	}
	recent := func(since, unneeded uint64) (map[string]uint64, bool) {
		_, entries := j.Recent(since, unneeded)
		if entries == nil {
			return nil, false
		}
		found := map[string]uint64{}
		testenv.Check(t, entries(func(e codec.Entry) error { found[string(e.Key)] = e.Version; return nil }))
		return found, true
	}
	commits := []uint64{write(0)}
	for i := range 9 {
		commits = append(commits, write(i+1))
		if i == 4 {
			recent(commits[4], 0) // a backup in between
		}
	}
	s, err := j.Snapshot()
	testenv.Check(t, err)
	want, ok := recent(commits[0], 0) // of each key, the last one
	if !ok || len(want) < 20 {
		t.Fatalf("there are %d keys", len(want))
	}
	for _, since := range commits {
		got, ok := recent(since, 0)
		found := entriesOf(t, s, since)
		for key := range got {
			if _, has := found[key]; !has {
				t.Errorf("since %d, there is %q, and a search has it not", since, key)
			}
		}
		for key, version := range want {
			if version > since && got[key] != version {
				t.Errorf("since %d, there is version %d of %q, %v; want %d", since, got[key], key, ok, version)
			}
		}
	}
	s.Close()
	shorten()
	if got, ok := recent(commits[6], commits[5]); !ok || len(got) < 3 {
		t.Errorf("what is needed is gone: %d keys", len(got))
	}
	first := j.log.First()
	recent(j.Version(), j.Version())
	shorten()
	for end := time.Now().Add(10 * time.Second); j.log.First() <= first; { // a trim does nothing while tidy trims
		if testenv.Check(t, j.trim()); time.Now().After(end) {
			t.Fatal("the log keeps what is not needed")
		}
	}
	if _, ok := recent(commits[4], 0); ok {
		t.Error("there is what is not needed any more")
	}
	end := j.log.End()
	if err := j.Purge(ctx, func(seq uint64) error { return j.Forget(seq) }); err != nil || j.log.First() < end {
		t.Errorf("after a purge the log has records from before: %v", err)
	}
}

// A damaged record of the log fails one backup. The next one finds what is new in the database.
func TestRecentLeavesOutADamagedLog(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	since, _ := j.Recent(0, 0)
	testenv.Check(t, j.Record(ctx, []store.Mark{newMark(m, "Purchase", 1, []byte(`{"this":"is the damaged record"}`))}))
	files, err := filepath.Glob(filepath.Join(logDir(dir), "*"))
	testenv.Check(t, err)
	damaged := 0
	for _, name := range files {
		content, err := os.ReadFile(name)
		testenv.Check(t, err)
		if at := bytes.Index(content, []byte("the damaged record")); at >= 0 {
			damaged++
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			testenv.Check(t, err)
			_, err = f.WriteAt([]byte("another"), int64(at))
			testenv.Check(t, errors.Join(err, f.Close()))
		}
	}
	_, entries := j.Recent(since, since)
	if damaged != 1 || entries == nil {
		t.Fatalf("%d files were damaged; the log has all: %v", damaged, entries != nil)
	}
	if err := entries(func(codec.Entry) error { return nil }); !errors.Is(err, log.ErrDamaged) {
		t.Errorf("the damage is not found: %v", err)
	}
	if _, entries := j.Recent(since, since); entries != nil {
		t.Error("the damaged record is read again")
	}
}

// When the log has grown by much since the last larger backup, the next one every few seconds is found in it all the same.
func TestTheLogKeepsWhatIsNewest(t *testing.T) {
	j := opened(t, t.TempDir())
	m := store.NewMerchantID()
	body, rng := make([]byte, 1<<20), rand.NewChaCha8([32]byte{})
	grow := func() {
		t.Helper()
		for end := j.log.End() + maxRecent/2; j.log.End() <= end; {
			_, _ = rng.Read(body) // never fails
			testenv.Check(t, j.Record(ctx, []store.Mark{newMark(m, "Purchase", 1, body)}))
		}
	}
	record(t, j, m, 1)
	first, _ := j.Recent(0, 0)
	grow()
	second, _ := j.Recent(first, 0)
	grow()
	j.keptForRecent(j.log.End()) // as trim does now and then
	if _, entries := j.Recent(second, 0); entries == nil {
		t.Error("what is new since the last backup is not kept")
	}
	if _, entries := j.Recent(first, 0); entries != nil {
		t.Error("more than maxRecent is kept")
	}
}

// While a snapshot is open, it has what its moment had: later commits and compactions change nothing. Deletions are in it.
func TestASnapshotStaysAsItWas(t *testing.T) {
	j := opened(t, t.TempDir())
	key := appendLinkKey(nil, store.MerchantKey{1}, store.IdentityKey{1})
	set := func(value string) {
		t.Helper()
		if err := errors.Join(j.committer.edit(func(tx *transaction) error {
			if value == "" {
				tx.delete(key)
			} else {
				tx.set(key, []byte(value), 0)
			}
			return nil
		}), j.flush()); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func() Snapshot {
		t.Helper()
		s, err := j.Snapshot()
		testenv.Check(t, err)
		return s
	}
	set("old")
	before := j.Version()
	s := snapshot()
	set("new")
	testenv.Check(t, j.keys.db.Compact(ctx, func() {}))
	if e := entriesOf(t, s, 0)[string(key)]; string(e.Value) != "old" || e.Version > before {
		t.Errorf("the snapshot has %q of %d, want old of at most %d", e.Value, e.Version, before)
	}
	s.Close()
	before = j.Version()
	set("")
	s = snapshot()
	defer s.Close()
	if e, ok := entriesOf(t, s, before)[string(key)]; !ok || !e.Deleted {
		t.Errorf("the deletion is not in the snapshot: %+v", e)
	}

	// A journal that is made of both has the key no longer, in whatever order.
	for _, deletedFirst := range []bool{false, true} {
		to := t.TempDir()
		w, err := Create(to, quiet)
		testenv.Check(t, err)
		entries := []codec.Entry{{Key: key, Value: []byte("old"), Version: before}, {Key: key, Version: before + 1, Deleted: true}}
		if deletedFirst {
			entries[0], entries[1] = entries[1], entries[0]
		}
		for _, e := range entries {
			testenv.Check(t, w.Put(e))
		}
		testenv.Check(t, w.Close())
		restored := opened(t, to)
		if _, found, err := restored.keys.get(key); found || err != nil {
			t.Errorf("a deleted key is there: %v, %v", found, err)
		}
	}
}

// A backup of a later version is refused, and verify says so too. Those of the versions before 1.0.0 are read.
func TestEntriesOfAnotherFormatAreRefused(t *testing.T) {
	w, err := Create(t.TempDir(), quiet)
	testenv.Check(t, err)
	defer func() { testenv.Check(t, w.Close()) }()
	old := codec.Entry{Key: []byte{prefixFormat}, Value: []byte("7"), Version: 1}
	_, checked := CheckEntry(old)
	for _, err := range []error{checked, w.Put(old)} {
		if !errors.Is(err, codec.UnknownFormat{Found: "7", Known: Format}) {
			t.Errorf("an entry of format 7: %v", err)
		}
	}
	for _, format := range []string{"3", "4", "5"} {
		former := codec.Entry{Key: []byte{prefixFormat}, Value: []byte(format), Version: 1}
		_, checked := CheckEntry(former)
		if err := errors.Join(checked, w.Put(former)); err != nil {
			t.Errorf("an entry of format %s: %v", format, err)
		}
	}
}

// A snapshot that is taken beside commits has the event_ids of exactly the events that it has.
func TestASnapshotHasTheKeysOfItsEvents(t *testing.T) {
	j := opened(t, t.TempDir())
	m := store.NewMerchantID()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			mark := newMark(m, "Purchase", i, []byte("{}"))
			mark.DedupeID = fmt.Sprint(i)
			if err := j.Record(ctx, []store.Mark{mark}); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 5 {
		s, err := j.Snapshot()
		testenv.Check(t, err)
		events, ids := 0, 0
		for key, e := range entriesOf(t, s, 0) {
			n, err := CheckEntry(e)
			testenv.Check(t, err)
			events += n
			if key[0] == prefixDedupe {
				ids++
			}
		}
		s.Close()
		if events != ids {
			t.Errorf("%d events with %d event_ids", events, ids)
		}
	}
	close(stop)
	<-stopped
}
