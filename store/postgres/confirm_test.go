package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"mtagd/store"
)

// When an operator cancels a commit's wait for the standbys, the event is visible. But it is not acknowledged, and no feed has it, before
// a standby has it.
func TestACanceledWaitForTheStandbysAcknowledgesNothing(t *testing.T) {
	primary, standby := startWithStandby(t)
	s := newShopOn(t, primary.URL("postgres"), Options{flushTimeout: time.Minute})
	if err := standby.Kill(); err != nil {
		t.Fatal(err)
	}
	recorded := make(chan error, 1)
	go func() { recorded <- s.Record(context.Background(), []store.Mark{s.visit(0, 0)}) }()
	operator, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Release()
	listed := 0
	await(t, "the event is not visible", func() bool {
		if _, err := operator.Exec(t.Context(), "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); err != nil {
			t.Fatal(err)
		}
		if err := operator.QueryRow(t.Context(), "SELECT count(*) FROM event").Scan(&listed); err != nil {
			t.Fatal(err)
		}
		return listed == 1
	})
	feed := func(ctx context.Context) (n int, err error) {
		_, err = s.Feed(ctx, store.FeedQuery{Merchants: []store.MerchantID{s.id}}, func(*store.Received) bool {
			n++
			return true
		})
		return n, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if n, err := feed(ctx); err == nil || n > 0 {
		t.Errorf("the feed has %d events that no standby has: %v", n, err)
	}
	select {
	case err := <-recorded:
		if err == nil || errors.Is(err, errNoAnswer) {
			t.Errorf("the event is acknowledged, or said not to be there: %v", err)
		}
		recorded <- nil
	default:
	}
	if err := standby.Start(); err != nil {
		t.Fatal(err)
	}
	if err := <-recorded; err != nil {
		t.Error(err)
	}
	await(t, "the feed has no event", func() bool {
		n, err := feed(t.Context())
		return err == nil && n == 1
	})
}
