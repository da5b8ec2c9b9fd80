package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// watcher sees what an engine does with its connections.
type watcher struct {
	released func(c *pgx.Conn)
	query    func(c *pgx.Conn, sql string)
	batch    func(c *pgx.Conn) // begins
	answered func(c *pgx.Conn) // a statement of a batch
}

func (w *watcher) TraceQueryStart(ctx context.Context, c *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if w.query != nil {
		w.query(c, data.SQL)
	}
	return ctx
}

func (*watcher) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (w *watcher) TraceBatchStart(ctx context.Context, c *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	if w.batch != nil {
		w.batch(c)
	}
	return ctx
}

func (w *watcher) TraceBatchQuery(_ context.Context, c *pgx.Conn, _ pgx.TraceBatchQueryData) {
	if w.answered != nil {
		w.answered(c)
	}
}

func (*watcher) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (w *watcher) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	if w.released != nil {
		w.released(data.Conn)
	}
}

// openWatched opens another engine on the database of a shop. On a busy machine a flush may take long, so it has a minute.
func (s *shop) openWatched(w *watcher) *engine {
	s.t.Helper()
	return s.opened(openEngine(s.t.Context(), s.url, Options{Log: quiet, FlushTimeout: time.Minute, tracer: w}))
}

// cancelWait makes it look as if an operator had canceled the wait of a transaction's commit for the standbys.
func cancelWait(tx pgx.Tx) {
	c := tx.Conn()
	c.Config().OnNotice(c.PgConn(), &pgconn.Notice{Routine: "SyncRepWaitForLSN"})
}

// Whether a commit has got to the standbys is known of its connection. It is asked before others may use that.
func TestAConnectionIsCheckedBeforeItIsReleased(t *testing.T) {
	s := newShop(t, Options{})
	var unchecked atomic.Int64
	watched := &watcher{released: func(c *pgx.Conn) {
		if !c.IsClosed() && conn.CheckReplicated(c.PgConn()) != nil {
			unchecked.Add(1)
		}
	}}
	e := s.openWatched(watched)
	if err := e.db.Transact(t.Context(), func(tx pgx.Tx) error {
		cancelWait(tx)
		return nil
	}); err != conn.ErrNotReplicated {
		t.Errorf("a transaction whose wait was canceled: %v", err)
	}
	var changes atomic.Int64
	watched.query = func(c *pgx.Conn, sql string) {
		if strings.HasPrefix(sql, "SELECT pg_advisory_xact_lock(") && changes.Add(1) == 1 { // the second one looks for the change
			c.Config().OnNotice(c.PgConn(), &pgconn.Notice{Routine: "SyncRepWaitForLSN"})
		}
	}
	if err := e.SetDefaultRetention(t.Context(), 30); err != nil || changes.Load() != 2 {
		t.Errorf("a change whose wait was canceled: %v, looked for in %d transactions", err, changes.Load()-1)
	}
	if n := unchecked.Load(); n > 0 {
		t.Errorf("%d connections were released before they were checked", n)
	}
}

// A server that was replaced may have answered with data that its successor lacks.
func TestWhatIsGoneIsNotConfirmed(t *testing.T) {
	s := newShop(t, Options{})
	s.record(s.visit(0, 0))
	var last conn.Snapshot
	testenv.Check(t, last.ReadFrom(s.db.Pool.QueryRow(t.Context(), conn.ReadSnapshot)))
	if !s.db.IsConfirmed(last) {
		t.Error("the flush was acknowledged, but is not confirmed")
	}
	for _, c := range []struct {
		seen      conn.Snapshot
		confirmed bool
	}{
		{last, true},
		{conn.Snapshot{Server: last.Server, Flush: last.Flush + 1}, false},
		{conn.Snapshot{Server: last.Server, Change: last.Change + 1}, false},
		{conn.Snapshot{Server: last.Server - 1, Flush: last.Flush}, false},
	} {
		err := s.db.Confirm(t.Context(), c.seen)
		if confirmed := err == nil; confirmed != c.confirmed || !confirmed && store.KindOf(err) != store.KindUnavailable {
			t.Errorf("%+v after %+v: %v", c.seen, last, err)
		}
	}
}

