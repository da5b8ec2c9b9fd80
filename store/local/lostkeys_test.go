package local

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/durable"
	"mtagd/store/testenv"
)

// losing is an engine that loses links and event_ids, and heals when the test says so.
type losing struct {
	*engine
	t     *testing.T
	dir   string
	shop  store.MerchantID
	round int
}

const lostOf = 600 // visitors, with one event each

func (x *losing) open() {
	e, err := Open(x.dir, Options{Log: quiet, unhealed: true})
	testenv.Check(x.t, err)
	x.engine = e.(*engine)
}

// zero overwrites 16 bytes in a block whose keys begin with a prefix, in a table of links and event_ids.
func (x *losing) zero(prefix byte) (path string) {
	x.t.Helper()
	key := keyOf(x.t, x.shop)
	text := append([]byte{prefix}, key[:]...)
	tables, err := filepath.Glob(filepath.Join(x.dir, "events", "keys", "*", "*.sst"))
	testenv.Check(x.t, err)
	for _, path := range tables {
		b, err := os.ReadFile(path)
		testenv.Check(x.t, err)
		if bytes.Count(b, text) < 8 { // a block has it once, and so does the index for each block
			continue
		}
		at := bytes.Index(b, text) + 1
		at += bytes.Index(b[at:], text) + 100
		x.overwrite(path, at, make([]byte, 16))
		return path
	}
	x.t.Fatal("no table has enough blocks")
	return ""
}

func (x *losing) overwrite(path string, at int, by []byte) {
	x.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	testenv.Check(x.t, err)
	_, err = f.WriteAt(by, int64(at))
	testenv.Check(x.t, err)
	testenv.Check(x.t, f.Close())
}

// each calls use for all visitors at once, so that they are committed in groups, and returns for how many it was to come again.
func (x *losing) each(what string, use func(n int) (want bool, err error)) (unavailable int) {
	x.t.Helper()
	var again, wrong atomic.Int64
	var running sync.WaitGroup
	for n := range lostOf {
		running.Go(func() {
			switch ok, err := use(n); {
			case store.KindOf(err) == store.KindUnavailable:
				again.Add(1)
			case err != nil || !ok:
				wrong.Add(1)
			}
		})
	}
	running.Wait()
	if n := wrong.Load(); n > 0 {
		x.t.Errorf("%s: %d of %d are wrong", what, n, lostOf)
	}
	return int(again.Load())
}

// send sends everything again, and new events, and returns how much of it was to come again. Nothing may be wrong.
func (x *losing) send() (eventIDs, links, cookies, others int) {
	x.t.Helper()
	x.round++
	one := func(m store.Mark, want store.Outcome) (bool, error) {
		marks := []store.Mark{m}
		err := x.Record(ctx, marks)
		return marks[0].Outcome == want, err
	}
	eventIDs = x.each("an event_id that comes again", func(n int) (bool, error) {
		m := newVisit(x.shop, n, 0)
		m.Identity = store.Identity{MUID: muidOf(n)}
		return one(m, store.Duplicate)
	})
	links = x.each("an email", func(n int) (bool, error) {
		muid, err := x.Resolve(ctx, x.shop, byEmail(n))
		return muid == muidOf(n), err
	})
	links += x.each("an event with an email", func(n int) (bool, error) {
		m := newVisit(x.shop, n, 0)
		m.Identity.MUID = ""
		return one(m, store.Duplicate)
	})
	cookies = x.each("a stranger with a visitor's cookie", func(n int) (bool, error) {
		m := newMark(x.shop, "View", n, []byte("{}"))
		m.Identity = store.Identity{MUID: muidOf(n), Source: store.ByCookie}
		m.Identity.Add(store.Phone, fmt.Sprint(1e6*x.round+n))
		return one(m, store.Recorded)
	})
	others = x.each("a new event", func(n int) (bool, error) {
		m := newMark(x.shop, "New", n, []byte("{}"))
		m.DedupeID = fmt.Sprint(x.round, n)
		return one(m, store.Recorded)
	})
	testenv.Check(x.t, x.index.now.Wait(ctx, x.journal.Committed()))
	page, err := x.Events(ctx, store.Query{Merchant: x.shop, Names: []string{"Visit"}, Limit: 1})
	if err != nil || page.Total != lostOf {
		x.t.Errorf("%d visits are recorded, want %d; %v", page.Total, lostOf, err)
	}
	all, err := x.journal.Links(ctx, keyOf(x.t, x.shop), func(l store.Link) bool { return l.Source == store.ByCookie })
	if len(all) > 0 || err != nil && x.Impaired() == nil {
		x.t.Errorf("%d strangers are trusted, %v", len(all), err)
	}
	return eventIDs, links, cookies, others
}

// expectSome sends everything while some keys are lost.
func (x *losing) expectSome(what string) {
	x.t.Helper()
	eventIDs, links, cookies, others := x.send()
	if eventIDs == 0 || links == 0 || cookies == 0 || max(eventIDs, links/2, cookies, others) > lostOf/3 {
		x.t.Errorf("%s: %d, %d, %d and %d of %d requests were to come again", what, eventIDs, links, cookies, others, lostOf)
	}
	if _, err := x.journal.Links(ctx, keyOf(x.t, x.shop), func(store.Link) bool { return true }); store.KindOf(err) != store.KindUnavailable {
		x.t.Errorf("%s: the links of a person, some of which may be lost: %v", what, err)
	}
	if x.Impaired() == nil || x.Ready() != nil {
		x.t.Errorf("%s: impaired: %v, ready: %v", what, x.Impaired(), x.Ready())
	}
}

