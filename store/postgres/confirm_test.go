package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// When an operator cancels a commit's wait for the standbys, the event is visible. But it is not acknowledged, and no feed
// has it, before a standby has it.
func TestACanceledWaitForTheStandbysAcknowledgesNothing(t *testing.T) {
	primary, standby := startWithStandby(t)
	s := newShopOn(t, primary.URL("postgres"), Options{FlushTimeout: time.Minute})
	testenv.Check(t, standby.Kill())
	recorded := make(chan error, 1)
	go func() { recorded <- s.Record(context.Background(), []store.Mark{s.visit(0, 0)}) }()
	operator, err := pgx.Connect(t.Context(), s.url) // the node ends its own connections when it finds that nothing is replicated
	testenv.Check(t, err)
	defer func() { _ = operator.Close(context.Background()) }() // its server may be gone
	listed := 0
	await(t, "the event is not visible", func() bool {
		exec(t, operator, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		testenv.Check(t, operator.QueryRow(t.Context(), "SELECT count(*) FROM event").Scan(&listed))
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
		if err == nil || errors.Is(err, conn.ErrNoAnswer) {
			t.Errorf("the event is acknowledged, or said not to be there: %v", err)
		}
		recorded <- nil
	default:
	}
	testenv.Check(t, standby.Start())
	if err := <-recorded; err != nil {
		t.Error(err)
	}
	await(t, "the feed has no event", func() bool {
		n, err := feed(t.Context())
		return err == nil && n == 1
	})
}

// An event that no standby has is visible, but nobody may rely on it. It is not acknowledged, no feed and no watch passes
// it, and Resolve does not return its muid. When a standby without it becomes the primary, it is lost, and its sender gets
// an error.
func TestAnEventThatNoStandbyHas(t *testing.T) {
	primary, standby := startWithStandby(t)
	s := newShopOn(t, fmt.Sprintf("postgres:///postgres?host=%s,%s&user=mtagd", primary.Dir(), standby.Dir()), Options{FlushTimeout: time.Minute})
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
	testenv.Check(t, standby.Kill())
	recorded := make(chan error, 1)
	go func() { recorded <- s.Record(context.Background(), []store.Mark{mark(1, "m1")}) }()
	direct, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	testenv.Check(t, err)
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
		t.Errorf("Resolve returns the muid %s", muid)
	}
	select {
	case <-news:
		t.Error("the watch passes the event")
	case err := <-recorded:
		t.Fatalf("the sender gets %v", err)
	default:
	}
	testenv.Check(t, primary.Kill())
	testenv.Check(t, errors.Join(standby.Start(), standby.Promote()))
	if err := <-recorded; store.KindOf(err) != store.KindUnavailable && store.KindOf(err) != store.KindUncertain {
		t.Errorf("the sender gets %v, want KindUnavailable or KindUncertain", err)
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

// A change that no standby has is visible, because its wait for one was canceled. No node starts with it: if it is lost, its
// number is that of another change, which the node would take for the one that it has.
func TestANodeDoesNotStartWithAChangeThatNoStandbyHas(t *testing.T) {
	t.Parallel() // it mostly waits
	primary, standby := startWithStandby(t)
	s := newShopOn(t, fmt.Sprintf("postgres:///postgres?host=%s,%s&user=mtagd", primary.Dir(), standby.Dir()), Options{})
	key, text, err := s.IssueKey(t.Context(), s.partner, store.KeyOptions{})
	testenv.Check(t, err)
	testenv.Check(t, standby.Kill())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lost := make(chan error, 1)
	go func() {
		_, err := s.AddPartner(ctx, "Agency")
		lost <- err
	}()
	operator, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	testenv.Check(t, err)
	defer func() { _ = operator.Close(context.Background()) }() // its server is killed
	await(t, "the change is not visible", func() bool {
		var partners int
		exec(t, operator, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		testenv.Check(t, operator.QueryRow(t.Context(), "SELECT count(*) FROM record WHERE kind = 'partners'").Scan(&partners))
		return partners == 2
	})
	if err := <-lost; err == nil {
		t.Error("the change is acknowledged")
	}
	if partners, err := s.Partners(t.Context()); err != nil || len(partners) != 1 {
		t.Errorf("a node answers with %+v, %v", partners, err)
	}
	other, err := openURL(s.url, Options{Log: quiet})
	if err == nil || !strings.Contains(err.Error(), "may not be on the standbys") {
		t.Errorf("a node starts with the change: %v", err)
	}
	testenv.Check(t, errors.Join(primary.Kill(), standby.Start(), standby.Promote()))
	if other == nil {
		other, err = openURL(s.url, Options{Log: quiet})
	}
	s.opened(other, err)
	await(t, "the key is not revoked", func() bool {
		_, err := s.RevokeKey(t.Context(), key.ID, true)
		return err == nil
	})
	await(t, "the other node accepts the revoked key", func() bool {
		_, _, ok := other.Directory().Authenticate(text, time.Now())
		return !ok
	})
}

// A primary that was replaced still has what was changed back after the fail-over. It may not say that a domain is taken, nor
// that a retention is set already: without its standbys, it does not know.
func TestAPrimaryWithoutStandbysRefusesNoChange(t *testing.T) {
	primary, standby := startWithStandby(t)
	s := newShopOn(t, primary.URL("postgres"), Options{})
	_, _, err := s.GenerateTag(t.Context(), s.id, store.ServerSide, "shoes.com")
	testenv.Check(t, err)
	other, err := s.AddMerchant(t.Context(), s.partner, store.NewMerchant{Name: "Other"})
	testenv.Check(t, err)
	claim := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, _, err := s.GenerateTag(ctx, other.ID, store.ServerSide, "shoes.com")
		return err
	}
	keep := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return s.SetDefaultRetention(ctx, 30)
	}
	if err := claim(time.Minute); store.KindOf(err) != store.KindConflict {
		t.Fatalf("the domain is taken, but the claim has the error %v", err)
	}
	testenv.Check(t, errors.Join(keep(time.Minute), keep(time.Minute)))
	testenv.Check(t, standby.Kill())
	if err := claim(200 * time.Millisecond); err == nil || store.KindOf(err) == store.KindConflict {
		t.Errorf("no standby confirms that the domain is taken, but the claim has the error %v", err)
	}
	if err := keep(200 * time.Millisecond); err == nil {
		t.Error("no standby confirms that the retention is set")
	}
	testenv.Check(t, standby.Start())
	await(t, "the domain is not taken again", func() bool { return store.KindOf(claim(time.Minute)) == store.KindConflict })
	testenv.Check(t, keep(time.Minute))
}

// When a process of the server is killed, the server ends all connections and recovers, but keeps its start time. What was
// visible before may be lost.
func TestWhatACrashMayHaveLostIsNotConfirmed(t *testing.T) {
	server := pgtest.NewServer(t)
	s := newShopOn(t, server.URL("postgres"), Options{})
	var before conn.Snapshot
	testenv.Check(t, before.ReadFrom(s.db.Pool.QueryRow(t.Context(), conn.ReadSnapshot)))
	var killed [2]*pgx.Conn
	for i := range killed {
		c, err := pgx.Connect(t.Context(), s.url)
		testenv.Check(t, err)
		defer func() { _ = c.Close(context.Background()) }() // the server has ended it
		killed[i] = c
	}
	victim, witness := killed[0], killed[1]
	testenv.Check(t, syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL))
	await(t, "the server has not noticed", func() bool { return witness.Ping(t.Context()) != nil })
	await(t, "what was visible before the crash is confirmed", func() bool {
		// Until the server has ended this connection too, it confirms.
		return errors.Is(s.db.ConfirmNow(t.Context(), before), conn.ErrReplaced)
	})
	await(t, "the node does not go on", func() bool { return s.Record(t.Context(), []store.Mark{s.visit(0, 0)}) == nil })
}

// The operator may change synchronous_commit while nodes run. What they acknowledge waits for the standbys all the same.
func TestCommitsWaitWhateverTheSettingIs(t *testing.T) {
	t.Parallel() // it mostly waits
	primary, standby := startWithStandby(t)
	s := newShopOn(t, primary.URL("postgres"), Options{FlushTimeout: time.Second})
	operator, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	testenv.Check(t, err)
	defer func() { _ = operator.Close(context.Background()) }() // its server may be gone
	for _, level := range []string{"off", "local"} {
		exec(t, operator, "ALTER DATABASE postgres SET synchronous_commit = "+level)
		s.db.Pool.Reset()
		await(t, "the node's connections have another setting", func() bool {
			var now string
			err := s.db.Pool.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&now)
			return err == nil && now == level // the node ends all connections while it finds that nothing is replicated
		})
		await(t, "nothing is acknowledged", func() bool { return s.Record(t.Context(), []store.Mark{s.visit(0, 0)}) == nil })
		testenv.Check(t, standby.Kill())
		if err := s.Record(t.Context(), []store.Mark{s.visit(0, 1)}); err == nil {
			t.Errorf("%s: an event is acknowledged that no standby has", level)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := s.db.ConfirmAll(ctx); err == nil {
			t.Errorf("%s: a commit is confirmed that no standby has", level)
		}
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		await(t, "a transaction without rows waits for a standby", func() bool {
			return s.db.Transact(ctx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "DELETE FROM message WHERE false"); return err }) == nil
		})
		cancel()
		ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := s.db.Transact(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO setting (name, value) VALUES ($1, 1)", level)
			return err
		}); err == nil {
			t.Errorf("%s: a transaction is committed that no standby has", level)
		}
		cancel()
		testenv.Check(t, standby.Start())
	}
}