// A feed whose connection ends in the middle goes on with another one: before it has read anything, when it has read the
// events of some merchants, and while it waits for the workers. It misses no event, and passes none twice.
func TestAFeedSurvivesTheEndOfItsConnection(t *testing.T) {
	s := newShop(t, Options{})
	merchants := []store.MerchantID{s.id}
	for range 2 {
		m, err := s.AddMerchant(t.Context(), s.partner, store.NewMerchant{Name: "Shop"})
		testenv.Check(t, err)
		merchants = append(merchants, m.ID)
	}
	var marks []store.Mark
	var want []string
	for i := range 60 { // more than the server can send before it is read
		raw := fmt.Sprintf(`{"n":%d,"filler":%q}`, i, strings.Repeat("x", 40_000))
		marks = append(marks, store.Mark{Merchant: merchants[i%len(merchants)], Tag: s.tag, Identity: store.Identity{MUID: "m"}, Name: "Visit", Time: time.Now(), Raw: []byte(raw)})
		want = append(want, raw)
	}
	s.record(marks...)

	var left, waits atomic.Int64 // calls until the connection ends; 0: it does not
	end := func(left *atomic.Int64, c *pgx.Conn) {
		if left.Load() == 0 || left.Add(-1) > 0 {
			return
		}
		if _, err := s.db.Pool.Exec(context.Background(), "SELECT pg_terminate_backend($1, 5000)", c.PgConn().PID()); err != nil {
			t.Error(err)
		}
	}
	e := s.openWatched(&watcher{
		batch:    func(c *pgx.Conn) { end(&left, c) },
		answered: func(c *pgx.Conn) { end(&left, c) },
		query: func(c *pgx.Conn, sql string) {
			if strings.Contains(sql, "pg_advisory_xact_lock_shared") {
				end(&waits, c)
			}
		},
	})
	for read := range 1 + len(merchants) { // answers before the end: of which server, and the merchants'
		left.Store(int64(1 + read))
		var got []string
		if _, err := e.Feed(t.Context(), store.FeedQuery{Merchants: merchants}, func(r *store.Received) bool {
			got = append(got, string(r.Raw))
			return true
		}); err != nil || left.Load() > 0 {
			t.Errorf("a connection that ends after %d answers: %v", read, err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after a connection that ended after %d answers, the feed has %d events, want %d in their order", read, len(got), len(want))
		}
	}
	waits.Store(1)
	if err := e.db.AwaitCommits(t.Context()); err != nil || waits.Load() > 0 {
		t.Errorf("a connection that ends while it waits: %v", err)
	}
}

// All connections of both nodes end again and again, while one node records events. A follower on the other node sees each
// event once, in order, and is woken for each.
func TestAFollowerSurvivesTheEndOfAllConnections(t *testing.T) {
	s := newShop(t, Options{})
	other := s.second()
	const events, perCall = 300, 5
	writer := make(chan error, 1)
	go func() {
		for i := 0; i < events; i += perCall {
			if i%25 == 0 {
				if err := pgtest.EndConnections(s.url); err != nil {
					writer <- err
					return
				}
			}
			var marks []store.Mark
			for n := range perCall {
				m := s.visit(0, 0)
				m.DedupeID, m.Raw = fmt.Sprint(i+n), fmt.Append(nil, i+n)
				marks = append(marks, m)
			}
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // as a sender would, only shorter
				err := s.Record(context.Background(), marks)
				if err == nil {
					break
				}
				if time.Now().After(deadline) {
					writer <- err
					return
				}
			}
		}
		writer <- nil
	}()
	news, stop := other.Watch([]store.MerchantID{s.id})
	defer stop()
	var got []string
	q := store.FeedQuery{Merchants: []store.MerchantID{s.id}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(got) < events && ctx.Err() == nil {
		end, err := other.Feed(ctx, q, func(r *store.Received) bool {
			got, q.After = append(got, string(r.Raw)), r.Cursor
			return true
		})
		if err == nil {
			q.After = end.Cursor
		} else if ctx.Err() == nil && store.KindOf(err) != store.KindUnavailable {
			t.Fatal(err)
		}
		if err != nil || end.More || len(got) == events {
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
		}
	}
	if len(got) < events {
		t.Errorf("after a minute, the follower has %d events of %d", len(got), events)
	}
	testenv.Check(t, <-writer)
	for i, raw := range got {
		if raw != fmt.Sprint(i) {
			t.Fatalf("event %d of the feed is %s", i, raw)
		}
	}
}

// A server without room takes calls again when there is some.
func TestAServerWithoutRoomIsUnavailable(t *testing.T) {
	s := newShop(t, Options{})
	full := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "53100", Message: "No space left on device"}
	if err := (control.Driver{Control: s.Control}).Update(t.Context(), func(rules.Turn) (rules.Change, error) { return rules.Change{}, full }); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a change gets %v, want KindUnavailable", err)
	}
	for code, want := range map[string]string{"53100": "no room", "53300": "no connection to spare"} {
		full.Code = code
		if err := s.db.Read(t.Context(), func(pgx.Tx) error { return full }); store.KindOf(err) != store.KindUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("a read that fails with %s gets %v, want KindUnavailable with %q", code, err, want)
		}
	}
}

