package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// An event that no standby has is visible, but nobody may rely on it: it is not acknowledged, no feed and no watch has it, and no link of it
// is told. When a standby without it becomes the primary, it is gone, and the sender is told so.
func TestAnEventThatNoStandbyHas(t *testing.T) {
	primary, standby := startWithStandby(t)
	s := newShopOn(t, fmt.Sprintf("postgres:///postgres?host=%s,%s&user=mtagd", primary.Dir(), standby.Dir()), Options{flushTimeout: time.Minute})
	var who store.Identity
	who.Add(store.Email, "a@example.com")
	mark := func(i int, muid store.MUID) store.Mark {
		m := s.visit(0, i)
		m.Identity, m.DedupeID = who, fmt.Sprint(i)
		m.Identity.MUID = muid
		return m
	}
	s.record(mark(0, "m0"))
	var fed int
	var after store.Cursor
	feed := func(ctx context.Context) error {
		end, err := s.Feed(ctx, store.FeedQuery{Merchants: []store.MerchantID{s.id}, After: after}, func(*store.Received) bool {
			fed++
			return true
		})
		if err == nil {
			after = end.Cursor
		}
		return err
	}
	if err := feed(t.Context()); err != nil || fed != 1 {
		t.Fatalf("the feed has %d events, %v", fed, err)
	}
	news, stop := s.Watch([]store.MerchantID{s.id})
	defer stop()
	if err := standby.Kill(); err != nil {
		t.Fatal(err)
	}
	recorded := make(chan error, 1)
	go func() { recorded <- s.Record(context.Background(), []store.Mark{mark(1, "m1")}) }()
	direct, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Close(context.Background()) }() // its server is killed
	await(t, "the event is not visible", func() bool {
		var n int
		err := direct.QueryRow(t.Context(), "SELECT count(*) FROM event").Scan(&n)
		return err == nil && n == 2
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := feed(ctx); err == nil || fed != 1 {
		t.Errorf("the feed has %d events, %v", fed, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if muid, err := s.Resolve(ctx, s.id, who); err == nil {
		t.Errorf("the link is told: %s", muid)
	}
	select {
	case <-news:
		t.Error("the watch is told")
	case err := <-recorded:
		t.Fatalf("the sender is told %v", err)
	default:
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(standby.Start(), standby.Promote()); err != nil {
		t.Fatal(err)
	}
	if err := <-recorded; store.KindOf(err) != store.KindUnavailable && store.KindOf(err) != store.KindUncertain {
		t.Errorf("the sender is told %v, want KindUnavailable or KindUncertain", err)
	}
	await(t, "the feed cannot be read", func() bool { return feed(t.Context()) == nil })
	if fed != 1 {
		t.Errorf("the feed has %d events, want 1", fed)
	}
	await(t, "the event cannot be sent again", func() bool {
		again := mark(1, "m1")
		return s.Record(t.Context(), []store.Mark{again}) == nil
	})
	if err := feed(t.Context()); err != nil || fed != 2 {
		t.Errorf("the feed has %d events, %v", fed, err)
	}
	if muid, err := s.Resolve(t.Context(), s.id, who); muid != "m1" || err != nil {
		t.Errorf("the identity is %s, %v", muid, err)
	}
	s.expectConsistent()
}
