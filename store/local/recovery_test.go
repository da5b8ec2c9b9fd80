package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

var (
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	ctx   = context.Background()
)

func open(t *testing.T, dir string) *Engine {
	t.Helper()
	e, err := Open(dir, Options{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return e.(*Engine)
}

func closeEngine(t *testing.T, e *Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// record records n events of a merchant, spread over time and names, in calls of up to 100.
func record(t *testing.T, e *Engine, m store.MerchantID, n int) {
	t.Helper()
	for n > 0 {
		marks := make([]store.Mark, min(n, 100))
		for i := range marks {
			n--
			marks[i] = store.Mark{
				Merchant: m, Tag: "cs_a", Name: fmt.Sprintf("Name%d", n%7),
				Time: time.UnixMicro(int64(n*7919%1000) * 1e6), Raw: fmt.Appendf(nil, `{"n":%d}`, n),
			}
			marks[i].Identity.MUID = "u-1"
		}
		if err := e.Record(marks); err != nil {
			t.Fatal(err)
		}
	}
}

// everything lists a merchant's events in both sorts.
func everything(t *testing.T, e *Engine, m store.MerchantID) [2]store.Page {
	t.Helper()
	var pages [2]store.Page
	for i, sort := range []store.SortKey{store.ByTime, store.ByName} {
		var err error
		if pages[i], err = e.Events(ctx, store.Query{Merchant: m, SortBy: sort, Limit: 1_000_000}); err != nil {
			t.Fatal(err)
		}
	}
	return pages
}

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
		all := cutOffMerge(t, filepath.Join(base, "events"), done)
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

// cutOffMerge replays the chunks and makes only the first writes of a merge. It returns how many
// writes a whole one has.
func cutOffMerge(t *testing.T, dir string, writes int) (all int) {
	t.Helper()
	db, err := badger.OpenManaged(badgerOptions(dir).WithLogger(&badgerLog{log: quiet}))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	x := newIndex(db, &clock{now: time.Now, last: db.MaxVersion()})
	if err := x.replay(); err != nil {
		t.Fatal(err)
	}
	w := &merger{db: db, clock: x.clock}
	if _, err := w.mergeAll(x.freeze()); err != nil {
		t.Fatal(err)
	}
	all = len(w.writes)
	w.writes = w.writes[:min(writes, all)]
	if err := w.commit(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestADirectoryOfAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	txn := e.db.NewTransactionAt(math.MaxUint64, true)
	if err := txn.Set([]byte{prefixFormat}, []byte("99")); err != nil {
		t.Fatal(err)
	}
	if err := txn.CommitAt(e.index.clock.next(), nil); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), `format "99"`) {
		t.Errorf("opening it gives %v", err)
	}
}

func TestACorruptTableIsFatal(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	record(t, e, store.NewMerchantID(), 500)
	closeEngine(t, e)
	tables, err := filepath.Glob(filepath.Join(dir, "events", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	b, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-30] ^= 0xff // in the table's own index
	if err := os.WriteFile(tables[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := Open(dir, Options{Log: quiet}); err == nil {
		closeEngine(t, e.(*Engine))
		t.Error("a data directory with a corrupt table was opened")
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

func TestANearlyFullDiskTakesNothing(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	record(t, e, m, 1)
	e.disk.full.Store(true)
	marks := []store.Mark{{Merchant: m, Tag: "cs_a", Name: "PageView", Identity: store.Identity{MUID: "u-1"}, Raw: []byte("{}")}}
	if err := e.Record(marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if e.Ready() == nil {
		t.Error("the engine says that it is ready")
	}
	e.disk.full.Store(false)
	if err := e.Record(marks); err != nil {
		t.Errorf("with space again, Record gives %v", err)
	}
	if got := everything(t, e, m)[0].Total; got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

func TestTheDiskWatchFollowsTheFreeSpace(t *testing.T) {
	var free uint64
	w := &diskWatch{log: quiet, free: func(string) (uint64, error) { return free, nil }}
	for _, step := range []struct {
		free uint64
		full bool
	}{{minFree, false}, {minFree - 1, true}, {minFree * 2, false}} {
		free = step.free
		w.look()
		if full := w.ready() != nil; full != step.full {
			t.Errorf("with %d bytes free the disk counts as full: %v", step.free, full)
		}
	}
}

func TestPastItsBoundTheQueueRefuses(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	wait := func(bytes int) {
		e.committer.mu.Lock()
		e.committer.bytes += bytes
		e.committer.mu.Unlock()
	}
	marks := []store.Mark{{Merchant: store.NewMerchantID(), Name: "PageView", Identity: store.Identity{MUID: "u-1"}, Raw: []byte("{}")}}
	wait(maxWaiting)
	if err := e.Record(marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	wait(-maxWaiting)
	if err := e.Record(marks); err != nil {
		t.Errorf("Record gives %v", err)
	}
}

func TestAfterAWaitTooLongTheQueueRefuses(t *testing.T) {
	stuck := &committer{ready: func() error { return nil }} // nothing leaves the queue
	stuck.arrived.L = &stuck.mu
	full := func() error {
		_, err := stuck.join(request{}, groupMarks, 1)
		return err
	}
	for range 2 {
		if err := full(); err != nil {
			t.Fatal(err)
		}
	}
	stuck.waiting[0].began = time.Now().Add(-maxWait - time.Millisecond)
	if err := full(); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("behind a group that has waited for %v, a request gets %v, want KindUnavailable", maxWait, err)
	}
	stuck.waiting = stuck.waiting[1:]
	if err := full(); err != nil {
		t.Errorf("behind a group that has just begun to wait, a request gets %v", err)
	}
}

// Sixteen callers with the largest batches, or 256 with the largest events, are no overload: none is
// turned away while the disk is busy.
func TestTheQueueTakesTheLargestRequests(t *testing.T) {
	for _, c := range []struct{ callers, marks, bytes int }{
		{16, store.MaxBatchEvents, store.MaxBatchBytes},
		{256, 1, store.MaxEventBytes},
	} {
		busy := &committer{ready: func() error { return nil }} // nothing leaves the queue
		busy.arrived.L = &busy.mu
		for i := range c.callers {
			if _, err := busy.join(request{}, c.marks, c.bytes+c.marks*markOverhead); err != nil {
				t.Errorf("caller %d of %d with %d bytes: %v", i+1, c.callers, c.bytes, err)
				break
			}
		}
	}
}

// Marks with long muids, identifiers and large bodies, from many callers at once: each group must
// be written in transactions that Badger takes.
func TestLargeMarksFitIntoTransactions(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	const callers, marks = 8, 500
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			batch := make([]store.Mark, marks)
			for i := range batch {
				id := store.Identity{MUID: store.MUID(strings.Repeat("u", store.MaxMUIDLength))}
				id.Add(store.Email, fmt.Sprintf("a%d-%d@example.com", c, i))
				id.Add(store.Phone, fmt.Sprint(1e6*c+i))
				id.Add(store.DeviceID, fmt.Sprintf("device-%d-%d", c, i))
				batch[i] = store.Mark{Merchant: m, Tag: "cs_a", Name: "Login", Identity: id, DedupeID: fmt.Sprint(c, i), Raw: fmt.Appendf(nil, `{"x":"%0900d"}`, i)}
			}
			err := e.Record(batch)
			for store.KindOf(err) == store.KindUnavailable {
				runtime.Gosched()
				err = e.Record(batch)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := everything(t, e, m)[0].Total; got != callers*marks {
		t.Errorf("%d events, want %d", got, callers*marks)
	}
}

// A batch that takes several transactions is recorded whole, and in its order.
func TestARequestMayTakeSeveralTransactions(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	noise := rand.NewChaCha8([32]byte{}) // does not get smaller when it is packed
	marks := make([]store.Mark, store.MaxBatchEvents)
	for i := range marks {
		raw := make([]byte, 2000)
		if _, err := noise.Read(raw); err != nil {
			t.Fatal(err)
		}
		marks[i] = store.Mark{Merchant: m, Tag: "cs_a", Name: "PageView", Time: time.UnixMicro(int64(i)), Raw: raw, DedupeID: fmt.Sprint(i)}
		marks[i].Identity.MUID = "u-1"
	}
	if size := int64(len(marks) * 2000); size < 2*e.db.MaxBatchSize() {
		t.Fatalf("%d bytes may fit into one transaction", size)
	}
	if err := e.Record(marks); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	e = open(t, dir)
	defer closeEngine(t, e)
	page, err := e.Events(ctx, store.Query{Merchant: m, SortBy: store.ByTime, Asc: true, Limit: store.MaxBatchEvents})
	if err != nil || page.Total != len(marks) {
		t.Fatalf("%d events, %v", page.Total, err)
	}
	for i, event := range page.Events {
		if !bytes.Equal(event.Raw, marks[i].Raw) {
			t.Fatalf("event %d is another one", i)
		}
	}
}

func TestAMuidIsBounded(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	id := store.Identity{MUID: store.MUID(strings.Repeat("u", store.MaxMUIDLength+1))}
	if err := e.Record([]store.Mark{{Merchant: m, Name: "Login", Identity: id, Raw: []byte("{}")}}); store.KindOf(err) != store.KindInvalid {
		t.Errorf("Record gives %v, want KindInvalid", err)
	}
	if _, err := e.Resolve(m, id); store.KindOf(err) != store.KindInvalid {
		t.Errorf("Resolve gives %v, want KindInvalid", err)
	}
}
