package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/move"
	"mtagd/store/postgres/pgtest"
)

// leavingShop is a shop with another node, whose data moves out.
type leavingShop struct {
	*shop
	other *engine
	db    *Database
}

func newLeavingShop(t *testing.T) *leavingShop {
	t.Helper()
	s := &leavingShop{shop: newShop(t, Options{})}
	s.other = s.second()
	db, err := OpenDatabase(t.Context(), s.url, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	s.db = db
	return s
}

// freeze begins a freeze.
func (s *leavingShop) freeze() *frozen {
	s.t.Helper()
	f, err := s.db.Freeze(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return f.(*frozen)
}

// freezeUnnoticed begins a freeze that the nodes are not told of. Nothing renews it.
func (s *leavingShop) freezeUnnoticed() *frozen {
	s.t.Helper()
	f := &frozen{d: s.db, stop: func() {}}
	if err := f.announceFor(s.t.Context(), 0); err != nil {
		s.t.Fatal(err)
	}
	if err := f.lock(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return f
}

// expectGoesOn waits until both nodes record events and make changes.
func (s *leavingShop) expectGoesOn() {
	s.t.Helper()
	for i, e := range []*engine{s.engine, s.other} {
		await(s.t, "a node is not ready", func() bool { return e.Ready() == nil })
		if err := e.Record(s.t.Context(), []store.Mark{s.visit(100+i, int(time.Now().UnixNano()%1000))}); err != nil {
			s.t.Errorf("an event after the freeze: %v", err)
		}
		if _, err := e.AddPartner(s.t.Context(), "later"); err != nil {
			s.t.Errorf("a change after the freeze: %v", err)
		}
	}
}

func TestFrozenNodesRefuse(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newLeavingShop(t)
	f := s.freeze()
	for _, e := range []*engine{s.engine, s.other} {
		await(t, "a frozen node is ready", func() bool { return e.Ready() != nil })
		if err := e.Record(t.Context(), []store.Mark{s.visit(1, 1)}); !errors.Is(err, errMoving) || store.KindOf(err) != store.KindUnavailable {
			t.Errorf("an event for a frozen node: %v", err)
		}
		if _, err := e.AddPartner(t.Context(), "refused"); !errors.Is(err, errMoving) {
			t.Errorf("a change of a frozen node: %v", err)
		}
		if _, err := e.Events(t.Context(), store.Query{Merchant: s.id, Limit: 1}); err != nil {
			t.Errorf("a frozen node does not list events: %v", err)
		}
	}
	time.Sleep(freezeLease + time.Second/2) // the row must be renewed
	if err := s.Ready(); err == nil {
		t.Error("the freeze has ended by itself")
	}
	f.Release()
	f.Release()
	s.expectGoesOn()
}

// waiting returns how many transactions wait for a lock.
func (s *leavingShop) waiting() (n int) {
	s.t.Helper()
	if err := s.db.e.pool.QueryRow(s.t.Context(), "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted").Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// A flush and a change that were under way when the freeze began, on nodes that do not know of it, are committed after it or never.
func TestNothingIsCommittedInAFreeze(t *testing.T) {
	for name, moves := range map[string]bool{"that is given up": false, "after which the data has moved": true} {
		t.Run(name, func(t *testing.T) {
			s := newLeavingShop(t)
			_, release, err := s.db.Hold(t.Context()) // as a move does
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			f := s.freezeUnnoticed()
			defer f.Release()
			var working sync.WaitGroup
			var flushed, changed, filed error
			working.Go(func() { flushed = s.Record(context.Background(), []store.Mark{s.visit(1, 1)}) })
			working.Go(func() { _, changed = s.other.AddPartner(context.Background(), "late") })
			working.Go(func() { filed = s.other.PutFile(context.Background(), "certificates/x", []byte("x")) })
			await(t, "nothing waits for the freeze", func() bool { return s.waiting() == 3 })
			if moves {
				if err := f.Commit(t.Context(), theMoon); err != nil {
					t.Fatal(err)
				}
			} else {
				f.Release()
			}
			working.Wait()
			var events, partners int
			if err := s.db.e.pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM partner)").Scan(&events, &partners); err != nil {
				t.Fatal(err)
			}
			if filed != nil {
				t.Errorf("a certificate: %v", filed)
			}
			if !moves {
				if flushed != nil || changed != nil || events != 1 || partners != 2 {
					t.Errorf("after the freeze there are %d events and %d partners; %v; %v", events, partners, flushed, changed)
				}
				return
			}
			if !errors.Is(flushed, errMovedAway) || !errors.Is(changed, errMovedAway) || events != 0 || partners != 1 {
				t.Errorf("after the move there are %d events and %d partners; %v; %v", events, partners, flushed, changed)
			}
		})
	}
}

// A flush that waits too long for a freeze to end is refused, so that its senders know that nothing is recorded.
func TestAFlushDoesNotOutwaitAFreeze(t *testing.T) {
	s := newLeavingShop(t)
	f := s.freezeUnnoticed()
	defer f.Release()
	alive := keepAlive(func(ctx context.Context) error { return ping(ctx, f.tx) }, func(err error) { t.Error(err) })
	defer alive()
	if err := s.Record(t.Context(), []store.Mark{s.visit(1, 1)}); store.KindOf(err) != store.KindUnavailable || errors.Is(err, errMoving) {
		t.Errorf("a flush in a long freeze: %v, want KindUnavailable", err)
	}
}

// A node of an earlier version does not know that the data has moved.
func TestNodesThatKnowNothingAreRefused(t *testing.T) {
	s := newLeavingShop(t)
	f := s.freeze()
	if err := f.Commit(t.Context(), theMoon); err != nil {
		t.Fatal(err)
	}
	flushed := newFlush(uuid.New(), nil)
	mark := s.visit(1, 1)
	flushed.addMark(&mark)
	if err := s.db.e.write(t.Context(), flushed); !errors.Is(err, errMovedAway) {
		t.Errorf("a flush after the move: %v", err)
	}
	var missing bool
	if err := s.db.e.pool.QueryRow(t.Context(), "SELECT max(seq) > count(*) FROM change").Scan(&missing); err != nil || !missing {
		t.Errorf("no number of the table change is missing: %v", err)
	}
}

func TestTheDeathOfAMoveEndsTheFreeze(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newLeavingShop(t)
	f := s.freeze()
	await(t, "a frozen node is ready", func() bool { return s.Ready() != nil && s.other.Ready() != nil })
	f.stop() // as if the command were stopped: nothing is renewed
	s.expectGoesOn()
	if err := f.Commit(t.Context(), theMoon); err == nil {
		t.Error("a freeze that has ended can be committed")
	}
	s.expectGoesOn()
}

func TestLostConnectionsEndTheFreeze(t *testing.T) {
	s := newLeavingShop(t)
	f := s.freeze()
	await(t, "a frozen node is ready", func() bool { return s.Ready() != nil && s.other.Ready() != nil })
	pgtest.Disconnect(t, s.url)
	if err := f.Commit(t.Context(), theMoon); err == nil {
		t.Error("a freeze that has ended can be committed")
	}
	s.expectGoesOn()
}

// A command was killed while the mark of its move was being committed, and is run again.
func TestAMoveBesideTheEndOfAnother(t *testing.T) {
	s := newLeavingShop(t)
	if _, err := s.db.ID(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := s.freeze()
	again := make(chan error, 1)
	go func() {
		_, err := s.db.ID(t.Context())
		again <- err
	}()
	await(t, "the second move does not wait", func() bool { return s.waiting() > 0 })
	if err := f.Commit(t.Context(), theMoon); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err == nil || !strings.Contains(err.Error(), "has moved to the moon") {
		t.Errorf("a second move begins after the first one: %v", err)
	}
}

// Somebody has deleted the row of the move, so nodes would go on beside the directory.
func TestAMoveWithoutItsRowIsNotCommitted(t *testing.T) {
	s := newLeavingShop(t)
	f := s.freeze()
	f.stop() // so that it does not come back
	if _, err := s.db.e.pool.Exec(t.Context(), "DELETE FROM move WHERE direction = 'out'"); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(t.Context(), theMoon); !errors.Is(err, errReleased) {
		t.Errorf("a move without its row is committed: %v", err)
	}
	s.expectGoesOn()
}

// theMoon and aDirectory are the places to which data has moved.
var (
	theMoon    = move.Place{Name: "the moon", ID: "moon"}
	aDirectory = move.Place{Name: "the directory /srv/mtagd on box", ID: "box"}
)

func TestAMovedDatabase(t *testing.T) {
	s := newLeavingShop(t)
	s.record(s.visit(1, 1))
	f := s.freeze()
	if err := f.Commit(t.Context(), aDirectory); err != nil {
		t.Fatal(err)
	}
	f.Release()
	for _, e := range []*engine{s.engine, s.other} {
		await(t, "a node does not know that the data has moved", func() bool {
			err := e.Ready()
			return err != nil && strings.Contains(err.Error(), "has moved to the directory /srv/mtagd on box")
		})
		if err := e.followOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "has moved to the directory /srv/mtagd on box") {
			t.Errorf("the log of a node of a database that has moved says: %v", err)
		}
		if err := e.Record(t.Context(), []store.Mark{s.visit(1, 2)}); !errors.Is(err, errMovedAway) {
			t.Errorf("an event for a database that has moved: %v", err)
		}
		if _, err := e.AddPartner(t.Context(), "refused"); !errors.Is(err, errMovedAway) {
			t.Errorf("a change of a database that has moved: %v", err)
		}
		if _, err := e.Events(t.Context(), store.Query{Merchant: s.id, Limit: 1}); store.KindOf(err) != store.KindUnavailable {
			t.Errorf("a listing of a database that has moved: %v", err)
		}
	}
	if e, err := openURL(s.url, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has moved to the directory /srv/mtagd on box") {
		t.Errorf("a database that has moved opens: %v", errors.Join(err, e.Close()))
	}
	if to, _, moved, err := s.db.Moved(t.Context()); !moved || to != aDirectory || err != nil {
		t.Errorf("Moved returns %+v, %v, %v", to, moved, err)
	}
	if _, err := s.db.Freeze(t.Context()); !errors.Is(err, errMovedAway) {
		t.Errorf("a database that has moved is frozen: %v", err)
	}
	// Its operator may go on with it all the same.
	if _, err := s.db.e.pool.Exec(t.Context(), "DELETE FROM move WHERE direction = 'out'"); err != nil {
		t.Fatal(err)
	}
	later := s.second()
	if err := later.Record(t.Context(), []store.Mark{s.visit(2, 1)}); err != nil {
		t.Errorf("an event for a database that is used again: %v", err)
	}
	if err := s.freeze().Commit(t.Context(), theMoon); err != nil {
		t.Fatal(err)
	}
	// It can be filled again, but only from the store that has its data, and only if that store is known by its id.
	if _, err := s.db.e.pool.Exec(t.Context(), "UPDATE move SET peer_id = ''"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Begin(t.Context(), theMoon.ID); err == nil || !strings.Contains(err.Error(), "with an earlier version") {
		t.Errorf("a move into a database whose data has moved to a store that was not noted: %v", err)
	}
	if _, err := s.db.e.pool.Exec(t.Context(), "UPDATE move SET peer_id = $1", theMoon.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Begin(t.Context(), "another"); err == nil || !strings.Contains(err.Error(), "only the data of that store") {
		t.Errorf("a move of other data into a database whose data has moved: %v", err)
	}
	if at, err := s.db.Begin(t.Context(), theMoon.ID); err != nil || at != 0 {
		t.Fatalf("a move into a database whose data has moved: %d, %v", at, err)
	}
	var events int
	if err := s.db.e.pool.QueryRow(t.Context(), "SELECT count(*) FROM event").Scan(&events); err != nil || events != 0 {
		t.Errorf("%d events are left: %v", events, err)
	}
}