// Many clients poll the end of the feed. That costs no commits.
func TestLatestMakesNoCommitOfItsOwn(t *testing.T) {
	s := newShop(t, Options{})
	var commits atomic.Int64
	e := s.openWatched(&watcher{query: func(_ *pgx.Conn, sql string) {
		if sql == conn.CommitNothing {
			commits.Add(1)
		}
	}})
	s.record(s.visit(0, 0))
	if _, err := e.Latest(t.Context()); err != nil {
		t.Fatal(err)
	}
	go e.db.Stop() // so that the node does not follow, which makes commits
	await(t, "the node follows", func() bool {
		before := commits.Load()
		time.Sleep(2 * control.FollowInterval)
		return commits.Load() == before
	})
	e.db.AnsweredTo(time.Now().Add(time.Hour)) // or Latest would soon refuse, as the node asks the database for nothing more
	before := commits.Load()
	for range 10 {
		if _, err := e.Latest(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := commits.Load() - before; n > 0 {
		t.Errorf("%d commits", n)
	}
	s.record(s.visit(0, 1))
	testenv.Check(t, (control.Driver{Control: s.Control}).Update(t.Context(), func(rules.Turn) (rules.Change, error) { return rules.Change{}, nil }))
	for range 10 {
		if _, err := e.Latest(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := commits.Load() - before; n != 1 {
		t.Errorf("%d commits for what is new, want 1", n)
	}
}

// idle returns a pool's idle connections.
func idle(t *testing.T, pool *pgxpool.Pool) map[*pgx.Conn]bool {
	all := map[*pgx.Conn]bool{}
	for _, c := range pool.AcquireAllIdle(t.Context()) {
		all[c.Conn()] = true
		c.Release()
	}
	return all
}

// When a caller goes away, the connections of others stay open.
func TestACallerWhoGoesAwayLeavesTheConnections(t *testing.T) {
	db, err := OpenDatabase(t.Context(), pgtest.Database(t), quiet) // nothing else uses its connections
	testenv.Check(t, err)
	defer db.Close()
	s := db.db
	if _, err := s.ConfirmAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := idle(t, s.Pool)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	new := conn.Snapshot{Change: 1}
	for name, confirm := range map[string]func() error{
		"while it waits for others":   func() error { return s.Confirm(gone, new) },
		"while it waits for a commit": func() error { return s.ConfirmNow(gone, new) },
	} {
		if err := confirm(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if after := idle(t, s.Pool); len(before) == 0 || !maps.Equal(after, before) {
			t.Errorf("%s: the connections were %v, and are %v", name, before, after)
		}
	}
	if err := s.ConfirmNow(t.Context(), new); !errors.Is(err, conn.ErrReplaced) {
		t.Errorf("what another server had: %v", err)
	}
	for c := range idle(t, s.Pool) {
		if before[c] {
			t.Error("a connection to a server that was replaced is used again")
		}
	}
}