// What damage may have cost is an error until it is written again: no event is recorded twice, none is without its person,
// and no stranger is trusted. That holds after a restart, after a second damage, for damage that a start finds, and after a
// repair.
func TestLostKeysAreAnErrorUntilTheyAreWrittenAgain(t *testing.T) {
	x := &losing{t: t, dir: t.TempDir(), shop: store.NewMerchantID()}
	x.open()
	defer func() { closeEngine(t, x.engine) }()
	var marks []store.Mark
	for n := range lostOf {
		marks = append(marks, newVisit(x.shop, n, 0))
	}
	testenv.Check(t, x.Record(ctx, marks))
	archiveAll(t, x.engine)
	testenv.Check(t, x.journal.Purge(ctx, func(uint64) error { return nil })) // the log has none of their keys any more
	for _, prefix := range []byte("ELU") {
		x.zero(prefix)
	}
	x.expectSome("before the rebuild")
	testenv.Check(t, x.healer.checkKeys())
	if x.journal.Damage() != nil {
		t.Fatal(x.journal.Damage())
	}
	x.expectSome("after the rebuild")
	before := len(x.journal.Lost())

	closeEngine(t, x.engine)
	x.open()
	x.expectSome("after a restart")
	closeEngine(t, x.engine)
	path := x.zero('E')
	info, err := os.Stat(path)
	testenv.Check(t, err)
	x.overwrite(path, int(info.Size())-40, []byte("index"))
	repaired := filepath.Join(t.TempDir(), "repaired")
	testenv.Check(t, Repair(ctx, x.dir, repaired, quiet, func(store.Finding) {}))
	x.open()
	if n := len(x.journal.Lost()); before < 3 || n <= before {
		t.Errorf("%d ranges of keys are lost, and %d after a second damage", before, n)
	}
	x.expectSome("after a start that has found damage")

	testenv.Check(t, x.healer.relink())
	if a, b, c, d := x.send(); a+b+c+d > 0 {
		t.Errorf("when all is written again, %d, %d, %d and %d requests are to come again", a, b, c, d)
	}
	if x.Impaired() != nil || durable.Exists(filepath.Join(x.dir, relinkFile)) {
		t.Errorf("when all is written again: %v", x.Impaired())
	}
	findNothing(t, x.engine)

	closeEngine(t, x.engine)
	x.dir = repaired
	x.open()
	x.expectSome("after a repair")
	testenv.Check(t, x.healer.relink())
	if a, b, c, d := x.send(); a+b+c+d > 0 {
		t.Errorf("when all is written again after a repair, %d, %d, %d and %d requests are to come again", a, b, c, d)
	}
}

// A damaged file says that all is to be written again, and no look-up fails.
func TestADamagedListOfLostKeys(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, relinkFile)
	for _, b := range []string{"", "x", `[{"From":"","To":""}]`} {
		testenv.Check(t, os.WriteFile(path, []byte(b), 0o600))
		if lost := readLostKeys(dir, quiet); lost != nil {
			t.Errorf("%q: %v", b, lost)
		}
	}
	x := &losing{t: t, dir: dir, shop: store.NewMerchantID()}
	x.open()
	defer func() { closeEngine(t, x.engine) }()
	marks := []store.Mark{newVisit(x.shop, 1, 0)}
	if err := x.Record(ctx, marks); err != nil || marks[0].Outcome != store.Recorded || x.Impaired() != nil {
		t.Errorf("outcome %d, %v; %v", marks[0].Outcome, err, x.Impaired())
	}
	testenv.Check(t, x.healer.relink())
	if durable.Exists(path) {
		t.Error("the file is left")
	}
}

// A backup of everything waits while links and event_ids are rebuilt, and holds nothing that the rebuild needs at its end.
func TestABackupWaitsForARebuild(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	testenv.Check(t, e.Record(ctx, []store.Mark{newMark(store.NewMerchantID(), "Purchase", 1, []byte("{}"))}))
	var streamed, rebuilt sync.WaitGroup
	rebuilt.Go(func() {
		if err := e.healer.rebuildKeys(errors.New("damage"), func(lost []badgerdb.Range) error {
			streamed.Go(func() {
				if err := SourceOf(e).Stream(ctx, backup.Request{}, io.Discard); err != nil {
					t.Error(err)
				}
			})
			for began := time.Now(); time.Since(began) < 200*time.Millisecond; runtime.Gosched() { // else it would hold this soon
				if !e.moving.TryLock() {
					break
				}
				e.moving.Unlock()
			}
			return e.healer.keysLost(lost)
		}); err != nil {
			t.Error(err)
		}
	})
	done := make(chan struct{})
	go func() { rebuilt.Wait(); streamed.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		panic("the backup and the rebuild wait for each other")
	}
}
