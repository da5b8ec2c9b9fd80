package local

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/testenv"
)

// archiveAll archives everything that was recorded before.
func archiveAll(t *testing.T, e *engine) {
	t.Helper()
	testenv.Check(t, e.index.now.Wait(ctx, e.journal.Committed()))
	testenv.Check(t, e.archiver.moveAll(true))
	if n := chunks(t, e.journal); n != 0 {
		t.Fatalf("%d chunks are left in the journal", n)
	}
}

// chunks returns how many chunks a journal has.
func chunks(t *testing.T, j *journal.Journal) (n int) {
	t.Helper()
	testenv.Check(t, j.Since(0, math.MaxUint64, func([]journal.Event, uint64) error { n++; return nil }, func(journal.DamagedChunk) { n++ }))
	return n
}

// findNothing verifies an engine. The marks of these tests have tags that do not exist.
func findNothing(t *testing.T, e *engine) {
	t.Helper()
	if _, err := e.Verify(ctx, store.Verification{Found: func(f store.Finding) {
		if f.Part != store.PartTags {
			t.Errorf("verify: %s %s (%d events)", f.Where, f.Problem, f.Events)
		}
	}, Read: func(store.Part, uint64, uint64) {}}); err != nil {
		t.Error(err)
	}
}

// recordMany records events of several merchants, and returns what listings have to have.
func recordMany(t *testing.T, e *engine, shops []store.MerchantID, n int) map[store.MerchantID][2]store.Page {
	t.Helper()
	for i := range n {
		record(t, e, shops[i*i%len(shops)], 1+i%40)
	}
	return listAll(t, e, shops)
}

func listAll(t *testing.T, e *engine, shops []store.MerchantID) map[store.MerchantID][2]store.Page {
	t.Helper()
	pages := map[store.MerchantID][2]store.Page{}
	for _, m := range shops {
		pages[m] = everything(t, e, m)
	}
	return pages
}

func newShops(n int) (shops []store.MerchantID) {
	for range n {
		shops = append(shops, store.NewMerchantID())
	}
	return shops
}

// Listings are the same before and after events are archived, after a restart, and when the index is rebuilt.
func TestArchivedEventsAreListed(t *testing.T) {
	dir, shops := t.TempDir(), newShops(5)
	e := open(t, dir)
	recordMany(t, e, shops, 100)
	archiveAll(t, e)
	want := recordMany(t, e, shops, 60) // some events in the archive, some in the journal
	archiveAll(t, e)
	same := func(when string) {
		t.Helper()
		if got := listAll(t, e, shops); !reflect.DeepEqual(got, want) {
			t.Errorf("%s the listings are not the same", when)
		}
		findNothing(t, e)
	}
	same("after they were archived")
	want = recordMany(t, e, shops, 30)
	closeEngine(t, e)
	e = open(t, dir)
	same("after a restart")
	closeEngine(t, e)
	testenv.Check(t, os.Remove(filepath.Join(dir, "index.db")))
	e = open(t, dir)
	same("after the index was rebuilt")
	want = recordMany(t, e, shops, 30)
	same("after more were recorded")
	closeEngine(t, e)
}

// Events that are in the journal when the engine opens are archived run by run, even if no further events come.
func TestABacklogIsArchived(t *testing.T) {
	dir, shop := t.TempDir(), store.NewMerchantID()
	e := open(t, dir)
	for range 20 {
		record(t, e, shop, 100)
	}
	closeEngine(t, e)
	opened, err := Open(dir, Options{Log: quiet, ArchiveRun: 2000})
	testenv.Check(t, err)
	e = opened.(*engine)
	for e.archiver.waiting.Load() >= 2000 {
		time.Sleep(time.Millisecond)
	}
	if archived := e.archive.Events(); archived < 1900 {
		t.Errorf("%d events of 2000 are archived", archived)
	}
	closeEngine(t, e)
}