// Slow reads take all connections that they may have, but those of one partner only a half. Events are accepted all the
// same, and the node stays ready.
func TestSlowReadsLeaveConnections(t *testing.T) {
	const conns, half = 8, 2
	s := newShopOn(t, fmt.Sprintf("%s&pool_max_conns=%d", pgtest.Database(t), conns), Options{})
	var reading sync.WaitGroup
	var under [3]atomic.Int64 // by partner
	stop := make(chan struct{})
	slow := func(partner int) {
		for range conns {
			reading.Go(func() {
				ctx := store.WithPartner(context.Background(), store.PartnerID(rune('a'+partner)))
				if err := s.db.Read(ctx, func(pgx.Tx) error {
					under[partner].Add(1)
					<-stop
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	slow(0)
	await(t, "a partner has less than its share", func() bool { return under[0].Load() == half })
	slow(1)
	await(t, "another partner reads nothing", func() bool { return under[1].Load() == 1 })
	slow(2)
	await(t, "a third partner reads nothing", func() bool { return under[2].Load() == 1 })
	following, cancelFollowing := context.WithTimeout(t.Context(), control.FollowTimeout)
	defer cancelFollowing()
	if _, err := s.CatchUp(following, func(pgx.Tx) error { return nil }); err != nil {
		close(stop)
		t.Fatalf("the node cannot follow: %v", err)
	}
	s.record(s.visit(0, 0))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Latest(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the end of the feed is read before its turn: %v", err)
	}
	if a, b, c := under[0].Load(), under[1].Load(), under[2].Load(); a != half || b != 1 || c != 1 {
		t.Errorf("%d, %d and %d reads of partners are under way", a, b, c)
	}
	close(stop)
	reading.Wait()
	s.expect(1)
}

// A read of a partner that the database does not finish ends, and is an error that may pass.
func TestAReadOfAPartnerHasATimeout(t *testing.T) {
	s := newShop(t, Options{})
	var limit string
	if err := s.db.Read(store.WithPartner(t.Context(), s.partner), func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&limit)
	}); err != nil || limit != "20s" {
		t.Errorf("a statement may take %s, %v", limit, err)
	}
	if err := s.db.Read(store.WithPartner(t.Context(), s.partner), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)")
		return err
	}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a statement that takes too long: %v", err)
	}
}

// The same goes for a read of many statements, each of which takes little time.
func TestTheStatementsOfAReadHaveOneTimeout(t *testing.T) {
	s := newShop(t, Options{queryTimeout: time.Nanosecond})
	read := func(ctx context.Context) error {
		return s.db.Read(ctx, func(tx pgx.Tx) error {
			_, err := conn.Column[int](ctx, tx, "SELECT 1")
			return err
		})
	}
	if err := read(store.WithPartner(t.Context(), s.partner)); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a partner's query begins too late: %v", err)
	}
	if err := read(t.Context()); err != nil {
		t.Errorf("the service's own: %v", err)
	}
}

// To find a person's links takes longer than a query may when a merchant has many. It is not ended.
func TestThePersonOfALargeMerchantIsFound(t *testing.T) {
	s := newShop(t, Options{})
	var begins sync.Map // the last one of each connection
	var began any       // what the transaction that reads links began with
	e := s.openWatched(&watcher{query: func(c *pgx.Conn, sql string) {
		switch {
		case strings.HasPrefix(sql, conn.BeginSnapshot):
			begins.Store(c, sql)
		case strings.Contains(sql, "FROM link"):
			began, _ = begins.Load(c)
		}
	}})
	if _, err := e.PersonalData(store.WithPartner(t.Context(), s.partner), s.id, store.Identity{MUID: "m"}, false, nil); err != nil {
		t.Fatal(err)
	}
	if began != conn.BeginRead {
		t.Errorf("the links are read after %q", began)
	}
}

// Slow reads of the service itself, and slow look-ups of one merchant's tag hosts, do not keep those of another merchant
// waiting.
func TestLookUpsWaitForNoOtherReads(t *testing.T) {
	const conns = 8
	s := newShopOn(t, fmt.Sprintf("%s&pool_max_conns=%d", pgtest.Database(t), conns), Options{})
	other := store.NewMerchantID()
	var reading sync.WaitGroup
	stop := make(chan struct{})
	slow := func(read func(context.Context, func(pgx.Tx) error) error) {
		var under atomic.Int64
		for range conns {
			reading.Go(func() {
				if err := read(context.Background(), func(pgx.Tx) error {
					under.Add(1)
					<-stop
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		await(t, "no read has begun", func() bool { return under.Load() > 0 })
	}
	slow(s.db.Read)
	slow(func(ctx context.Context, read func(pgx.Tx) error) error {
		return s.db.ReadFor(ctx, string(other), read)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var who store.Identity
	who.Add(store.Email, "a@example.com")
	if _, err := s.Resolve(ctx, s.id, who); err != nil {
		t.Errorf("a look-up: %v", err)
	}
	if _, err := s.Link(ctx, "mtl_"); store.KindOf(err) != store.KindNotFound {
		t.Errorf("a link of the console: %v", err)
	}
	close(stop)
	reading.Wait()
}

// Changes that wait for their turn, because a change of another node is under way, leave the connections to events and to
// the follower. A wrong link, which anybody can send, does not wait with them.
func TestChangesThatWaitLeaveConnections(t *testing.T) {
	const conns = 6
	s := newShopOn(t, fmt.Sprintf("%s&pool_max_conns=%d", pgtest.Database(t), conns), Options{})
	link, text, err := s.AddLink(t.Context(), s.partner)
	testenv.Check(t, err)
	_, wrong := store.NewLink(s.partner, time.Now())
	tx, err := s.db.Pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", conn.LockControl)
	}
	testenv.Check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	for range 4 * conns {
		changing.Go(func() {
			if _, err := s.AddPartner(ctx, "Agency"); err == nil {
				t.Error("a change was made without its turn")
			}
		})
	}
	await(t, "no change waits", func() bool {
		var waits bool
		testenv.Check(t, tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").Scan(&waits))
		return waits
	})
	if _, _, err := s.UseLink(t.Context(), wrong); store.KindOf(err) != store.KindNotFound {
		t.Errorf("a wrong link gets %v", err)
	}
	following, cancelFollowing := context.WithTimeout(t.Context(), control.FollowTimeout)
	defer cancelFollowing()
	if _, err := s.CatchUp(following, func(pgx.Tx) error { return nil }); err != nil {
		t.Errorf("the node cannot follow: %v", err)
	}
	s.record(s.visit(0, 0))
	cancel()
	changing.Wait()
	testenv.Check(t, tx.Rollback(t.Context()))
	if begun, _, err := s.UseLink(t.Context(), text); err != nil || begun.Link != link.ID {
		t.Errorf("the right link begins %v, %v", begun, err)
	}
}

// The operator may have another default isolation level. With it, changes would fail that others are made beside.
func TestTransactionsThatWriteHaveTheirOwnIsolation(t *testing.T) {
	s := newShopOn(t, pgtest.Database(t)+"&default_transaction_isolation=serializable", Options{})
	isolation := func(session *pgx.Conn) (level string) {
		if err := session.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil {
			t.Error(err)
		}
		return level
	}
	if err := s.db.Transact(t.Context(), func(tx pgx.Tx) error {
		if level := isolation(tx.Conn()); level != "read committed" {
			t.Errorf("a change is %s", level)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Only after a connection failure are the other connections not used again.
func TestASerializationFailureKeepsTheConnections(t *testing.T) {
	s := newShop(t, Options{})
	conns := func() (all []*pgx.Conn) { // that the pool hands out
		var held []*pgxpool.Conn
		for range 6 {
			session, err := s.db.Pool.Acquire(t.Context())
			testenv.Check(t, err)
			held = append(held, session)
			all = append(all, session.Conn())
		}
		for _, session := range held {
			session.Release()
		}
		return all
	}
	for _, c := range []struct {
		code string
		kept bool
	}{{"40001", true}, {"08006", false}} {
		before, calls := conns(), 0
		if err := s.db.Attempt(t.Context(), func() error {
			if calls++; calls == 1 {
				return &pgconn.PgError{Severity: "ERROR", Code: c.code}
			}
			return nil
		}); err != nil || calls != 2 {
			t.Errorf("a read that fails once with %s: %d calls, %v", c.code, calls, err)
		}
		for _, conn := range conns() {
			if slices.Contains(before, conn) != c.kept {
				t.Errorf("after %s the pool hands out the connection %p; before %p", c.code, conn, before)
			}
		}
	}
}

// A server may answer no more while a node opens it, as when its machine loses power. Then the node must look for the
// primary again.
func TestOpenEndsWhenTheServerAnswersNoMore(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newShop(t, Options{})
	tx, err := s.db.Pool.Begin(t.Context())
	testenv.Check(t, err)
	defer conn.Rollback(tx)
	exec(t, tx, "LOCK TABLE goose_db_version")
	ctx, cancel := context.WithTimeout(t.Context(), 4*conn.AnswerTimeout)
	defer cancel()
	e, err := Open(ctx, s.url, Options{Log: quiet})
	if err == nil {
		err = e.Close()
	}
	if store.KindOf(err) != store.KindUnavailable || ctx.Err() != nil {
		t.Errorf("%v, want KindUnavailable", err)
	}
}
