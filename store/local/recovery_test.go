package local

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// crash copies an open engine's files as a kill would leave them, and opens the copy.
func crash(t *testing.T, dir string) *Engine {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	e := open(t, to)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func TestACrashLosesNothing(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 700)
	if got, want := everything(t, crash(t, dir), m), everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("before any merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e) // which merges
	e = open(t, dir)
	record(t, e, other, 300)
	record(t, e, m, 300)
	after := crash(t, dir)
	for _, m := range []store.MerchantID{m, other} {
		if got, want := everything(t, after, m), everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("after a merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
		}
	}
}

// A merge is several transactions. Cut off after any of its writes, the next start must find
// every event once.
func TestAMergeCutOffLeavesTheIndexWhole(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	merchants := []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
	for _, m := range merchants {
		record(t, e, m, 400)
	}
	closeEngine(t, e) // with a first merge, so that there are nodes to replace

	e = open(t, dir)
	for _, m := range merchants {
		record(t, e, m, 300)
	}
	want := map[store.MerchantID][2]store.Page{}
	for _, m := range merchants {
		want[m] = everything(t, e, m)
	}
	cut := t.TempDir()
	if err := os.CopyFS(cut, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)

	for done := 0; ; done++ {
		base := t.TempDir()
		if err := os.CopyFS(base, os.DirFS(cut)); err != nil {
			t.Fatal(err)
		}
		all := cutOffMerge(t, base, func(int) int { return done })
		e := open(t, base)
		for _, m := range merchants {
			if got := everything(t, e, m); !reflect.DeepEqual(got, want[m]) {
				t.Errorf("after %d of %d writes: %d events, want %d", done, all, got[0].Total, want[m][0].Total)
			}
		}
		record(t, e, merchants[0], 200)
		if got := everything(t, e, merchants[0]); got[0].Total != 900 || len(got[1].Events) != 900 {
			t.Errorf("after %d of %d writes and 200 events more: %d events, want 900", done, all, got[0].Total)
		}
		closeEngine(t, e)
		if done >= all {
			return
		}
	}
}

// A merge of events from all times replaces more nodes than the root record can list. The lists that it leaves must be
// there as long as a root record names them.
func TestAMergeCutOffLeavesTheListsOfGarbage(t *testing.T) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(5, 6))
	m := store.NewMerchantID()
	scatter := func(e *Engine, n int) {
		for range n / 500 {
			marks := make([]store.Mark, 500)
			for i := range marks {
				marks[i] = store.Mark{Merchant: m, Tag: "cs_a", Name: "Name", Time: time.UnixMicro(rng.Int64N(1 << 40)), Raw: []byte("{}")}
				marks[i].Identity.MUID = "u-1"
			}
			if err := e.Record(marks); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range []int{40_000, 3_000} { // the second merge leaves lists, the third one deletes what they name
		e := open(t, dir)
		scatter(e, n)
		closeEngine(t, e)
	}
	e := open(t, dir)
	scatter(e, 3_000)
	want := everything(t, e, m)
	e.index.mu.RLock()
	for _, r := range e.index.recent {
		if len(r.stored.lists) == 0 {
			t.Error("there are no lists")
		}
	}
	e.index.mu.RUnlock()
	cut := t.TempDir()
	if err := os.CopyFS(cut, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	for _, part := range []float64{0.5, 0.9, 0.99, 1} {
		base := t.TempDir()
		if err := os.CopyFS(base, os.DirFS(cut)); err != nil {
			t.Fatal(err)
		}
		cutOffMerge(t, base, func(all int) int { return int(part * float64(all)) })
		e := open(t, base)
		if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("after %.2f of a merge: %d events, want %d", part, got[0].Total, want[0].Total)
		}
		closeEngine(t, e)
	}
}

// cutOffMerge replays the chunks and makes only the first writes of a merge, as many as made says. It returns how many
// writes a whole one has.
func cutOffMerge(t *testing.T, dir string, made func(all int) int) (all int) {
	t.Helper()
	var dbs [2]*badger.DB
	for i, opt := range []badger.Options{eventsOptions(dir), indexOptions(dir)} {
		var err error
		if dbs[i], err = openBadger(opt, &badgerLog{log: quiet}); err != nil {
			t.Fatal(err)
		}
		defer dbs[i].Close()
	}
	x := newIndex(dbs[1], &clock{now: time.Now, last: max(dbs[0].MaxVersion(), dbs[1].MaxVersion())})
	if err := x.replay(dbs[0]); err != nil {
		t.Fatal(err)
	}
	w := &merger{db: x.db, clock: x.clock}
	if _, err := w.mergeAll(x.freeze()); err != nil {
		t.Fatal(err)
	}
	all = len(w.writes)
	w.writes = w.writes[:min(made(all), all)]
	if err := w.commit(); err != nil {
		t.Fatal(err)
	}
	return all
}

// The index is made anew from the events where it is gone, and refused where the events are.
func TestTheIndexFollowsTheEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	before := t.TempDir()
	if err := os.CopyFS(before, os.DirFS(filepath.Join(dir, "events"))); err != nil {
		t.Fatal(err)
	}
	record(t, e, m, 300)
	want := everything(t, e, m)
	closeEngine(t, e)

	if err := os.RemoveAll(filepath.Join(dir, "index")); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("%d events without the index, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e)

	if err := os.RemoveAll(filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(before, filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "index") {
		t.Errorf("events older than their index are opened: %v", err)
	}
}

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	for name, db := range map[string]func(*Engine) *badger.DB{
		"events": func(e *Engine) *badger.DB { return e.db },
		"index":  func(e *Engine) *badger.DB { return e.index.db },
	} {
		dir := t.TempDir()
		e := open(t, dir)
		txn := db(e).NewTransactionAt(math.MaxUint64, true)
		if err := txn.Set([]byte{prefixFormat}, []byte("99")); err != nil {
			t.Fatal(err)
		}
		if err := txn.CommitAt(e.index.clock.next(), nil); err != nil {
			t.Fatal(err)
		}
		closeEngine(t, e)
		if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), `format "99"`) {
			t.Errorf("opening %s gives %v", name, err)
		}
	}
}

