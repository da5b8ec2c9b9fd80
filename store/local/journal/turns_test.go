package journal

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// marksOf counts the marks of each merchant in a group.
func marksOf(group []part) map[codec.MerchantKey]int {
	marks := map[codec.MerchantKey]int{}
	for _, p := range group {
		marks[p.merchant] += p.to - p.from
	}
	return marks
}

// Eight batches wait when a single event arrives. It is in the next group, which is small.
func TestASmallRequestDoesNotWaitForALargeOne(t *testing.T) {
	q := newIdleQueue()
	heavy, other := merchant(0), merchant(1)
	for range 8 {
		join(t, q, newRequest(heavy, store.MaxBatchEvents, 300_000))
	}
	r := join(t, q, newRequest(other, 1, 500))
	group := marksOf(commit(q))
	if group[other] != 1 || group[heavy]+1 > sharedMarks || group[heavy] < sharedMarks/2 {
		t.Errorf("the next group has %d marks of the batches and %d of the other merchant, want %d and 1", group[heavy], group[other], sharedMarks-1)
	}
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
	default:
		t.Error("the other merchant's caller still waits after the group")
	}
}

// While the committer writes the batches of one merchant, the request of another one arrives. It joins the group, which ends.
func TestARequestJoinsTheGroupThatIsBuilt(t *testing.T) {
	q := newIdleQueue()
	heavy, other := merchant(0), merchant(1)
	for range 8 {
		join(t, q, newRequest(heavy, store.MaxBatchEvents, 1))
	}
	q.turns.begin()
	for range 4 {
		q.take()
	}
	before := marksOf(q.turns.group)[heavy]
	join(t, q, newRequest(other, 1, 1))
	join(t, q, newRequest(heavy, 1, 1))
	for len(q.take()) > 0 {
	}
	join(t, q, newRequest(other, 1, 1))
	if len(q.take()) > 0 {
		t.Error("a merchant has two turns in a group, the second for a request that arrived after the first")
	}
	group := marksOf(q.turns.group)
	if before <= sharedMarks || group[heavy] != before || group[other] != 1 {
		t.Errorf("the group has %d marks of the batches, %d of them before the other merchant's request, and %d of the other merchant",
			group[heavy], before, group[other])
	}
	q.finish(nil)
}

func TestAMerchantThatIsAloneGetsLargeGroups(t *testing.T) {
	q := newIdleQueue()
	for range 3 {
		join(t, q, newRequest(merchant(0), store.MaxBatchEvents, 1))
	}
	for _, want := range []int{groupMarks, store.MaxBatchEvents} {
		if got := marksOf(commit(q))[merchant(0)]; got != want {
			t.Errorf("a group has %d marks, want %d", got, want)
		}
	}
}

// Single events that arrive while a group is built are not in it. They gather for the next one.
func TestAMerchantHasOnlyWhatWaitedBeforeTheGroup(t *testing.T) {
	q := newIdleQueue()
	for range 2 * takeMarks {
		join(t, q, newRequest(merchant(0), 1, 1))
	}
	q.turns.begin()
	for len(q.take()) > 0 {
		join(t, q, newRequest(merchant(0), 1, 1))
	}
	if got := len(q.turns.group); got != 2*takeMarks {
		t.Errorf("the group has %d requests, want the %d that waited", got, 2*takeMarks)
	}
	q.finish(nil)
}

// The marks of a merchant stay in the order of arrival, each is taken once, and merchants with equal load get equal shares.
func TestMerchantsTakeTurns(t *testing.T) {
	q := newIdleQueue()
	const merchants, batches = 3, 5
	all := map[codec.MerchantKey][]*request{}
	for range batches {
		for m := range merchants {
			all[merchant(m)] = append(all[merchant(m)], join(t, q, newRequest(merchant(m), store.MaxBatchEvents, 1)))
		}
	}
	total := map[codec.MerchantKey]int{}
	for q.turns.requests > 0 {
		q.turns.begin()
		for len(q.take()) > 0 {
		}
		for _, p := range q.turns.group {
			at := total[p.merchant]
			if p.request != all[p.merchant][at/store.MaxBatchEvents] || p.from != at%store.MaxBatchEvents || p.last != (p.to == store.MaxBatchEvents) {
				t.Fatalf("after %d marks of merchant %x comes %+v", at, p.merchant, p)
			}
			total[p.merchant] += p.to - p.from
		}
		q.finish(nil)
		for m := range merchants {
			if difference := total[merchant(m)] - total[merchant(0)]; max(difference, -difference) > sharedMarks {
				t.Fatalf("merchants with equal load have had %v marks", total)
			}
		}
	}
	for m, marks := range total {
		if marks != batches*store.MaxBatchEvents {
			t.Errorf("%d marks of merchant %x were taken, want %d", marks, m, batches*store.MaxBatchEvents)
		}
	}
}

