package local

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
)

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
	if err := e.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	wait(-maxWaiting)
	if err := e.Record(ctx, marks); err != nil {
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

// A group waits for the callers that had requests in flight lately, but not for long; where there are no others it
// does not wait.
func TestAGroupWaitsForItsCallers(t *testing.T) {
	c := &committer{ready: func() error { return nil }}
	c.arrived.L = &c.mu
	due := func() bool { return c.wait() <= 0 }
	join := func() {
		if _, err := c.join(request{}, 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	commit := func() { c.settle(c.take(), 0) }
	for range 3 {
		join()
		if !due() {
			t.Error("the only caller waits for others")
		}
		commit()
	}
	for range 40 {
		join()
	}
	commit()
	join()
	c.waiting[0].began = time.Now()
	if due() {
		t.Error("one of forty callers does not wait for the others")
	}
	c.waiting[0].began = time.Now().Add(-patience)
	if !due() {
		t.Errorf("a group waits for longer than %v", patience)
	}
	for range 29 {
		join()
	}
	c.waiting[0].began = time.Now()
	if !due() {
		t.Error("thirty of forty callers wait for the others")
	}
	commit()
	for range 100 { // the others are gone
		join()
		commit()
	}
	join()
	if !due() {
		t.Error("the callers that are gone are waited for")
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
			err := e.Record(ctx, batch)
			for store.KindOf(err) == store.KindUnavailable {
				runtime.Gosched()
				err = e.Record(ctx, batch)
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
		marks[i] = newMark(m, "PageView", i, raw)
		marks[i].DedupeID = fmt.Sprint(i)
	}
	if size := int64(len(marks) * 2000); size < 2*e.db.MaxBatchSize() {
		t.Fatalf("%d bytes may fit into one transaction", size)
	}
	if err := e.Record(ctx, marks); err != nil {
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
