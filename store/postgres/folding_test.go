package postgres

import (
	"context"
	"errors"
	"mtagd/store"
	"mtagd/store/postgres/conn"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// minutes returns n tallies of a merchant, each of another minute.
func minutes(merchant uuid.UUID, n int) tallies {
	t := tallies{}
	for i := range n {
		t[tallyKey{merchant: merchant, minute: int64(i)}] = amount{1, 1}
	}
	return t
}

// A node folds the tally of a merchant that has many rows, and that of any other merchant after a while.
func TestFoldingIsDue(t *testing.T) {
	var f folding
	busy, idle := uuid.New(), uuid.New()
	f.note(minutes(idle, 1))
	f.note(minutes(busy, manyRows-1))
	f.note(minutes(busy, 1))
	if due := f.takeDue(); len(due) != 1 || due[0] != busy {
		t.Errorf("due are %v", due)
	}
	f.note(minutes(busy, 1)) // during the fold
	f.moved(busy, manyRows-10, false)
	f.moved(busy, 500, true) // rows of other nodes are among them
	if left := f.merchants[busy]; left.rows != 1 || left.due != 0 {
		t.Errorf("left are %+v", left)
	}
	if due := f.takeDue(); len(due) != 0 {
		t.Errorf("due again are %v", due)
	}
	for m, u := range f.merchants {
		u.since = time.Now().Add(-foldAfter)
		f.merchants[m] = u
	}
	f.note(minutes(idle, 1)) // does not postpone the fold
	for range 2 {            // the first fold fails
		if due := f.takeDue(); len(due) != 2 {
			t.Errorf("due later are %v", due)
		}
	}
	f.moved(idle, 2, true)
	f.moved(busy, 1, true)
	if len(f.merchants) != 0 {
		t.Errorf("left are %v", f.merchants)
	}
}

// After a failure, a fold moves fewer rows in one transaction.
func TestPortionsOfAFold(t *testing.T) {
	var f folding
	f.adapt(true)
	if n := f.rowsAtOnce(); n != foldRows/2 {
		t.Errorf("%d rows after a failure", n)
	}
	for range 20 {
		f.adapt(true)
	}
	if n := f.rowsAtOnce(); n != fewestRows {
		t.Errorf("%d rows after many failures", n)
	}
	for range 20 {
		f.adapt(false)
	}
	if n := f.rowsAtOnce(); n != foldRows {
		t.Errorf("%d rows after many successes", n)
	}
}

// spread returns 1,000 marks, each of another minute.
func (s *shop) spread() []store.Mark {
	marks := make([]store.Mark, 1000)
	for i := range marks {
		marks[i] = s.mark("PageView", "anna")
		marks[i].Time = marks[i].Time.Add(-time.Duration(i) * 7 * time.Minute)
	}
	return marks
}

// A merchant sends the events of a year, each in a minute of its own, faster than they are folded. Only events of this merchant are
// refused, until the node has caught up.
func TestAMerchantWithTooManyRowsIsRefused(t *testing.T) {
	s := newShop(t, Options{})
	other := s.another()
	release := s.holdFolds()
	s.folding.note(minutes(s.key(), maxUnfolded-1500))
	s.record(s.spread()...)
	s.record(s.spread()...)
	if err := s.Record(t.Context(), s.spread()); !errors.Is(err, errManyUnfolded) || store.KindOf(err) != store.KindUnavailable {
		t.Errorf("too many rows: %v", err)
	}
	if n := s.rows("tally", s.id); n != 2000 {
		t.Errorf("the tally has %d rows", n)
	}
	other.record(other.mark("PageView", "bert"))
	if err := s.Record(t.Context(), []store.Mark{other.mark("PageView", "bert"), s.mark("PageView", "anna")}); !errors.Is(err, errManyUnfolded) {
		t.Errorf("a call that has events of this merchant too: %v", err)
	}
	release()
	await(t, "events of the merchant are still refused", func() bool { return s.folding.accepts(s.key()) == nil })
	s.record(s.mark("PageView", "anna"))
	s.folded(s.key(), other.key())
	if n := s.rows("tally", s.id) + other.rows("tally", other.id); n != 0 {
		t.Errorf("%d rows of the tally are left", n)
	}
	other.expect(1)
	s.expectConsistent()
}

// holdFolds keeps all nodes from folding until release is called or the test ends.
func (s *shop) holdFolds() (release func()) {
	s.t.Helper()
	tx, err := s.db.Pool.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := tx.Rollback(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(release)
	if _, err := tx.Exec(s.t.Context(), "SELECT pg_advisory_xact_lock($1)", conn.LockRollup); err != nil {
		s.t.Fatal(err)
	}
	return release
}

// While a merchant's rows are moved, as many are added. The fold ends all the same, and other merchants get their share of it.
func TestABusyMerchantDoesNotStopFolds(t *testing.T) {
	s := newShop(t, Options{})
	other := s.another()
	release := s.holdFolds()
	for range foldRows/1000 + 1 {
		s.record(s.spread()...)
	}
	other.record(other.mark("PageView", "bert"))
	s.onRows("AFTER DELETE ON tally", `INSERT INTO tally
		VALUES (OLD.merchant, nextval('receipt'), OLD.minute, OLD.name, OLD.tag, OLD.bot, OLD.n, OLD.bytes); RETURN NULL;`)
	s.forgetTally()
	release()
	last := lastReceipt(s)
	both := []uuid.UUID{s.key(), other.key()}
	moved, err := s.foldSome(t.Context(), both, last, 4, false)
	if err != nil || moved[s.key()] != 4 || moved[other.key()] != 1 {
		t.Errorf("moved %v, %v", moved, err)
	}
	s.folded(both...)
	var before, after int
	if err := s.db.Pool.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE seq <= $2), count(*) FILTER (WHERE seq > $2) FROM tally WHERE merchant = $1", s.key(), last).Scan(&before, &after); err != nil {
		t.Fatal(err)
	}
	if before != 0 || after != foldRows+1000 {
		t.Errorf("the tally has %d rows of those that there were, and %d that were added", before, after)
	}
}

