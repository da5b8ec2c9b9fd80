package partnerapi

import (
	"context"
	"testing"
	"testing/synctest"

	"mtagd/store"
	"mtagd/store/budget"
)

// One partner has many requests that search the feed. Another partner's request waits for one of them at most.
func TestPartnersTakeTurnsInTheFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{turns: budget.Turns[store.PartnerID](1)}
		if err := a.takeTurn(t.Context(), "heavy"); err != nil {
			t.Fatal(err)
		}
		var begun []store.PartnerID
		for _, partner := range []store.PartnerID{"heavy", "heavy", "heavy", "other"} {
			go func() {
				if err := a.takeTurn(t.Context(), partner); err != nil {
					t.Error(err)
				}
				begun = append(begun, partner)
				a.endTurn(partner)
			}()
			synctest.Wait()
		}
		a.endTurn("heavy")
		synctest.Wait()
		if len(begun) != 4 || begun[0] != "other" && begun[1] != "other" {
			t.Errorf("the turns were of %v", begun)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := a.takeTurn(ctx, "heavy"); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := a.takeTurn(ctx, "other"); err != context.Canceled {
			t.Errorf("a request whose client has gone gets %v", err)
		}
	})
}

// searching is an engine whose feed finds nothing for a while.
type searching struct {
	store.Engine
	calls int // left without an event
	seen  func()
}

func (e *searching) Feed(ctx context.Context, q store.FeedQuery, use func(*store.Received) bool) (store.FeedEnd, error) {
	e.seen()
	if e.calls--; e.calls >= 0 {
		return store.FeedEnd{Cursor: q.After, More: true}, nil
	}
	return e.Engine.Feed(ctx, q, use)
}

func TestAPageThatSearchesTakesATurnForEachCallAfterTheFirst(t *testing.T) {
	s := newService(t)
	p := s.shops(1)
	p.send(0, "A")
	var held []int64
	e := &searching{Engine: s.engine, calls: 2}
	s.serve(e, &s.dns)
	e.seen = func() { held = append(held, s.api.turns.Held(p.ID)) }
	p.get(feedPath).is(200)
	for i, n := range held {
		if want := min(int64(i), 1); n != want {
			t.Errorf("call %d of Feed holds %d turns, want %d", i, n, want)
		}
	}
	if len(held) < 2 || s.api.turns.Held(p.ID) != 0 {
		t.Errorf("after %d calls of Feed, %d turns are held", len(held), s.api.turns.Held(p.ID))
	}
}
