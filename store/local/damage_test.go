package local

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	inBadger := func(path string) error {
		db, err := badgerdb.Open(path, quiet)
		if err != nil {
			return err
		}
		return errors.Join(db.Put(codec.Entry{Key: []byte("F"), Value: []byte("99"), Version: db.MaxVersion() + 1}), db.Flush(), db.Close())
	}
	inBolt := func(path string) error {
		return changeBolt(path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("99")) })
	}
	for name, change := range map[string]func(path string) error{
		"events":     inBadger,
		"control.db": inBolt,
	} {
		dir := t.TempDir()
		closeEngine(t, open(t, dir))
		path := filepath.Join(dir, name)
		if name == "events" {
			path = filepath.Join(path, "keys")
		}
		testenv.Check(t, change(path))
		_, err := Open(dir, Options{Log: quiet})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), `format "99"`) {
			t.Errorf("with %s of format 99, Open gives %v; want an error that names both", name, err)
		}
	}
}

// changeBolt changes a bbolt file in one transaction.
func changeBolt(path string, change func(tx *bolt.Tx) error) error {
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	return errors.Join(db.Update(change), db.Close())
}

// damage rewrites a file with what change returns.
func damage(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	testenv.Check(t, err)
	testenv.Check(t, os.WriteFile(path, change(b), 0o600))
}

// A database of links and event_ids that cannot be opened is rebuilt from what can be read of it.
func TestDrillADamagedDatabaseOfLinksIsRebuilt(t *testing.T) {
	testenv.Drill(t)
	live := t.TempDir()
	e := open(t, live)
	mark := newMark(store.NewMerchantID(), "Login", 1, []byte("{}"))
	mark.Identity.Add(store.Email, "ann@example.com")
	marks := []store.Mark{mark}
	for n := range 2000 { // in several blocks
		marks = append(marks, mark)
		marks[1+n].DedupeID = fmt.Sprint(n)
	}
	testenv.Check(t, e.Record(ctx, marks))
	closeEngine(t, e)
	for name, change := range map[string]func(b []byte){
		"the index at the end of a table":                func(b []byte) { b[len(b)-30] ^= 0xff },
		"the first block, which a start needs":           func(b []byte) { b[10] ^= 4 },
		"the first block, in a way that nobody corrects": func(b []byte) { b[10] ^= 0x55; b[11] ^= 0x33 },
	} {
		dir := copied(t, live)
		tables, err := filepath.Glob(filepath.Join(dir, "events", "keys", "*", "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("no tables: %v", err)
		}
		damage(t, tables[0], func(b []byte) []byte { // the others have one block
			change(b)
			return b
		})
		e := open(t, dir)
		var ann store.Identity
		ann.Add(store.Email, "ann@example.com")
		if muid, err := e.Resolve(ctx, mark.Merchant, ann); muid != mark.Identity.MUID || err != nil {
			t.Errorf("%s: the link leads to %q, %v", name, muid, err)
		}
		closeEngine(t, e)
	}
}

// A damaged node or root record fails the queries that read it, or is found at the start. Then the index is rebuilt.
func TestADamagedIndexValueIsRebuilt(t *testing.T) {
	for _, bucket := range []string{"nodes", "roots"} {
		dir := t.TempDir()
		e := open(t, dir)
		m, other := store.NewMerchantID(), store.NewMerchantID()
		record(t, e, m, 100)
		record(t, e, other, 100)
		closeEngine(t, e) // merges
		key, err := store.NewMerchantKey(m)
		testenv.Check(t, err)
		if err := changeBolt(filepath.Join(dir, "index.db"), func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			k, v := b.Cursor().Seek(key[:]) // 100 events are one node
			v = slices.Clone(v)
			v[len(v)/2] ^= 0x01
			return b.Put(k, v)
		}); err != nil {
			t.Fatal(err)
		}
		e = open(t, dir)
		if page, err := e.Events(ctx, store.Query{Merchant: other, Limit: 100}); err != nil || len(page.Events) != 100 {
			t.Errorf("damaged %s: %d events of another merchant, %v; want 100", bucket, len(page.Events), err)
		}
		page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100})
		if err != nil && (!errors.Is(err, codec.ErrCorrupt) || store.KindOf(err) != store.KindUnavailable || !strings.Contains(err.Error(), "index.db")) {
			t.Errorf("damaged %s: %v; want KindUnavailable and codec.ErrCorrupt in index.db", bucket, err)
		}
		if err == nil && len(page.Events) != 100 {
			t.Errorf("damaged %s: %d events without an error, want 100", bucket, len(page.Events))
		}
		checkRebuilt(t, e, dir, m, 100)
	}
}

