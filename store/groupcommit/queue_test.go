package groupcommit

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// newIdleQueue returns a queue without a committer: only the test takes groups from it.
func newIdleQueue() *Queue { return New(func(int) error { return nil }, func(int) {}) }

// merchant returns the n-th merchant.
func merchant(n int) uuid.UUID { return uuid.UUID{1, byte(n >> 8), byte(n)} }

// newRequest returns a request of a merchant.
func newRequest(m uuid.UUID, marks, size int) *request {
	return &request{Merchant: m, Marks: make([]store.Mark, marks), size: size, done: make(chan error, 1)}
}

// join adds a request to the queue, which must accept it.
func join(t *testing.T, q *Queue, r *request) *request {
	t.Helper()
	if err := q.join(r); err != nil {
		t.Fatal(err)
	}
	return r
}

// commit takes the next group, and finishes it.
func commit(q *Queue) []Part {
	q.turns.begin()
	for len(q.Take()) > 0 {
	}
	q.recentCallers -= (q.recentCallers + 15) / 16
	q.Finish(nil)
	return q.turns.group
}

func commitAll(q *Queue) {
	for q.turns.requests > 0 {
		commit(q)
	}
}

func expectRefused(t *testing.T, q *Queue, r *request, why string) {
	t.Helper()
	if err := q.join(r); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("%s, a request gets %v, want KindUnavailable", why, err)
	}
}

// The caller of a small request answers before the committer builds the next group, also when that waits already and there is
// one processor.
func TestSmallRequestsAnswerFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const groups = 20
	before := 0
	for range groups {
		synctest.Test(t, func(t *testing.T) {
			q := newIdleQueue()
			var answered atomic.Bool
			go func() {
				if err := q.Record(context.Background(), merchant(0), make([]store.Mark, 1)); err != nil {
					t.Error(err)
				}
				answered.Store(true)
			}()
			synctest.Wait()
			join(t, q, newRequest(merchant(1), takeMarks, 1))
			commit(q)
			if answered.Load() {
				before++
			}
		})
	}
	if before < groups/2 { // Go's scheduler resumes the committer first now and then
		t.Errorf("%d of %d callers of a small request had answered when the group was finished, want nearly all", before, groups)
	}
}

// The merchant that fills the queue is refused, and nobody else, also when there are several that fill it.
func TestAFullQueueRefusesThoseWhoFillIt(t *testing.T) {
	q := newIdleQueue()
	const size = 1 << 20
	for heavy := range 8 {
		for q.join(newRequest(merchant(heavy), 1, size)) == nil {
		}
		expectRefused(t, q, newRequest(merchant(heavy), 1, size), "while its merchant fills the queue")
		for other := range 100 {
			join(t, q, newRequest(merchant(1000+other), 1, 500))
		}
	}
	if q.turns.bytes > maxQueueBytes {
		t.Errorf("%d bytes are in the queue, want at most %d", q.turns.bytes, maxQueueBytes)
	}
	commitAll(q)
	if q.turns.bytes != 0 || q.inFlight != 0 || len(q.turns.tenants) != 0 {
		t.Errorf("in an empty queue are %d bytes, %d requests in flight, %d merchants", q.turns.bytes, q.inFlight, len(q.turns.tenants))
	}
	join(t, q, newRequest(merchant(0), 1, size))
}

// However many merchants fill their shares, another one's event is accepted, also the largest.
func TestMerchantsThatFillTheQueueLeaveRoomForAnEvent(t *testing.T) {
	for _, size := range []int{1000, store.MaxEventBytes + markOverhead + store.MaxMUIDLength} {
		q := newIdleQueue()
		for heavy := range 16 {
			for q.join(newRequest(merchant(heavy), 1, size)) == nil {
			}
		}
		expectRefused(t, q, newRequest(merchant(0), 1, size), "while its merchant fills its share")
		join(t, q, newRequest(merchant(1000), 1, size))
		commitAll(q)
		if q.turns.bytes != 0 || q.turns.reserved != 0 {
			t.Errorf("in an empty queue are %d bytes, and %d reserved ones", q.turns.bytes, q.turns.reserved)
		}
	}
}

