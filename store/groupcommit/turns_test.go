package groupcommit

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"mtagd/store"
)

// marksOf counts the marks of each merchant in a group.
func marksOf(group []Part) map[uuid.UUID]int {
	marks := map[uuid.UUID]int{}
	for _, p := range group {
		marks[p.Merchant] += p.To - p.From
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
		q.Take()
	}
	before := marksOf(q.turns.group)[heavy]
	join(t, q, newRequest(other, 1, 1))
	join(t, q, newRequest(heavy, 1, 1))
	for len(q.Take()) > 0 {
	}
	join(t, q, newRequest(other, 1, 1))
	if len(q.Take()) > 0 {
		t.Error("a merchant has two turns in a group, the second for a request that arrived after the first")
	}
	group := marksOf(q.turns.group)
	if before <= sharedMarks || group[heavy] != before || group[other] != 1 {
		t.Errorf("the group has %d marks of the batches, %d of them before the other merchant's request, and %d of the other merchant",
			group[heavy], before, group[other])
	}
	q.Finish(nil)
}

func TestAMerchantThatIsAloneGetsLargeGroups(t *testing.T) {
	q := newIdleQueue()
	for range 3 {
		join(t, q, newRequest(merchant(0), store.MaxBatchEvents, 1))
	}
	for _, want := range []int{MaxMarks, store.MaxBatchEvents} {
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
	for len(q.Take()) > 0 {
		join(t, q, newRequest(merchant(0), 1, 1))
	}
	if got := len(q.turns.group); got != 2*takeMarks {
		t.Errorf("the group has %d requests, want the %d that waited", got, 2*takeMarks)
	}
	q.Finish(nil)
}

// The marks of a merchant stay in the order of arrival, each is taken once, and merchants with equal load get equal shares.
func TestMerchantsTakeTurns(t *testing.T) {
	q := newIdleQueue()
	const merchants, batches = 3, 5
	all := map[uuid.UUID][]*request{}
	for range batches {
		for m := range merchants {
			all[merchant(m)] = append(all[merchant(m)], join(t, q, newRequest(merchant(m), store.MaxBatchEvents, 1)))
		}
	}
	total := map[uuid.UUID]int{}
	for q.turns.requests > 0 {
		q.turns.begin()
		for len(q.Take()) > 0 {
		}
		for _, p := range q.turns.group {
			at := total[p.Merchant]
			if p.request != all[p.Merchant][at/store.MaxBatchEvents] || p.From != at%store.MaxBatchEvents || p.last != (p.To == store.MaxBatchEvents) {
				t.Fatalf("after %d marks of merchant %x comes %+v", at, p.Merchant, p)
			}
			total[p.Merchant] += p.To - p.From
		}
		q.Finish(nil)
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
	for _, want := range []int{MaxMarks, MaxMarks, merchants - 2*MaxMarks} {
		group := commit(q)
		if len(group) != want {
			t.Errorf("a group has %d merchants, want %d", len(group), want)
		}
		for _, p := range group {
			if p.Merchant != merchant(served) {
				t.Fatalf("merchant %x has the turn of merchant %x", p.Merchant, merchant(served))
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
	r := join(t, q, newRequest(merchant(0), MaxMarks+1, 1))
	failed := errors.New("corrupt value")
	for i, err := range []error{failed, nil} {
		if len(r.done) > 0 {
			t.Fatalf("a request of two groups is finished after %d", i)
		}
		q.turns.begin()
		for len(q.Take()) > 0 {
		}
		q.Finish(err)
	}
	if got := <-r.done; !errors.Is(got, failed) {
		t.Errorf("a request gets %v, want the error of its first group", got)
	}
}

// Two parts of a request in one group fail together, before anything of it is on disk.
func TestARequestWithTwoPartsInAGroupIsRefused(t *testing.T) {
	q := newIdleQueue()
	join(t, q, newRequest(merchant(1), 1, 1))
	r := join(t, q, newRequest(merchant(0), sharedMarks, 1))
	join(t, q, newRequest(merchant(0), 1, 1))
	q.turns.begin()
	for len(q.Take()) > 0 {
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
	q.Finish(store.Unavailable("the disk is full"))
	commitAll(q)
	if err := <-r.done; store.KindOf(err) != store.KindUnavailable {
		t.Errorf("the request gets %v, want KindUnavailable", err)
	}
	if q.turns.requests != 0 || q.turns.marks != 0 || q.turns.bytes != 0 || len(q.turns.tenants) != 0 {
		t.Errorf("%d requests and %d marks still wait", q.turns.requests, q.turns.marks)
	}
}

// More merchants send batches than a group has room for. Each gets the same share over some groups.
func TestManyMerchantsShareTheRoomForBatches(t *testing.T) {
	q := newIdleQueue()
	const merchants = 3 * MaxMarks
	for m := range merchants {
		join(t, q, newRequest(merchant(m), 100, 1))
	}
	total := map[uuid.UUID]int{}
	for range 9 {
		group := marksOf(commit(q))
		marks := 0
		for m, n := range group {
			total[m] += n
			marks += n
		}
		if marks != MaxMarks {
			t.Errorf("a group has %d marks of batches, want %d", marks, MaxMarks)
		}
	}
	for m := range merchants {
		if total[merchant(m)] != 3 {
			t.Fatalf("after three rounds a merchant has had %d marks", total[merchant(m)])
		}
	}
}