// checkRebuilt waits until the index is rebuilt, and checks that it has the events, and takes new ones.
func checkRebuilt(t *testing.T, e *engine, dir string, m store.MerchantID, want int) {
	t.Helper()
	e.index.work.Wait()
	record(t, e, m, 10)
	if page, err := listed(e, m); err != nil || page.Total != want+10 {
		t.Errorf("%d events in the new index, %v; want %d", page.Total, err, want+10)
	}
	closeEngine(t, e)
	if found := slices.DeleteFunc(closedFindings(t, dir), func(f store.Finding) bool { return f.Part == store.PartTags }); len(found) > 0 {
		t.Errorf("the rebuilt directory has findings: %v", found)
	}
	e = open(t, dir)
	if page, err := listed(e, m); err != nil || page.Total != want+10 || rebuilds(e) != 0 {
		t.Errorf("%d events after a restart, %v, %d rebuilds; want %d and none", page.Total, err, rebuilds(e), want+10)
	}
	closeEngine(t, e)
}

// rebuilds returns how often the index was rebuilt.
func rebuilds(e *engine) uint64 {
	e.index.mu.Lock()
	defer e.index.mu.Unlock()
	return e.index.rebuilt
}

// overwrite writes zeros over the pages of a file from page first on, while it is open.
func overwrite(t *testing.T, path string, first int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	testenv.Check(t, err)
	info, err := f.Stat()
	testenv.Check(t, err)
	at := int64(first * os.Getpagesize())
	_, err = f.WriteAt(make([]byte, info.Size()-at), at)
	testenv.Check(t, errors.Join(err, f.Close()))
}

// The file is damaged while the service runs. Events are recorded all the time, none is lost and none is counted twice.
func TestAnIndexIsRebuiltWhileEventsAreRecorded(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 3000)
	closeEngine(t, e) // merges
	e, values := openMeasured(t, dir)
	overwrite(t, filepath.Join(dir, "index.db"), 2)
	recorded := 3000
	for rebuilds(e) == 0 && !t.Failed() {
		record(t, e, m, 20)
		recorded += 20
		if page, err := listed(e, m); err == nil && page.Total != recorded {
			t.Errorf("%d events without an error, want %d", page.Total, recorded)
		}
		if err := e.Ready(); err != nil {
			t.Errorf("the engine takes events and is not ready: %v", err)
		}
	}
	e.index.work.Wait()
	if got := values(); rebuilds(e) != 1 || got["mtagd_index_rebuilding"] != 0 || got["mtagd_index_events"] != float64(recorded) {
		t.Errorf("the metrics are %v, want %d events", got, recorded)
	}
	checkRebuilt(t, e, dir, m, recorded)
}

// A verification that finds damage in the index has it rebuilt.
func TestAVerificationRebuildsTheIndex(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 3000)
	closeEngine(t, e)
	testenv.Check(t, removeFromIndex(dir, m, 5))
	e = open(t, dir)
	if found := findings(t, e.Verify); found == nil {
		t.Error("the verification finds nothing")
	}
	checkRebuilt(t, e, dir, m, 3000)
}

// A kill during a rebuild leaves the old file and a part of the new one.
func TestARebuildThatIsCutOffBeginsAgain(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 3000)
	closeEngine(t, e)
	index := filepath.Join(dir, "index.db")
	b, err := os.ReadFile(index)
	testenv.Check(t, err)
	testenv.Check(t, os.WriteFile(index+durable.NewSuffix, b[:len(b)/2], 0o600))
	damage(t, index, func(b []byte) []byte { clear(b[2*os.Getpagesize():]); return b })
	e = open(t, dir)
	if _, err := os.Stat(index + durable.NewSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the part of a new index is still there: %v", err)
	}
	checkRebuilt(t, e, dir, m, 3000)
}

