package postgres

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
	"mtagd/store/testenv"
)

// spread returns 1,000 marks, each of another minute.
func (s *shop) spread() []store.Mark {
	marks := make([]store.Mark, 1000)
	for i := range marks {
		marks[i] = s.mark("PageView", "anna")
		marks[i].Time = marks[i].Time.Add(-time.Duration(i) * 7 * time.Minute)
	}
	return marks
}

// A merchant sends the events of a year, each in a minute of its own, faster than they are rolled up. Only events of this
// merchant are refused, until the node has caught up.
func TestAMerchantWithTooManyRowsIsRefused(t *testing.T) {
	s := newShop(t, Options{FlushTimeout: time.Minute}) // a flush of so many rows may take long on a busy machine
	other := s.another()
	release := s.holdRollups()
	many := count.Deltas{}
	for i := range count.MaxBacklog - 1500 {
		many.Add(s.key(), int64(i)*time.Minute.Microseconds(), "", "PageView", false, 1, 1)
	}
	s.counts.Note(many)
	s.record(s.spread()...)
	s.record(s.spread()...)
	if err := s.Record(t.Context(), s.spread()); !errors.Is(err, count.ErrBacklog) || store.KindOf(err) != store.KindUnavailable {
		t.Errorf("too many rows: %v", err)
	}
	if n := s.rows("tally", s.id); n != 2000 {
		t.Errorf("the tally has %d rows", n)
	}
	other.record(other.mark("PageView", "bert"))
	if err := s.Record(t.Context(), []store.Mark{other.mark("PageView", "bert"), s.mark("PageView", "anna")}); !errors.Is(err, count.ErrBacklog) {
		t.Errorf("a call that has events of this merchant too: %v", err)
	}
	release()
	await(t, "events of the merchant are still refused", func() bool { return s.counts.Accepts(s.key()) == nil })
	s.record(s.mark("PageView", "anna"))
	s.rollUp(s.key(), other.key())
	if n := s.rows("tally", s.id) + other.rows("tally", other.id); n != 0 {
		t.Errorf("%d rows of the tally are left", n)
	}
	other.expect(1)
	s.expectConsistent()
}

// holdRollups keeps all nodes from rolling up until release is called or the test ends. It has a connection of its own: a node
// on a busy machine may take it that the server is silent, and close all of the pool.
func (s *shop) holdRollups() (release func()) {
	s.t.Helper()
	session, err := pgx.Connect(s.t.Context(), s.url)
	testenv.Check(s.t, err)
	release = sync.OnceFunc(func() {
		if err := session.Close(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(release)
	exec(s.t, session, "SELECT pg_advisory_lock($1)", conn.LockRollup)
	return release
}

// While a merchant's rows are moved, as many are added. The rollup ends all the same, and other merchants get their share of
// it.
func TestABusyMerchantDoesNotStopRollups(t *testing.T) {
	s := newShop(t, Options{keepDeltas: true})
	other := s.another()
	release := s.holdRollups()
	for range count.RowsAtOnce/1000 + 1 {
		s.record(s.spread()...)
	}
	other.record(other.mark("PageView", "bert"))
	s.onRows("AFTER DELETE ON tally", `INSERT INTO tally
		VALUES (OLD.merchant, nextval('receipt'), OLD.minute, OLD.name, OLD.tag, OLD.bot, OLD.n, OLD.bytes); RETURN NULL;`)
	release()
	last := lastReceipt(s)
	both := []uuid.UUID{s.key(), other.key()}
	moved, err := s.counts.RollUpSome(t.Context(), both, last, 4, false)
	if err != nil || moved[s.key()] != 4 || moved[other.key()] != 1 {
		t.Errorf("moved %v, %v", moved, err)
	}
	s.rollUp(both...)
	var before, after int
	testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE seq <= $2), count(*) FILTER (WHERE seq > $2) FROM tally WHERE merchant = $1", s.key(), last).Scan(&before, &after))
	if before != 0 || after != count.RowsAtOnce+1000 {
		t.Errorf("the tally has %d rows of those that there were, and %d that were added", before, after)
	}
}

// onRows makes the server run a trigger for each row that changes, until drop is called or the test ends.
func (s *shop) onRows(when, do string) (drop func()) {
	s.t.Helper()
	sql := "CREATE FUNCTION on_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " + do + " END $$; CREATE TRIGGER on_rows " + when + " FOR EACH ROW EXECUTE FUNCTION on_rows()"
	exec(s.t, s.db.Pool, sql, pgx.QueryExecModeSimpleProtocol)
	drop = sync.OnceFunc(func() {
		if _, err := s.db.Pool.Exec(context.Background(), "DROP FUNCTION on_rows() CASCADE"); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(drop)
	return drop
}

func lastReceipt(s *shop) (seq int64) {
	s.t.Helper()
	testenv.Check(s.t, s.db.Pool.QueryRow(s.t.Context(), "SELECT last_value FROM receipt").Scan(&seq))
	return seq
}

// When the rows of one merchant cannot be moved, those of the others are moved all the same.
func TestARollupGoesOnWithoutAMerchant(t *testing.T) {
	s := newShop(t, Options{keepDeltas: true})
	var merchants []uuid.UUID
	for _, m := range []*shop{s.another(), s, s.another()} {
		m.record(m.mark("PageView", "anna"))
		merchants = append(merchants, m.key())
	}
	drop := s.onRows("BEFORE INSERT ON counter", "IF NEW.merchant = '"+string(s.id)+"' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW;")
	if err := s.counts.RollUp(t.Context(), merchants); err == nil {
		t.Error("fold returns no error")
	}
	for i, m := range merchants {
		if n := s.rows("tally", store.MerchantID(m.String())); (n != 0) != (i == 1) {
			t.Errorf("%d rows of merchant %d are left", n, i)
		}
	}
	drop()
	s.rollUp(merchants...)
	s.expect(1)
}