// The reserved bytes are bounded: merchants without number cannot fill the memory.
func TestManyMerchantsCannotExceedTheQueue(t *testing.T) {
	q := newIdleQueue()
	const size = 16 << 10
	for heavy := range 2000 {
		for q.join(newRequest(merchant(heavy), 1, size)) == nil {
		}
	}
	if q.turns.bytes > maxQueueBytes || q.turns.reserved > maxReservedBytes {
		t.Errorf("%d bytes are in the queue, and %d reserved ones, want at most %d and %d",
			q.turns.bytes, q.turns.reserved, maxQueueBytes, maxReservedBytes)
	}
	expectRefused(t, q, newRequest(merchant(3000), 1, size), "when 2000 merchants have filled the queue")
}

func TestAStuckQueueRefuses(t *testing.T) {
	q := newIdleQueue()
	heavy, other := merchant(0), merchant(1)
	first := join(t, q, newRequest(heavy, MaxMarks, 1))
	first.arrived = time.Now().Add(-maxQueueTime - time.Millisecond)
	expectRefused(t, q, newRequest(heavy, 1, 1), "behind a group of its merchant that has waited for a second")
	join(t, q, newRequest(other, 1, 1)).arrived = first.arrived
	join(t, q, newRequest(other, 1, 1))
	commitAll(q)
	join(t, q, newRequest(heavy, MaxMarks, 1))
	join(t, q, newRequest(heavy, 1, 1))
}

// A queue that was idle for a while takes a burst.
func TestAnIdleQueueIsNotStuck(t *testing.T) {
	q := newIdleQueue()
	q.turns.begin()
	join(t, q, newRequest(merchant(0), 1, 1)) // joins the group
	for len(q.Take()) > 0 {
	}
	q.Finish(nil)
	q.firstArrival = time.Now().Add(-time.Hour)
	for range 3 {
		join(t, q, newRequest(merchant(0), store.MaxBatchEvents, 1))
	}
}

// A group waits for three quarters of the recent callers, but not longer than MaxGatherTime. A single caller never waits.
func TestAGroupGathersRecentCallers(t *testing.T) {
	q := newIdleQueue()
	due := func() bool { return q.gatherTime() <= 0 }
	callers := 0
	call := func() {
		callers++
		join(t, q, newRequest(merchant(callers%3), 1, 1))
	}
	for range 3 {
		call()
		if !due() {
			t.Error("a group waits for others though there is only one caller")
		}
		commit(q)
	}
	for range 40 {
		call()
	}
	commit(q)
	call()
	q.firstArrival = time.Now()
	if due() {
		t.Error("a group with one of forty callers does not wait")
	}
	q.firstArrival = time.Now().Add(-MaxGatherTime)
	if !due() {
		t.Errorf("a group waits longer than %v", MaxGatherTime)
	}
	for range 29 {
		call()
	}
	q.firstArrival = time.Now()
	if !due() {
		t.Error("a group with thirty of forty callers waits for the others")
	}
	commit(q)
	for range 100 { // the others are gone
		call()
		commit(q)
	}
	call()
	if !due() {
		t.Error("a group waits for callers that are long gone")
	}
}

// Large batches need no others to be worth a sync, and nobody waits for them.
func TestAGroupDoesNotGatherLargeRequests(t *testing.T) {
	q := newIdleQueue()
	for range 8 {
		join(t, q, newRequest(merchant(0), store.MaxBatchEvents, 1))
	}
	commitAll(q)
	for what, r := range map[string]*request{
		"a batch":          newRequest(merchant(0), store.MaxBatchEvents, 1),
		"another merchant": newRequest(merchant(1), 1, 1),
	} {
		join(t, q, r)
		if q.gatherTime() > 0 {
			t.Errorf("%s waits for batches of recent callers", what)
		}
		commitAll(q)
	}
	if q.inFlight != 0 {
		t.Errorf("%d requests are in flight in an empty queue", q.inFlight)
	}
}