// bbolt panics on a damaged page, and reading past the end of a file that was cut short is a memory fault. Either must
// become an error, no listing may be wrong, and the index is rebuilt.
func TestDrillADamagedIndexFileIsRebuilt(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 5000)
	closeEngine(t, e) // merges
	const page = 4096
	size := 0
	for name, change := range map[string]func([]byte) []byte{
		"empty":             func(b []byte) []byte { return b[:0] },
		"one page":          func(b []byte) []byte { return b[:page] },
		"two pages":         func(b []byte) []byte { return b[:2*page] },
		"four pages":        func(b []byte) []byte { return b[:4*page] },
		"eight pages":       func(b []byte) []byte { return b[:8*page] },
		"no metas":          func(b []byte) []byte { clear(b[:2*page]); return b },
		"nothing but metas": func(b []byte) []byte { clear(b[2*page:]); return b },
		"every third page": func(b []byte) []byte {
			for at := 4 * page; at < len(b); at += 3 * page {
				clear(b[at : at+page])
			}
			return b
		},
	} {
		base := copied(t, dir)
		damage(t, filepath.Join(base, "index.db"), func(b []byte) []byte {
			size = len(b)
			return change(b)
		})
		t.Log(name)
		e := open(t, base)
		if page, err := listed(e, m); err == nil && page.Total != 5000 {
			t.Errorf("%s: %d events without an error, want 5000", name, page.Total)
		}
		e.index.work.Wait()
		if name != "empty" && rebuilds(e) == 0 { // an empty file is a new one
			t.Errorf("%s: the index was not rebuilt", name)
		}
		checkRebuilt(t, e, base, m, 5000)
	}
	if size < 16*page {
		t.Errorf("index.db has %d bytes: too few pages for the damages above", size)
	}
}

// A file that loses its meta pages while it is open holds up nobody: listings read a rebuilt index, the copy is made anew,
// and a stop ends.
func TestAnOpenFileLosesItsMetaPages(t *testing.T) {
	for _, name := range []string{"index.db", "control.db", "control.copy"} {
		dir := t.TempDir()
		e := open(t, dir)
		m := store.NewMerchantID()
		record(t, e, m, 100)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
		testenv.Check(t, err)
		_, err = f.WriteAt(make([]byte, 2*os.Getpagesize()), 0)
		testenv.Check(t, errors.Join(err, f.Close()))
		for range 2 {
			if _, err := e.AddPartner(ctx, "Acme"); (err == nil) != (name != "control.db") {
				t.Errorf("%s: a change: %v", name, err)
			}
		}
		_, _ = listed(e, m) // finds the damage
		e.index.work.Wait()
		if page, err := listed(e, m); err != nil || page.Total != 100 {
			t.Errorf("%s: %d events, want 100; %v", name, page.Total, err)
		}
		_ = e.Close() // says what is damaged
		e = open(t, dir)
		if page, err := listed(e, m); err != nil || page.Total != 100 {
			t.Errorf("%s: %d events after a restart, want 100; %v", name, page.Total, err)
		}
		closeEngine(t, e)
	}
}

// listed lists a merchant's events. It turns a panic into an error, as the server does.
func listed(e *engine, m store.MerchantID) (page store.Page, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return e.Events(ctx, store.Query{Merchant: m, Limit: 1})
}

// Events of a damaged chunk are never listed: pages and totals are without them.
func TestADamagedChunkIsNotListed(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 100)
	record(t, e, other, 100)
	closeEngine(t, e)
	testenv.Check(t, damageChunk(dir, `{"n":`))
	e = open(t, dir)
	defer closeEngine(t, e)
	if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100}); err != nil || len(page.Events) != 0 || page.Total != 0 {
		t.Errorf("%d events of a damaged chunk were listed, total %d, %v", len(page.Events), page.Total, err)
	}
	if page, err := e.Events(ctx, store.Query{Merchant: other, Limit: 100}); err != nil || len(page.Events) != 100 {
		t.Errorf("%d events of undamaged chunks were listed, %v; want 100", len(page.Events), err)
	}
}