// onRows makes the server run a trigger for each row that changes, until drop is called or the test ends.
func (s *shop) onRows(when, do string) (drop func()) {
	s.t.Helper()
	sql := "CREATE FUNCTION on_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN " + do + " END $$; CREATE TRIGGER on_rows " + when + " FOR EACH ROW EXECUTE FUNCTION on_rows()"
	if _, err := s.db.Pool.Exec(s.t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		s.t.Fatal(err)
	}
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
	if err := s.db.Pool.QueryRow(s.t.Context(), "SELECT last_value FROM receipt").Scan(&seq); err != nil {
		s.t.Fatal(err)
	}
	return seq
}

// When the rows of one merchant cannot be moved, those of the others are moved all the same.
func TestAFoldGoesOnWithoutAMerchant(t *testing.T) {
	s := newShop(t, Options{})
	var merchants []uuid.UUID
	for _, m := range []*shop{s.another(), s, s.another()} {
		m.record(m.mark("PageView", "anna"))
		merchants = append(merchants, m.key())
	}
	s.forgetTally()
	drop := s.onRows("BEFORE INSERT ON counter", "IF NEW.merchant = '"+string(s.id)+"' THEN RAISE EXCEPTION 'no'; END IF; RETURN NEW;")
	if err := s.fold(t.Context(), merchants); err == nil {
		t.Error("fold returns no error")
	}
	for i, m := range merchants {
		if n := s.rows("tally", store.MerchantID(m.String())); (n != 0) != (i == 1) {
			t.Errorf("%d rows of merchant %d are left", n, i)
		}
	}
	drop()
	s.folded(merchants...)
	s.expect(1)
}

// Flushes of older nodes, folds and removals lock counters in one order.
func TestCountersAreSorted(t *testing.T) {
	k := counterKey{name: "PageView", tag: "cs_1"}
	bot := k
	bot.bot = true
	if compareCounters(k, bot) >= 0 || compareCounters(bot, k) <= 0 || compareCounters(k, k) != 0 {
		t.Error("counters of bots are not after those of others")
	}
}