// What a full group had no room for has waited long enough. What arrived while the group was written waits for others.
func TestWhatAFullGroupLeavesDoesNotGather(t *testing.T) {
	q := newIdleQueue()
	for range 39 {
		join(t, q, newRequest(merchant(0), MaxMarks/20, 1))
	}
	commit(q)
	if q.gatherTime() > 0 {
		t.Error("requests that waited before a full group wait for others again")
	}
	q.turns.begin()
	q.Take()
	join(t, q, newRequest(merchant(0), 1, 1))
	for len(q.Take()) > 0 {
	}
	q.Finish(nil)
	q.firstArrival = time.Now()
	if q.gatherTime() <= 0 {
		t.Error("a request that arrived while a group was written does not wait for others")
	}
}

// Sixteen callers with the largest batches, or 256 with the largest events, fit into the queue: none is refused while the
// committer writes nothing.
func TestTheQueueTakesTheLargestRequests(t *testing.T) {
	for _, c := range []struct{ callers, marks, bytes int }{
		{16, store.MaxBatchEvents, store.MaxBatchBytes},
		{256, 1, store.MaxEventBytes},
	} {
		q := newIdleQueue()
		for i := range c.callers {
			if err := q.join(newRequest(merchant(0), c.marks, c.bytes+c.marks*markOverhead)); err != nil {
				t.Errorf("caller %d of %d with %d bytes: %v", i+1, c.callers, c.bytes, err)
				break
			}
		}
	}
}

// The committer reads a queued request from the caller's memory, so the caller waits for it though its context has ended.
func TestAnEndedContextDoesNotEndTheWaitForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan error, 1)
		go func() { returned <- q.Record(ctx, merchant(0), make([]store.Mark, sharedMarks)) }()
		synctest.Wait()
		join(t, q, newRequest(merchant(1), 1, 1))
		cancel()
		for part := range 2 { // the other merchant's turn leaves room for most of the marks only
			synctest.Wait()
			select {
			case err := <-returned:
				t.Fatalf("record returns %v before part %d of its marks is finished", err, part+1)
			default:
			}
			commit(q)
		}
		if err := <-returned; err != nil {
			t.Errorf("record gives %v, want nil", err)
		}
	})
}

func TestAClosedQueueAcceptsNothing(t *testing.T) {
	q := newIdleQueue()
	if err := q.Accepting(); err != nil {
		t.Errorf("an open queue: %v", err)
	}
	q.Close()
	if err := q.Accepting(); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a closed queue gives %v, want KindUnavailable", err)
	}
	expectRefused(t, q, newRequest(merchant(0), 1, 1), "when the queue is closed")

	q = newIdleQueue()
	r := join(t, q, newRequest(merchant(0), 1, 1))
	q.turns.begin()
	q.Take()
	failed := errors.New("the commit failed")
	q.Finish(failed)
	if err := <-r.done; !errors.Is(err, failed) {
		t.Errorf("the caller of a failed commit gets %v, want %v", err, failed)
	}
}

// A closed queue still gives the committer everything that it has accepted.
func TestAClosedQueueIsEmptied(t *testing.T) {
	q := newIdleQueue()
	timer := time.AfterFunc(time.Hour, q.Recheck)
	defer timer.Stop()
	for m := range 3 {
		join(t, q, newRequest(merchant(m), store.MaxBatchEvents, 1))
	}
	q.Close()
	marks := 0
	for q.Next(timer) {
		for parts := q.Take(); len(parts) > 0; parts = q.Take() {
			for _, p := range parts {
				marks += p.To - p.From
			}
		}
		q.Finish(nil)
	}
	if marks != 3*store.MaxBatchEvents {
		t.Errorf("%d marks were taken, want %d", marks, 3*store.MaxBatchEvents)
	}
}
