package journal

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
)

// newIdleQueue returns a queue without a committer: only the test takes groups from it.
func newIdleQueue() *queue { return newQueue(func(int) error { return nil }) }

func TestAFullQueueRefuses(t *testing.T) {
	q := newIdleQueue()
	if _, err := q.join(request{}, 1, maxQueueBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := q.join(request{}, 1, 1); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a full queue gives %v, want KindUnavailable", err)
	}
	q.finish(q.take())
	if _, err := q.join(request{}, 1, 1); err != nil {
		t.Errorf("an empty queue gives %v", err)
	}
}

func TestAStuckQueueRefuses(t *testing.T) {
	q := newIdleQueue()
	full := func() error {
		_, err := q.join(request{}, groupMarks, 1)
		return err
	}
	for range 2 {
		if err := full(); err != nil {
			t.Fatal(err)
		}
	}
	q.waiting[0].began = time.Now().Add(-maxQueueTime - time.Millisecond)
	if err := full(); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("behind a group that has waited for %v, a request gets %v, want KindUnavailable", maxQueueTime, err)
	}
	q.waiting = q.waiting[1:]
	if err := full(); err != nil {
		t.Errorf("behind a new group, a request gets %v", err)
	}
}

// A group waits for three quarters of the recent callers, but not longer than maxGatherTime. A single caller never waits.
func TestAGroupGathersRecentCallers(t *testing.T) {
	q := newIdleQueue()
	due := func() bool { return q.gatherTime() <= 0 }
	join := func() {
		if _, err := q.join(request{}, 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	commit := func() { q.finish(q.take()) }
	for range 3 {
		join()
		if !due() {
			t.Error("a group waits for others though there is only one caller")
		}
		commit()
	}
	for range 40 {
		join()
	}
	commit()
	join()
	q.waiting[0].began = time.Now()
	if due() {
		t.Error("a group with one of forty callers does not wait")
	}
	q.waiting[0].began = time.Now().Add(-maxGatherTime)
	if !due() {
		t.Errorf("a group waits longer than %v", maxGatherTime)
	}
	for range 29 {
		join()
	}
	q.waiting[0].began = time.Now()
	if !due() {
		t.Error("a group with thirty of forty callers waits for the others")
	}
	commit()
	for range 100 { // the others are gone
		join()
		commit()
	}
	join()
	if !due() {
		t.Error("a group waits for callers that are long gone")
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
			if _, err := q.join(request{}, c.marks, c.bytes+c.marks*markOverhead); err != nil {
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
		go func() { returned <- q.submit(ctx, request{marks: make([]store.Mark, 1)}) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-returned:
			t.Fatalf("submit returns %v before the group is finished", err)
		default:
		}
		q.finish(q.take())
		if err := <-returned; err != nil {
			t.Errorf("submit gives %v, want nil", err)
		}
	})
}

func TestAClosedOrFailedQueueAcceptsNothing(t *testing.T) {
	q := newIdleQueue()
	if err := q.accepting(); err != nil {
		t.Errorf("an open queue: %v", err)
	}
	q.close()
	if err := q.accepting(); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a closed queue gives %v, want KindUnavailable", err)
	}

	q = newIdleQueue()
	if _, err := q.join(request{}, 1, 1); err != nil {
		t.Fatal(err)
	}
	g := q.take()
	g.err = errCommit
	q.finish(g)
	if err := q.accepting(); !errors.Is(err, errCommit) {
		t.Errorf("after a failed commit the queue gives %v, want %v", err, errCommit)
	}
}
