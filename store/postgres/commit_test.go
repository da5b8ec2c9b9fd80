package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// When the server refuses the COMMIT of a flush, nothing is recorded, and the senders are told so. They can send their
// events again.
func TestACommitThatTheServerRefuses(t *testing.T) {
	s := newShopOn(t, pgtest.EmptyDatabase(t), Options{})
	for _, code := range []string{"40001", "55P03", "53100"} { // serialization, a lock, a full disk
		if _, err := s.db.Pool.Exec(t.Context(), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE 'refused' USING ERRCODE = '`+code+`'; END $$;
			CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON flush DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.seq > 0) EXECUTE FUNCTION refuse()`); err != nil {
			t.Fatal(err)
		}
		again := s.visit(0, 0)
		again.DedupeID = code
		if err := s.Record(t.Context(), []store.Mark{again}); store.KindOf(err) != store.KindUnavailable {
			t.Errorf("a commit refused with %s: %v, want KindUnavailable", code, err)
		}
		exec(t, s.db.Pool, "DROP FUNCTION refuse CASCADE")
		if got := s.record(again); got[0] != store.Recorded {
			t.Errorf("after a commit refused with %s, the same event has outcome %d", code, got[0])
		}
	}
	s.expect(3)
}

// A database that answers, but has no room for events, makes the node not ready, until a flush is written.
func TestANodeThatWritesNoEventsIsNotReady(t *testing.T) {
	s := newShop(t, Options{})
	s.record(s.visit(0, 0))
	makeRoom := s.onRows("BEFORE INSERT ON event", "RAISE 'the disk is full' USING ERRCODE = '53100';")
	await(t, "the node is ready", func() bool {
		if err := s.Record(t.Context(), []store.Mark{s.visit(0, 1)}); store.KindOf(err) != store.KindUnavailable {
			t.Fatalf("an event gets %v, want KindUnavailable", err)
		}
		s.record(s.visit(0, 0)) // a duplicate says nothing
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "no events were written for") && strings.Contains(err.Error(), "the disk is full")
	})
	makeRoom()
	s.record(s.visit(0, 1))
	await(t, "the node is not ready after it has written an event", func() bool { return s.Ready() == nil })
	s.expect(2)
}

// When the second commit of a flush is refused, the first one has recorded its events. They are acknowledged, once the
// standbys have them.
func TestARefusalAfterTheCommit(t *testing.T) {
	t.Run("by a lock", func(t *testing.T) {
		// The first commit sets a lock_timeout of its own.
		s := newShopOn(t, pgtest.Database(t)+"&lock_timeout=200", Options{})
		inTheWay, err := pgx.Connect(t.Context(), s.url+"&lock_timeout=0")
		testenv.Check(t, err)
		defer func() { _ = inTheWay.Close(context.Background()) }()
		n := 0
		await(t, "no flush gets to its second commit", func() bool {
			if s.Record(t.Context(), []store.Mark{s.visit(0, n)}) != nil { // prepares the statements of the connection
				return false // the node was slow
			}
			// The second commit reads this table.
			exec(t, inTheWay, "BEGIN; LOCK TABLE change")
			refused := s.Record(t.Context(), []store.Mark{s.visit(1, n)})
			exec(t, inTheWay, "ROLLBACK")
			n++
			if stored := s.rows("event", s.id); refused != nil && stored != n {
				t.Fatalf("of %d events %d are recorded, but the sender of the last one gets %v", n+1, stored, refused)
			}
			return refused == nil // otherwise the node was slow, or has used another connection
		})
		s.expect(n + 1)
	})
	t.Run("by the end of its connection", func(t *testing.T) {
		primary, standby := startWithStandby(t)
		s := newShopOn(t, primary.URL("postgres"), Options{FlushTimeout: time.Minute})
		var process, asks atomic.Int64 // the connections of the flush, and of the question what became of it
		e := s.openWatched(&watcher{
			batch: func(c *pgx.Conn) { process.Store(int64(c.PgConn().PID())) },
			query: func(c *pgx.Conn, sql string) {
				if strings.HasPrefix(sql, "INSERT INTO flush") {
					asks.Store(int64(c.PgConn().PID()))
				}
			},
		})
		testenv.Check(t, standby.Kill())
		recorded := make(chan error, 1)
		go func() { recorded <- e.Record(context.Background(), []store.Mark{s.visit(0, 0)}) }()
		operator, err := pgx.Connect(t.Context(), s.url)
		testenv.Check(t, err)
		defer func() { _ = operator.Close(context.Background()) }()
		await(t, "the flush does not wait for the standby", func() bool {
			var ended bool
			err := operator.QueryRow(t.Context(), fmt.Sprintf("SELECT coalesce((SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = %d), false)", process.Load())).Scan(&ended)
			testenv.Check(t, err)
			return ended
		})
		await(t, "the node does not find out what became of the flush", func() bool {
			var waits bool // other commits, of the background work of both nodes, may wait beside it
			err := operator.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'commit' AND pid = $1)", asks.Load()).Scan(&waits)
			testenv.Check(t, err)
			return waits
		})
		select {
		case err := <-recorded:
			t.Fatalf("before the standby has the event, its sender gets %v", err)
		default:
		}
		testenv.Check(t, standby.Start())
		if err := <-recorded; err != nil {
			t.Errorf("the event is recorded, but its sender gets %v", err)
		}
		s.expect(1)
	})
}
