package journal

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// While a commit is blocked, one merchant's batches queue up, and then another merchant's event arrives. It is among the
// next events on disk.
func TestBatchesDoNotDelayAnotherMerchantsEvent(t *testing.T) {
	dir := t.TempDir()
	plain, err := Open(dir, Options{Log: quiet, Now: time.Now})
	testenv.Check(t, err)
	j := &testJournal{Journal: plain}
	blocked := make(chan struct{})
	if err := j.Start(func() error { return nil }, func(events []codec.Event, _ uint64, release func()) {
		<-blocked
		j.mu.Lock()
		defer j.mu.Unlock()
		j.handed = append(j.handed, cloned(events)...)
		release()
	}); err != nil {
		t.Fatal(err)
	}
	defer closeJournal(t, j)
	waiting := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			requests, _ := j.committer.queue.Length()
			if requests == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d requests wait, want %d", requests, n)
			}
		}
	}
	heavy, other := store.NewMerchantID(), store.NewMerchantID()
	var all sync.WaitGroup
	send := func(m store.MerchantID, marks int) {
		all.Go(func() { record(t, j, m, marks) })
	}
	send(heavy, 1)
	for range 100 { // until the committer has the first request
		if j.committer.committed.Load() > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i := range 8 {
		send(heavy, store.MaxBatchEvents)
		waiting(i + 1)
	}
	send(other, 1)
	waiting(9)
	close(blocked)
	all.Wait()
	key, err := store.NewMerchantKey(other)
	testenv.Check(t, err)
	for i, e := range j.handed {
		if e.Merchant == key && i > groupcommit.MaxMarks/2 {
			t.Errorf("the event comes after %d events of the other merchant", i)
		}
	}
	if got := fmt.Sprint(len(j.handed)); got != "8002" {
		t.Errorf("%s events are on disk, want 8002", got)
	}
}

// A part of a request is refused. A refusal means that nothing was recorded. So the rest is not recorded, and a request
// of which a part is on disk fails instead.
func TestARefusedRequestHasNothingOnDisk(t *testing.T) {
	for refused, c := range []struct {
		kind   store.Kind
		events int
	}{
		{store.KindUnavailable, 0},
		{store.KindInternal, groupcommit.MaxMarks},
		{store.KindInternal, 2 * groupcommit.MaxMarks},
	} {
		opened, err := Open(t.TempDir(), Options{Log: quiet, Now: time.Now})
		testenv.Check(t, err)
		handed := 0
		refuse := func() {
			if handed == refused*groupcommit.MaxMarks {
				if err := opened.log.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		j := &testJournal{Journal: opened}
		if err := j.Start(func() error { return nil }, func(events []codec.Event, _ uint64, release func()) {
			handed += len(events)
			refuse()
			release()
		}); err != nil {
			t.Fatal(err)
		}
		refuse()
		marks := make([]store.Mark, 3*groupcommit.MaxMarks)
		m := store.NewMerchantID()
		for i := range marks {
			marks[i] = newMark(m, "Purchase", i, []byte("{}"))
		}
		if err := j.Record(ctx, marks); err == nil || store.KindOf(err) != c.kind {
			t.Errorf("when group %d is refused, Record gives %v, want kind %d", refused, err, c.kind)
		}
		if handed != c.events {
			t.Errorf("when group %d is refused, %d events are on disk, want %d", refused, handed, c.events)
		}
		if requests, bytes := j.committer.queue.Length(); requests != 0 || bytes != 0 {
			t.Errorf("when group %d is refused, %d requests with %d bytes still wait", refused, requests, bytes)
		}
		closeJournal(t, j)
	}
}
