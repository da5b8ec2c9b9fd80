package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"mtagd/store"
)

// Many callers send marks with long muids, identifiers and large bodies at once. No transaction may exceed Badger's
// limits.
func TestLargeMarksFitIntoTransactions(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
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
				batch[i] = store.Mark{
					Merchant: m, Tag: "cs_a", Name: "Login", Identity: id,
					DedupeID: fmt.Sprint(c, i), Raw: fmt.Appendf(nil, `{"x":"%0900d"}`, i),
				}
			}
			err := j.Record(ctx, batch)
			for store.KindOf(err) == store.KindUnavailable {
				runtime.Gosched()
				err = j.Record(ctx, batch)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := len(since(t, j, 0)); got != callers*marks {
		t.Errorf("%d events, want %d", got, callers*marks)
	}
}

// A batch that takes several transactions is recorded as a whole, and in its order.
func TestARequestMayTakeSeveralTransactions(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	noise := rand.NewChaCha8([32]byte{}) // cannot be compressed
	marks := make([]store.Mark, store.MaxBatchEvents)
	for i := range marks {
		raw := make([]byte, 2000)
		if _, err := noise.Read(raw); err != nil {
			t.Fatal(err)
		}
		raw[0] = '{'
		marks[i] = newMark(m, "PageView", i, raw)
		marks[i].DedupeID = fmt.Sprint(i)
	}
	if size := int64(len(marks) * 2000); size < 2*j.db.MaxBatchSize() {
		t.Fatalf("%d bytes may fit into one transaction", size)
	}
	if err := j.Record(ctx, marks); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	j = open(t, dir)
	defer closeJournal(t, j)
	var wanted []Wanted
	for i, e := range since(t, j, 0) {
		wanted = append(wanted, Wanted{e.Position, i})
	}
	if len(wanted) != len(marks) {
		t.Fatalf("%d events, want %d", len(wanted), len(marks))
	}
	if err := j.Read(ctx, wanted, func(n int, e Event) {
		if !bytes.Equal(e.Raw, marks[n].Raw) {
			t.Errorf("event %d does not have the body that was sent as number %d", n, n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// When Badger cannot sync the value log, it only logs that. Nothing may be acknowledged then.
func TestAValueLogThatCannotBeSyncedStopsTheJournal(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	j.log.Errorf("Error while curlf sync: %v\n", errors.New("input/output error"))
	if err := j.Record(ctx, []store.Mark{newMark(m, "PageView", 0, []byte("{}"))}); err == nil {
		t.Error("an event that may not be on disk was acknowledged")
	}
	if err := j.Ready(); err == nil {
		t.Error("Ready gives no error after a failed sync")
	}
	if err := j.Failure(); err == nil || errors.Is(err, store.ErrNeedsRestart) || !strings.Contains(err.Error(), "the value log cannot be synced") {
		t.Errorf("after a failed sync, Failure gives %v", err)
	}
}
