package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// forCopy returns the shop's database as an import reads it.
func (s *shop) forCopy() *Database {
	s.t.Helper()
	db, err := OpenDatabase(s.t.Context(), s.url, quiet)
	testenv.Check(s.t, err)
	s.t.Cleanup(db.Close)
	return db
}

// lockOf keeps everybody from changing the shop's database.
func (s *shop) lockOf(db *Database) Locked {
	s.t.Helper()
	h, err := db.PreventChanges(s.t.Context(), "the moon")
	testenv.Check(s.t, err)
	s.t.Cleanup(h.Release)
	return h
}

// countsIn returns how many events and partners the database has.
func (s *shop) countsIn(db *Database) (events, partners int) {
	s.t.Helper()
	testenv.Check(s.t, db.db.Pool.QueryRow(s.t.Context(), "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM record WHERE kind = 'partners' AND body IS NOT NULL)").Scan(&events, &partners))
	return events, partners
}

// A node was forgotten when all were to be stopped. What it begins during an import is never committed, and it goes on only
// when the import has failed.
func TestANodeBesideAnImport(t *testing.T) {
	s := newShop(t, Options{})
	db := s.forCopy()
	h := s.lockOf(db)
	flushed, changed, filed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	begin := func() {
		go func() { flushed <- s.Record(context.Background(), []store.Mark{s.visit(1, 1)}) }()
		go func() { _, err := s.AddPartner(context.Background(), "late"); changed <- err }()
		go func() { filed <- s.PutFile(context.Background(), "certificates/x", []byte("x")) }()
		await(t, "nothing waits for the import", func() bool {
			var waiting int
			err := db.db.Pool.QueryRow(t.Context(), "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted").Scan(&waiting)
			return err == nil && waiting == 3
		})
	}
	begin()
	h.Release()
	if err := errors.Join(<-flushed, <-changed, <-filed); err != nil {
		t.Errorf("after an import that has failed: %v", err)
	}
	if events, partners := s.countsIn(db); events != 1 || partners != 2 {
		t.Errorf("after an import that has failed there are %d events and %d partners", events, partners)
	}
	h = s.lockOf(db)
	begin()
	testenv.Check(t, h.Moved(t.Context()))
	h.Release()
	if err := <-flushed; store.KindOf(err) != store.KindUnavailable {
		t.Errorf("an event for a database that has moved: %v", err)
	}
	if err := <-changed; err == nil {
		t.Error("a change of a database that has moved is made")
	}
	<-filed
	if events, partners := s.countsIn(db); events != 1 || partners != 2 {
		t.Errorf("after the import there are %d events and %d partners", events, partners)
	}
	await(t, "the node is ready", func() bool { return s.Ready() != nil })
}

// A flush waits for an import so shortly that its senders know that nothing is recorded.
func TestAFlushDoesNotOutwaitAnImport(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newShop(t, Options{})
	s.lockOf(s.forCopy())
	if err := s.Record(t.Context(), []store.Mark{s.visit(1, 1)}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a flush in a long import: %v, want KindUnavailable", err)
	}
}

func TestARunningNodeIsNoticed(t *testing.T) {
	s := newShop(t, Options{})
	if _, _, err := s.Exchange(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.forCopy().PreventChanges(t.Context(), "the moon"); err == nil || !strings.Contains(err.Error(), "a node of the database is running") {
		t.Errorf("an import beside a node: %v", err)
	}
}

func TestAMovedDatabase(t *testing.T) {
	s := newShop(t, Options{})
	s.record(s.visit(1, 1))
	db := s.forCopy()
	testenv.Check(t, s.lockOf(db).Moved(t.Context()))
	if e, err := openURL(s.url, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has moved to the moon") {
		t.Errorf("a database that has moved opens: %v", errors.Join(err, e.Close()))
	}
	if _, err := db.PreventChanges(t.Context(), "mars"); err == nil || !strings.Contains(err.Error(), "has moved to the moon") {
		t.Errorf("another import of a database that has moved: %v", err)
	}
	if err := db.BeginFilling(t.Context()); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a database that has moved is filled again: %v", err)
	}
	// Its operator may go on with it all the same.
	exec(t, db.db.Pool, "DELETE FROM move WHERE direction = 'out'")
	if err := s.second().Record(t.Context(), []store.Mark{s.visit(2, 1)}); err != nil {
		t.Errorf("an event for a database that is used again: %v", err)
	}
	s.lockOf(db).Release()
}

// A second import into a database ends the first one, which is not mixed into it.
func TestTwoImportsIntoADatabase(t *testing.T) {
	url := pgtest.Database(t)
	var imports [2]*Database
	for i := range imports {
		db, err := OpenDatabase(t.Context(), url, quiet)
		testenv.Check(t, err)
		t.Cleanup(db.Close)
		testenv.Check(t, db.BeginFilling(t.Context()))
		imports[i] = db
	}
	if err := imports[0].Add(t.Context(), migrate.Portion{}); !errors.Is(err, errNotBegun) {
		t.Errorf("the first import goes on: %v", err)
	}
	if _, err := imports[0].Ready(t.Context(), 1); !errors.Is(err, errNotBegun) {
		t.Errorf("the first import ends: %v", err)
	}
	if err := imports[1].Add(t.Context(), migrate.Portion{}); err != nil {
		t.Error(err)
	}
}