func TestACorruptTableIsFatal(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	record(t, e, store.NewMerchantID(), 500)
	closeEngine(t, e)
	for _, name := range []string{"events", "index"} {
		tables, err := filepath.Glob(filepath.Join(dir, name, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("no tables: %v", err)
		}
		sound, err := os.ReadFile(tables[0])
		if err != nil {
			t.Fatal(err)
		}
		corrupt := slices.Clone(sound)
		corrupt[len(corrupt)-30] ^= 0xff // in the table's own index
		if err := os.WriteFile(tables[0], corrupt, 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := Open(dir, Options{Log: quiet}); err == nil {
			closeEngine(t, e.(*Engine))
			t.Errorf("a data directory with a corrupt table in %s was opened", name)
		}
		if err := os.WriteFile(tables[0], sound, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A page with a chunk that the disk has damaged is an error; its events are not.
func TestADamagedChunkIsNotListed(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 100)
	record(t, e, other, 100)
	closeEngine(t, e)
	logs, err := filepath.Glob(filepath.Join(dir, "events", "*.vlog"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no value logs: %v", err)
	}
	b, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte(`{"n":`))
	if at < 0 {
		t.Fatal("no event in the value log")
	}
	b[at+1] ^= 0x01
	if err := os.WriteFile(logs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	defer closeEngine(t, e)
	if page, err := e.Events(ctx, store.Query{Merchant: m, Limit: 100}); err == nil {
		t.Errorf("%d events of a damaged chunk were listed", len(page.Events))
	}
	if page, err := e.Events(ctx, store.Query{Merchant: other, Limit: 100}); err != nil || len(page.Events) != 100 {
		t.Errorf("%d events of the chunks behind it were listed, %v", len(page.Events), err)
	}
}

// A kill may leave a log that was created, or is about to be removed, with nothing in it.
func TestAnEmptyLogIsNoObstacle(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 10)
	closeEngine(t, e)
	for _, name := range []string{"events/000077.vlog", "events/00077.mem", "index/00077.mem"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e = open(t, dir)
	defer closeEngine(t, e)
	if got := everything(t, e, m)[0].Total; got != 10 {
		t.Errorf("%d events, want 10", got)
	}
}

// The messages that stop the engine are Badger's own words.
func TestBadgerStillSaysSo(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dgraph-io/badger/v4").Output()
	if err != nil {
		t.Fatal(err)
	}
	for message := range ignoredErrors {
		said := false
		for _, file := range []string{"levels.go", "value.go"} {
			source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), file))
			if err != nil {
				t.Fatal(err)
			}
			said = said || bytes.Contains(source, []byte(`Errorf("`+message))
		}
		if !said {
			t.Errorf("Badger logs no error that begins with %q", message)
		}
	}
}

// Badger goes on after it could not sync the value log. Nothing may be acknowledged then.
func TestAValueLogThatCannotBeSyncedStopsTheEngine(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	record(t, e, m, 1)
	e.committer.log.Errorf("Error while curlf sync: %v\n", errors.New("input/output error"))
	mark := []store.Mark{{Merchant: m, Name: "PageView", Identity: store.Identity{MUID: "u-1"}, Raw: []byte("{}")}}
	if err := e.Record(mark); err == nil {
		t.Error("an event was acknowledged that is not on disk")
	}
	if err := e.Ready(); err == nil {
		t.Error("the engine is ready")
	}
}

func TestADirectoryIsOpenedOnce(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer closeEngine(t, e)
	if _, err := Open(dir, Options{Log: quiet}); !errors.Is(err, ErrInUse) {
		t.Errorf("opening it again gives %v, want ErrInUse", err)
	}
}