// Turns are counted in bytes, too: large events do not take more of a group than small ones.
func TestTurnsAreBoundedInBytes(t *testing.T) {
	q := newIdleQueue()
	heavy, other := merchant(0), merchant(1)
	for range 100 {
		join(t, q, newRequest(heavy, 1, store.MaxEventBytes))
	}
	join(t, q, newRequest(other, 1, 500))
	group := marksOf(commit(q))
	if bytes := group[heavy] * store.MaxEventBytes; group[other] != 1 || bytes > sharedBytes+store.MaxEventBytes {
		t.Errorf("a group has %d bytes of large events and %d events of the other merchant", bytes, group[other])
	}
}

// Many merchants with one request each fill large groups, in the order of arrival. Then they are forgotten.
func TestManyMerchantsShareAGroup(t *testing.T) {
	q := newIdleQueue()
	const merchants = 5000
	for m := range merchants {
		join(t, q, newRequest(merchant(m), 1, 500))
	}
	served := 0
	for _, want := range []int{groupMarks, groupMarks, merchants - 2*groupMarks} {
		group := commit(q)
		if len(group) != want {
			t.Errorf("a group has %d merchants, want %d", len(group), want)
		}
		for _, p := range group {
			if p.merchant != merchant(served) {
				t.Fatalf("merchant %x has the turn of merchant %x", p.merchant, merchant(served))
			}
			served++
		}
	}
	if len(q.turns.tenants) != 0 {
		t.Errorf("%d merchants without requests are remembered", len(q.turns.tenants))
	}
}

// A request that is spread over groups is finished after the last one, with the error of any of them.
func TestARequestHasTheErrorOfEachOfItsGroups(t *testing.T) {
	q := newIdleQueue()
	r := join(t, q, newRequest(merchant(0), groupMarks+1, 1))
	failed := errors.New("corrupt value")
	for i, err := range []error{failed, nil} {
		if len(r.done) > 0 {
			t.Fatalf("a request of two groups is finished after %d", i)
		}
		q.turns.begin()
		for len(q.take()) > 0 {
		}
		q.finish(err)
	}
	if got := <-r.done; !errors.Is(got, failed) {
		t.Errorf("a request gets %v, want the error of its first group", got)
	}
}

// While a commit is blocked, one merchant's batches queue up, and then another merchant's event arrives. It is among the
// next events on disk.
func TestBatchesDoNotDelayAnotherMerchantsEvent(t *testing.T) {
	dir := t.TempDir()
	plain, err := Open(dir, Options{Log: quiet, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
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
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			j.committer.queue.mu.Lock()
			requests := j.committer.queue.turns.requests
			j.committer.queue.mu.Unlock()
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
	key, err := codec.NewMerchantKey(other)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range j.handed {
		if e.Merchant == key && i > sharedMarks {
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
		{store.KindInternal, groupMarks},
		{store.KindInternal, 2 * groupMarks},
	} {
		j := open(t, t.TempDir())
		q := j.committer.queue
		first := q.turns.number + 1
		j.disk.measuring.Lock()
		j.disk.freeSpace = func() (int64, error) {
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.turns.number == first+uint64(refused) {
				return spaceForCommit - 1, nil
			}
			return plenty, nil
		}
		j.disk.measuring.Unlock()
		j.disk.measure()
		marks := make([]store.Mark, 3*groupMarks)
		m := store.NewMerchantID()
		for i := range marks {
			marks[i] = newMark(m, "Purchase", i, []byte("{}"))
		}
		if err := j.Record(ctx, marks); err == nil || store.KindOf(err) != c.kind {
			t.Errorf("when group %d is refused, Record gives %v, want kind %d", refused, err, c.kind)
		}
		if got := len(since(t, j, 0)); got != c.events {
			t.Errorf("when group %d is refused, %d events are on disk, want %d", refused, got, c.events)
		}
		if q.turns.requests != 0 || q.turns.marks != 0 || q.turns.bytes != 0 || len(q.turns.tenants) != 0 {
			t.Errorf("when group %d is refused, %d requests and %d marks still wait", refused, q.turns.requests, q.turns.marks)
		}
		closeJournal(t, j)
	}
}

// Two parts of a request in one group fail together, before anything of it is on disk.
func TestARequestWithTwoPartsInAGroupIsRefused(t *testing.T) {
	q := newIdleQueue()
	join(t, q, newRequest(merchant(1), 1, 1))
	r := join(t, q, newRequest(merchant(0), sharedMarks, 1))
	join(t, q, newRequest(merchant(0), 1, 1))
	q.turns.begin()
	for len(q.take()) > 0 {
	}
	parts := 0
	for _, p := range q.turns.group {
		if p.request == r {
			parts++
		}
	}
	if parts < 2 {
		t.Fatalf("%d parts of the request are in the group, want several", parts)
	}
	q.finish(store.Unavailable("the disk is full"))
	commitAll(q)
	if err := <-r.done; store.KindOf(err) != store.KindUnavailable {
		t.Errorf("the request gets %v, want KindUnavailable", err)
	}
}