// A new control.db beside events would lack the merchants of these events. The copy has them.
func TestAMissingControlFileStopsTheStart(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	_, err := e.AddPartner(ctx, "Acme")
	testenv.Check(t, err)
	closeEngine(t, e)
	path := filepath.Join(dir, "control.db")
	testenv.Check(t, os.Remove(path))
	e = open(t, dir)
	partnerOf(t, e)
	closeEngine(t, e)
	testenv.Check(t, os.Remove(filepath.Join(dir, "control.copy")))
	for name, damage := range map[string]func() error{
		"missing": func() error { return os.Remove(path) },
		"empty":   func() error { return os.WriteFile(path, nil, 0o600) },
	} {
		testenv.Check(t, damage())
		before := sizes(t, dir)
		for _, opens := range []func() error{
			func() error { _, err := Open(dir, Options{Log: quiet}); return err },
			func() error { _, err := OpenControl(dir, Options{Log: quiet}); return err },
		} {
			if err := opens(); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: the start gives %v; want an error that names %s", name, err, path)
			}
		}
		if after := sizes(t, dir); !maps.Equal(before, after) {
			t.Errorf("%s: the start has changed files: %v, before %v", name, after, before)
		}
	}
}

// When the index cannot be written, its events are on disk, but the engine accepts no more and is not ready.
func TestAnEngineWhoseIndexFailedIsNotReady(t *testing.T) {
	d := faultfs.New(t)
	c := startChild(t, filepath.Join(d.Dir, "data"))
	c.opened()
	var a acknowledged
	if got := c.ask("ready"); got != "ok" {
		t.Error("before: ", got)
	}
	d.Fail(faultfs.Rule{Op: faultfs.Write, Files: "index.db", Count: 1, Errno: syscall.EIO})
	for c.ask("ready") == "ok" { // until the next merge
		if !a.record(c) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := c.ask("ready"); !strings.Contains(got, store.ErrNeedsRestart.Error()) {
		t.Errorf("ready gives %q, want that a restart is needed", got)
	}
	if a.record(c) {
		t.Error("an event is accepted")
	}
	if got := c.ask("close"); !strings.HasPrefix(got, "error") {
		t.Error("close hides the failure")
	}
	c = startChild(t, filepath.Join(d.Dir, "data"))
	c.opened()
	a.checkAll(t, c)
	c.kill()
}

// A change of control.db that cannot be committed may be on the disk or not: it may have deleted a merchant. So no event is
// accepted, as the service is not ready, until the next start.
func TestAnEngineWhoseControlDataFailedIsNotReady(t *testing.T) {
	d := faultfs.New(t)
	dir := filepath.Join(d.Dir, "data")
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 10)
	d.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "control.db", Count: 1, Errno: syscall.EIO})
	if _, err := e.AddPartner(ctx, "Failed"); !errors.Is(err, store.ErrNeedsRestart) {
		t.Errorf("the change gives %v, want that a restart is needed", err)
	}
	if err := e.Ready(); !errors.Is(err, store.ErrNeedsRestart) {
		t.Errorf("Ready gives %v, want that a restart is needed", err)
	}
	if err := e.Record(ctx, []store.Mark{newMark(m, "Late", 1, []byte("{}"))}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("an event gives %v, want KindUnavailable", err)
	}
	if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100}); err != nil || page.Total != 10 {
		t.Errorf("a listing has %d events, %v", page.Total, err)
	}
	closeEngine(t, e)
	e = open(t, dir)
	defer closeEngine(t, e)
	record(t, e, m, 1)
}

// Damage of control.db that a change has met is named for operators, while everything is served and events are accepted.
func TestDamageOfTheControlDataIsNamed(t *testing.T) {
	e := open(t, t.TempDir())
	m := store.NewMerchantID()
	record(t, e, m, 10)
	f, err := os.OpenFile(filepath.Join(e.dir, "control.db"), os.O_WRONLY, 0)
	testenv.Check(t, err)
	_, err = f.WriteAt(make([]byte, 2*4096), 0) // bbolt maps the file
	testenv.Check(t, errors.Join(err, f.Close()))
	testenv.Check(t, e.Impaired())
	if _, err := e.AddPartner(ctx, "Failed"); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("the change gives %v, want KindUnavailable", err)
	}
	if err := e.Impaired(); err == nil || !strings.Contains(err.Error(), "control.db") || e.Ready() != nil {
		t.Errorf("impaired: %v, ready: %v", err, e.Ready())
	}
	record(t, e, m, 1)
	_ = e.Close() // fails without meta pages
}

// When a commit of control.db fails, its meta page may be there but not synced. No change is built on it, and the next start
// finds a sound file.
func TestAFailedCommitOfControlDataNeedsARestart(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Sync, faultfs.Write} {
		for skip := range 2 { // the pages, and the meta page
			for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
				t.Run(fmt.Sprintf("%v %d %v", op, skip, errno), func(t *testing.T) { failCommit(t, op, skip, errno) })
			}
		}
	}
}

