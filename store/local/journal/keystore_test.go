package journal

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
	"mtagd/store/testenv"
)

// When links are rebuilt, removed ones may be back. So whoever has to remove them again hears of it before the rebuilt ones
// count, and when that fails, the damaged ones stay.
func TestRebuiltLinksAreAnnouncedBeforeTheyCount(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if err := j.Record(ctx, []store.Mark{{Merchant: store.NewMerchantID(), Name: "View", DedupeID: "1", Identity: store.Identity{MUID: "m"}, Raw: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	if err := os.Truncate(filepath.Join(keysDir(dir), "g1", "000001.sst"), 200); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("cannot be noted")
	for _, result := range []error{failure, nil} {
		called := 0
		opened, err := Open(dir, Options{Log: quiet, Now: time.Now, Rebuilding: func([]badgerdb.Range) error { called++; return result }})
		if !errors.Is(err, result) || called != 1 {
			t.Fatalf("Rebuilding was called %d times; Open gives %v, want %v", called, err, result)
		}
		if err == nil {
			closeJournal(t, start(t, opened))
		}
	}
}

// After a long failure a flush has many entries. They become several tables, which count together: a kill between two of
// them costs nothing.
func TestDrillALargeFlush(t *testing.T) {
	testenv.Drill(t)
	const n = 200_000
	dir := t.TempDir()
	k, err := tryKeys(dir, quiet)
	testenv.Check(t, err)
	key := func(i int) []byte { return appendDedupeKey(nil, store.MerchantKey{1}, "Visit", strconv.Itoa(i)) }
	for i := range n {
		k.set(codec.Entry{Key: key(i), Value: binary.BigEndian.AppendUint64(nil, uint64(i))})
	}
	k.end(true)
	k.begin()
	copied := filepath.Join(t.TempDir(), "keys")
	testenv.Check(t, os.CopyFS(copied, os.DirFS(dir)))
	testenv.Check(t, k.flush(5, mark{at: 1000, sum: 7}))
	tables, err := filepath.Glob(filepath.Join(dir, "g1", "*.sst"))
	if err != nil || len(tables) < 2 {
		t.Fatal(tables, err)
	}
	for i := 0; i < n; i += 997 {
		if seen, found, err := k.read(key(i)); err != nil || !found || binary.BigEndian.Uint64(seen) != uint64(i) {
			t.Fatalf("event_id %d: %v, %v, %v", i, seen, found, err)
		}
	}
	testenv.Check(t, k.db.Close())
	one, err := os.ReadFile(tables[0])
	testenv.Check(t, err)
	// As after a kill that leaves only the first table.
	testenv.Check(t, os.WriteFile(filepath.Join(copied, "g1", filepath.Base(tables[0])), one, 0o600))
	if k, err = tryKeys(copied, quiet); err != nil {
		t.Fatal(err)
	}
	if upTo, err := k.flushedUpTo(); err != nil || upTo != (mark{}) || k.db.TableBytes() != 0 {
		t.Errorf("after a kill the log is needed from %d on, %d bytes, %v", upTo.at, k.db.TableBytes(), err)
	}
	testenv.Check(t, k.db.Close())
}

// Version 1.0.0 noted how far the log was flushed without a checksum.
func TestAMarkWithoutAChecksum(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	record(t, j, store.NewMerchantID(), 1)
	testenv.Check(t, errors.Join(j.Forget(1), j.flush()))
	at := j.flushed.Load()
	if m, err := j.keys.flushedUpTo(); err != nil || m.at == 0 || uint64(m.at) != at || m.sum == 0 {
		t.Fatal(m, err)
	}
	testenv.Check(t, j.keys.db.Put(codec.Entry{Key: []byte{prefixFlushed}, Value: binary.BigEndian.AppendUint64(nil, at), Version: j.keys.db.MaxVersion()}))
	closeJournal(t, j)
	j = open(t, dir)
	defer closeJournal(t, j)
	if m, err := j.keys.flushedUpTo(); err != nil || m != (mark{at: log.Position(at)}) || j.flushed.Load() != at {
		t.Errorf("it is read as %v, %v, and the log is needed from %d on", m, err, j.flushed.Load())
	}
}

// Version 1.0.0 noted that all its links were indexed. That is no damage.
func TestTheMarkOfAnIndexIsNoDamage(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	testenv.Check(t, errors.Join(j.keys.db.Put(codec.Entry{Key: []byte("V"), Value: []byte{1}, Version: 1}), j.keys.db.Flush()))
	wrong := func(where string, err error) { t.Errorf("%s: %v", where, err) }
	_, err := j.Verify(ctx, Check{Events: func(uint64, []Event) {}, Wrong: wrong, Read: func(uint64, uint64) {}})
	testenv.Check(t, err)
}

// While the database cannot be written, a removal or a refill does not fill the memory.
func TestManyChangesOfADatabaseThatCannotBeWritten(t *testing.T) {
	j := open(t, t.TempDir())
	j.maxEntries = 1000 // so few that tidy does not flush them
	for i := range j.maxEntries {
		j.keys.set(codec.Entry{Key: appendDedupeKey(nil, store.MerchantKey{1}, "Visit", strconv.Itoa(i)), Value: make([]byte, 8)})
	}
	j.keys.end(true)
	part := filepath.Join(keysDir(j.dir), "g1")
	testenv.Check(t, os.Rename(part, part+"-away"))
	if err := j.Remove(store.MerchantKey{1}, nil, []Remembered{{"Visit", "1"}}); err == nil {
		t.Error("a removal goes on")
	}
	testenv.Check(t, os.Rename(part+"-away", part))
	if err := j.Remove(store.MerchantKey{1}, nil, []Remembered{{"Visit", "2"}}); err != nil || j.keys.inMemory() > j.maxEntries {
		t.Error(j.keys.inMemory(), err)
	}
	closeJournal(t, j)
}

// An event_id counts while it is in memory, also while the database cannot be written, and until it is removed.
func TestEventIDsThatAreNotFlushedCount(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	shop := store.NewMerchantID()
	want := func(when, id string, want store.Outcome) {
		t.Helper()
		marks := []store.Mark{{Merchant: shop, Name: "View", DedupeID: id, Identity: store.Identity{MUID: "m"}, Raw: []byte("{}")}}
		if err := j.Record(ctx, marks); err != nil || marks[0].Outcome != want {
			t.Errorf("%s, the event %s has outcome %d, %v; want %d", when, id, marks[0].Outcome, err, want)
		}
	}
	j.flushes.Lock() // tidy would flush, too
	for _, id := range []string{"1", "2", "3"} {
		want("at first", id, store.Recorded)
		release := j.holdCommits()
		j.keys.begin() // a flush that fails
		release()
	}
	for _, id := range []string{"1", "2", "3"} {
		want("before the flush", id, store.Duplicate)
	}
	key, err := store.NewMerchantKey(shop)
	testenv.Check(t, errors.Join(err, j.Remove(key, nil, []Remembered{{"View", "2"}})))
	want("after it was removed", "2", store.Recorded)
	testenv.Check(t, errors.Join(j.Remove(key, nil, []Remembered{{"View", "3"}}), j.flushKeys(func() {})))
	if n := j.keys.inMemory(); n > 0 {
		t.Errorf("%d entries are in memory after a flush", n)
	}
	j.flushes.Unlock()
	for _, id := range []string{"1", "2"} {
		want("after the flush", id, store.Duplicate)
	}
	want("after it was removed and flushed", "3", store.Recorded)
}

// After a restart the tables from before are read once, with pauses for requests. An event_id in them counts meanwhile, and
// afterwards.
func TestEventIDsOfBeforeARestartCountWhileTheirTablesAreRead(t *testing.T) {
	dir, shop := t.TempDir(), store.NewMerchantID()
	visit := func(id int) store.Mark {
		return store.Mark{Merchant: shop, Name: "View", DedupeID: strconv.Itoa(id), Identity: store.Identity{MUID: "m"}, Raw: []byte("{}")}
	}
	j := open(t, dir)
	for id := range 5 {
		testenv.Check(t, j.Record(ctx, []store.Mark{visit(id)}))
		testenv.Check(t, j.flush())
	}
	closeJournal(t, j)
	pauses, goOn := make(chan bool), make(chan bool)
	opened, err := Open(dir, Options{Log: quiet, Now: time.Now, Pace: func() func() {
		return func() {
			select {
			case pauses <- true:
			case <-goOn:
			}
		}
	}})
	testenv.Check(t, err)
	j = start(t, opened)
	defer closeJournal(t, j)
	end := sync.OnceFunc(func() { close(goOn) })
	defer end()
	count := func(when string) {
		t.Helper()
		for id := range 5 {
			marks := []store.Mark{visit(id)}
			if err := j.Record(ctx, marks); err != nil || marks[0].Outcome != store.Duplicate {
				t.Errorf("%s, event_id %d has outcome %d, %v", when, id, marks[0].Outcome, err)
			}
		}
	}
	for n := range 5 {
		select {
		case <-pauses:
		case <-time.After(time.Minute):
			t.Fatalf("%d tables are read after the restart", n)
		}
		count("while the tables are read")
	}
	end()
	testenv.Check(t, j.keys.db.FilterTables(ctx, func() {}))
	count("afterwards")
}

// A rebuild does not wait for the filter: its caller links again what was lost, and that comes first.
func TestARebuildDoesNotWaitForTheFilter(t *testing.T) {
	pausing, goOn := make(chan bool), make(chan bool)
	begun, end := sync.OnceFunc(func() { close(pausing) }), sync.OnceFunc(func() { close(goOn) })
	opened, err := Open(t.TempDir(), Options{Log: quiet, Now: time.Now, Pace: func() func() {
		return func() {
			begun()
			<-goOn
		}
	}})
	testenv.Check(t, err)
	j := start(t, opened)
	defer closeJournal(t, j)
	mark := store.Mark{Merchant: store.NewMerchantID(), Name: "View", DedupeID: "1", Identity: store.Identity{MUID: "m"}, Raw: []byte("{}")}
	testenv.Check(t, j.Record(ctx, []store.Mark{mark}))
	testenv.Check(t, j.flush())
	rebuilt := make(chan bool)
	go func() {
		defer close(rebuilt)
		err = j.RebuildKeys(ctx, errors.New("damage"), func([]badgerdb.Range) error { return nil })
	}()
	defer func() { end(); <-rebuilt }()
	select {
	case <-rebuilt:
		testenv.Check(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the rebuild waits")
	}
	select {
	case <-pausing:
	case <-time.After(time.Minute):
		t.Fatal("the tables are not read")
	}
	marks := []store.Mark{mark}
	if err := j.Record(ctx, marks); err != nil || marks[0].Outcome != store.Duplicate {
		t.Errorf("meanwhile, the event_id has outcome %d, %v", marks[0].Outcome, err)
	}
}

// An event that needs a lost key is not recorded. What came before it is: another event of the request, which the error must not
// deny, and a link of the event itself, after which no stranger may count as the first one with the muid.
func TestWhatComesBeforeALostKey(t *testing.T) {
	shop := store.NewMerchantID()
	key, err := store.NewMerchantKey(shop)
	testenv.Check(t, err)
	byCookie := func(email, phone string) store.Mark {
		id := store.Identity{MUID: "m", Source: store.ByCookie}
		id.Add(store.Email, email)
		id.Add(store.Phone, phone)
		return store.Mark{Merchant: shop, Name: "View", Identity: id, Raw: []byte("{}")}
	}
	first, stranger := byCookie("a@example.com", "+4930901820"), byCookie("b@example.com", "+4930901821")
	keys := first.Identity.Keys()
	lost := appendLinkKey(nil, key, keys[len(keys)-1])
	opened, err := Open(t.TempDir(), Options{Log: quiet, Now: time.Now, Lost: []badgerdb.Range{{From: lost, To: lost}}})
	testenv.Check(t, err)
	j := start(t, opened)
	defer closeJournal(t, j)
	if err := j.Record(ctx, []store.Mark{first}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("an event that needs a lost key: %v", err)
	}
	if err := j.Record(ctx, []store.Mark{newMark(shop, "View", 1, []byte("{}")), first}); store.KindOf(err) != store.KindUncertain {
		t.Errorf("an event that needs a lost key, behind another one: %v", err)
	}
	testenv.Check(t, j.Record(ctx, []store.Mark{stranger}))
	for i, k := range stranger.Identity.Keys() {
		links, err := j.LinksOf(ctx, key, k)
		if err != nil || len(links) != 1 || links[0].Source != store.ByAnyone {
			t.Errorf("identifier %d of a stranger has the links %v, %v", i, links, err)
		}
	}
}