// A kill at any step of the archiver loses no event, and none is there twice.
func TestDrillAKillWhileEventsAreArchived(t *testing.T) {
	testenv.Drill(t)
	dir, shops := t.TempDir(), newShops(3)
	e := open(t, dir)
	recordMany(t, e, shops, 50)
	archiveAll(t, e)
	want := recordMany(t, e, shops, 50)
	killed := map[string]string{"before the run": copied(t, dir)}

	release := e.archiver.PauseMoves()
	testenv.Check(t, e.index.now.Merge(ctx))
	upTo, err := e.index.now.StoredUpTo()
	testenv.Check(t, err)
	run, last, damaged, err := e.archiver.read(upTo, func() {})
	if err != nil || damaged != nil {
		t.Fatal(damaged, err)
	}
	testenv.Check(t, e.archive.Add(run, last, func() {}))
	killed["after the run was added"] = copied(t, dir)
	testenv.Check(t, e.journal.Forget(last))
	killed["when the chunks are forgotten"] = copied(t, dir)
	release()
	archiveAll(t, e)
	killed["at the end"] = copied(t, dir)
	closeEngine(t, e)

	for when, dir := range killed {
		for _, index := range []string{"sound", "missing", "of a rebuild that was cut off"} {
			path := filepath.Join(dir, "index.db")
			if index != "sound" {
				testenv.Check(t, os.Remove(path))
			}
			if index == "of a rebuild that was cut off" { // with an event that no longer exists
				m, err := store.NewMerchantKey(shops[0])
				testenv.Check(t, err)
				x, err := rank.Open(path, quiet)
				testenv.Check(t, err)
				testenv.Check(t, x.Replay([]codec.Event{{Merchant: m, Position: store.Position{Seq: 1}, Series: codec.AppendSeries(nil, "cs_a", "A", false)}}, 1))
				x.Start()
				testenv.Check(t, x.Close())
			}
			e := open(t, dir)
			if got := listAll(t, e, shops); !reflect.DeepEqual(got, want) {
				t.Errorf("killed %s: the listings are not the same, the index is %s", when, index)
			}
			findNothing(t, e)
			archiveAll(t, e)
			if got := listAll(t, e, shops); !reflect.DeepEqual(got, want) {
				t.Errorf("killed %s: the listings are not the same after everything was archived, the index is %s", when, index)
			}
			findNothing(t, e)
			closeEngine(t, e)
		}
	}
}

// A directory whose archive is missing or too old is refused: its events would be missing.
func TestTheArchiveMustFitTheJournal(t *testing.T) {
	dir, shops := t.TempDir(), newShops(2)
	e := open(t, dir)
	recordMany(t, e, shops, 10)
	archiveAll(t, e)
	recordMany(t, e, shops, 10)
	closeEngine(t, e)
	testenv.Check(t, os.RemoveAll(filepath.Join(dir, "archive")))
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "archive/") {
		t.Errorf("without the archive Open gives %v, want an error that names it", err)
	}
}

// Listings, while events are recorded and archived all the time, have every event that was acknowledged.
func TestListingsWhileEventsMove(t *testing.T) {
	e, err := Open(t.TempDir(), Options{Log: quiet, ArchiveRun: 500})
	testenv.Check(t, err)
	defer closeEngine(t, e.(*engine))
	m := store.NewMerchantID()
	for n := 1; n <= 300; n++ {
		testenv.Check(t, e.Record(ctx, []store.Mark{newMark(m, fmt.Sprintf("Name%d", n%7), n, fmt.Appendf(nil, `{"n":%d}`, n))}))
		page, err := e.Events(ctx, store.Query{Merchant: m, SortBy: store.ByTime, Asc: true, Limit: 1000})
		if err != nil || page.Total != n || len(page.Events) != n {
			t.Fatalf("after %d events a page has %d of %d, %v", n, len(page.Events), page.Total, err)
		}
		for i, event := range page.Events {
			if string(event.Raw) != fmt.Sprintf(`{"n":%d}`, i+1) {
				t.Fatalf("event %d is %s", i+1, event.Raw)
			}
		}
	}
	if e.(*engine).archive.Boundary() == 0 {
		t.Error("nothing was archived")
	}
}

// The log files of archived events are removed. A purge gives back the space of removed events.
func TestDrillArchivedEventsGiveSpaceBack(t *testing.T) {
	testenv.Drill(t)
	dir, m := t.TempDir(), store.NewMerchantID()
	noise := rand.NewChaCha8([32]byte{}) // cannot be compressed
	logs := func() []string {
		t.Helper()
		found, err := logFiles(dir)
		testenv.Check(t, err)
		return found
	}
	recordNoise := func(e *engine, n int) {
		t.Helper()
		for range n {
			marks := make([]store.Mark, 16)
			for i := range marks {
				raw := make([]byte, 28<<10)
				if _, err := noise.Read(raw); err != nil {
					t.Fatal(err)
				}
				marks[i] = newMark(m, "Name", i, fmt.Appendf(nil, `{"n":"%x"}`, raw))
			}
			testenv.Check(t, e.Record(ctx, marks))
		}
	}
	e := open(t, dir)
	release := e.archiver.PauseMoves()
	recordNoise(e, 80)
	before := logs()
	release()
	if len(before) < 5 {
		t.Fatalf("log files %v, want several", before)
	}
	archiveAll(t, e)
	deadline := time.Now().Add(time.Minute)
	for len(logs()) > len(before)/2 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if after := logs(); slices.Contains(after, before[2]) || len(after) > len(before)/2 { // those that wait for a checkpoint, the newest and the next one
		t.Errorf("of %d log files %d are left", len(before), len(after))
	}
	recordNoise(e, 1)
	closeEngine(t, e)
	e = open(t, dir)
	archiveAll(t, e)
	recordNoise(e, 1)
	archiveAll(t, e)
	findNothing(t, e)
	total := everything(t, e, m)[0].Total
	drop(t, e, m)
	testenv.Check(t, e.archive.Purge(ctx, func() {}))
	if all, _ := e.archive.Sizes(); total != 82*16 || all > 20<<20 {
		t.Errorf("%d events were there; without them the archive has %d bytes", total, all)
	}
	closeEngine(t, e)
}