// A copy that cannot be written or synced is made anew at once, and the change is done. On a full disk it is kept, and a change that cannot
// be written fails.
func TestACopyThatCannotBeWritten(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Sync, faultfs.Write} {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
			d := faultfs.New(t)
			dir := filepath.Join(d.Dir, "data")
			data, err := OpenControl(dir, Options{Log: quiet})
			testenv.Check(t, err)
			_, err = data.AddPartner(ctx, "Before")
			testenv.Check(t, err)
			before, err := os.Stat(filepath.Join(dir, "control.copy"))
			testenv.Check(t, err)
			d.Fail(faultfs.Rule{Op: op, Files: "control.copy", Count: 1, Errno: errno})
			want := 3
			if op == faultfs.Write && errno == syscall.ENOSPC {
				want = 2
			}
			if _, err := data.AddPartner(ctx, "Second"); (err == nil) != (want == 3) || errors.Is(err, store.ErrNeedsRestart) {
				t.Errorf("%v %v: the change gives %v", op, errno, err)
			}
			d.Fail()
			_, err = data.AddPartner(ctx, "Later")
			testenv.Check(t, err)
			after, err := os.Stat(filepath.Join(dir, "control.copy"))
			testenv.Check(t, errors.Join(err, data.Close(), os.Truncate(filepath.Join(dir, "control.db"), 10)))
			if kept := os.SameFile(before, after); kept != (want == 2) {
				t.Errorf("%v %v: the same copy: %v", op, errno, kept)
			}
			data, err = OpenControl(dir, Options{Log: quiet})
			testenv.Check(t, err)
			if partners, err := data.Partners(ctx); err != nil || len(partners) != want {
				t.Errorf("%v %v: there are %d partners, %v", op, errno, len(partners), err)
			}
			testenv.Check(t, data.Close())
		}
	}
}

// An old copy that can be neither synced nor made anew does not stay: after a power cut it could be as before the change, and take the
// place of control.db.
func TestACopyThatCannotBeSyncedDoesNotStay(t *testing.T) {
	d := faultfs.New(t)
	dir := filepath.Join(d.Dir, "data")
	data, err := OpenControl(dir, Options{Log: quiet})
	testenv.Check(t, err)
	p, err := data.AddPartner(ctx, "Shop")
	testenv.Check(t, err)
	k, _, err := data.IssueKey(ctx, p.ID, store.KeyOptions{})
	testenv.Check(t, err)
	d.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "control.copy", Errno: syscall.EIO},
		faultfs.Rule{Op: faultfs.Write, Files: "control.copy.new", Errno: syscall.ENOSPC})
	_, err = data.RevokeKey(ctx, k.ID, true)
	testenv.Check(t, err)
	d.Fail()
	d.Cut()
	testenv.Check(t, data.Close())
	d.Restore(0, 1)
	testenv.Check(t, os.Truncate(filepath.Join(dir, "control.db"), 10))
	if data, err = OpenControl(dir, Options{Log: quiet}); err == nil {
		k, ok := data.Directory().Key(k.ID)
		t.Errorf("control.db was cut short, and the start takes another file: the revoked key is %+v, %v", k, ok)
		testenv.Check(t, data.Close())
	}
}

// A copy that was written before a kill is synced before it takes the place of control.db.
func TestACopyIsSyncedBeforeItIsTaken(t *testing.T) {
	d := faultfs.New(t)
	dir := filepath.Join(d.Dir, "data")
	data, err := OpenControl(dir, Options{Log: quiet})
	testenv.Check(t, err)
	_, err = data.AddPartner(ctx, "Shop")
	testenv.Check(t, errors.Join(err, data.Close()))
	path := filepath.Join(dir, "control.copy")
	content, err := os.ReadFile(path)
	testenv.Check(t, err)
	testenv.Check(t, errors.Join(os.WriteFile(path, content[:10], 0o600), durable.SyncPath(path), os.WriteFile(path, content, 0o600),
		os.Truncate(filepath.Join(dir, "control.db"), 10)))
	d.Fail(faultfs.Rule{Op: faultfs.Sync, Files: "control.db", Errno: syscall.EIO}) // what comes after the rename does not happen
	if data, err = OpenControl(dir, Options{Log: quiet}); err == nil {
		t.Error("the start succeeds")
		testenv.Check(t, data.Close())
	}
	d.Cut()
	d.Restore(0, 1)
	data, err = OpenControl(dir, Options{Log: quiet})
	testenv.Check(t, err)
	if partners, err := data.Partners(ctx); err != nil || len(partners) != 1 {
		t.Errorf("there are %d partners, %v", len(partners), err)
	}
	testenv.Check(t, data.Close())
}

// A power cut at any moment leaves all changes that were answered, in control.db, and after the next start in both files.
func TestDrillAPowerCutBesideChangesOfControlData(t *testing.T) {
	testenv.Drill(t)
	random := testenv.Random(t)
	for range testenv.Rounds(8) {
		d := faultfs.New(t)
		dir := filepath.Join(d.Dir, "data")
		data, err := OpenControl(dir, Options{Log: quiet})
		testenv.Check(t, err)
		var answered atomic.Int64
		stop, cut := int64(random.IntN(12)), make(chan struct{})
		var changes sync.WaitGroup
		changes.Go(func() {
			for {
				if _, err := data.AddPartner(ctx, "Shop"); err != nil {
					t.Error(err)
					return
				}
				if answered.Add(1); answered.Load() >= stop {
					select {
					case <-cut:
						return
					default:
					}
				}
			}
		})
		for answered.Load() < stop {
			runtime.Gosched()
		}
		for range random.IntN(2000) { // so that it is in the middle of a change
			runtime.Gosched()
		}
		before := answered.Load()
		d.Cut()
		close(cut)
		changes.Wait()
		testenv.Check(t, data.Close())
		d.Restore(random.Float64(), random.Uint64())
		for _, name := range []string{"control.db", "control.copy"} { // the second time, the copy is in its place
			data, err := OpenControl(dir, Options{Log: quiet})
			testenv.Check(t, err)
			if partners, err := data.Partners(ctx); err != nil || int64(len(partners)) < before {
				t.Errorf("%d of %d partners are in %s, %v", len(partners), before, name, err)
			}
			testenv.Check(t, errors.Join(data.Close(), os.Truncate(filepath.Join(dir, "control.db"), 10)))
		}
	}
}

func failCommit(t *testing.T, op faultfs.Op, skip int, errno syscall.Errno) {
	d := faultfs.New(t)
	dir := filepath.Join(d.Dir, "data")
	data, err := OpenControl(dir, Options{Log: quiet})
	testenv.Check(t, err)
	if _, err := data.AddPartner(ctx, "Before"); err != nil {
		t.Fatal(err)
	}
	d.Fail(faultfs.Rule{Op: op, Files: "control.db", Skip: skip, Count: 1, Errno: errno})
	_, failed := data.AddPartner(ctx, "Failed")
	d.Fail()
	_, later := data.AddPartner(ctx, "Later")
	names := []string{"Before"}
	switch ready := data.Failure(); {
	case failed == nil:
		t.Error("the change that cannot be committed gives no error")
	case ready == nil && errno == syscall.ENOSPC: // nothing of it is visible
		if store.KindOf(failed) != store.KindUnavailable || later != nil {
			t.Errorf("a change on a full disk gives %v, a later one %v", failed, later)
		}
		names = append(names, "Later")
	case !errors.Is(ready, store.ErrNeedsRestart) || !errors.Is(later, store.ErrNeedsRestart):
		t.Errorf("a later change gives %v, Failure %v; want that a restart is needed", later, ready)
	}
	check := func(when string, mayHave string) {
		t.Helper()
		partners, err := data.Partners(ctx)
		var got []string
		for _, p := range partners {
			if p.Name != mayHave {
				got = append(got, p.Name)
			}
		}
		if err != nil || !slices.Equal(got, names) {
			t.Errorf("%s there are %q, %v; want %q", when, got, err, names)
		}
	}
	check("before the restart", "")
	if err := data.Close(); err != nil {
		t.Error(err)
	}
	if data, err = OpenControl(dir, Options{Log: quiet}); err != nil {
		t.Fatal("the next start: ", err)
	}
	check("after the restart", "Failed") // which may be on disk, or not
	if _, err := data.AddPartner(ctx, "New"); err != nil {
		t.Error(err)
	}
	if err := data.Close(); err != nil {
		t.Error(err)
	}
}
