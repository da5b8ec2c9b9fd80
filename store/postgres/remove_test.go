package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/remove"
	"mtagd/store/testenv"
)

// shop is an engine with one merchant, whose visitors have a muid and an email.
type shop struct {
	*engine
	t        *testing.T
	url      string
	patience time.Duration // of its nodes
	partner  store.PartnerID
	id       store.MerchantID
	tag      store.TagID
}

// newShop makes a shop in the server of all tests. No test stops that, so its nodes refuse nothing when a busy machine lets it
// answer late.
func newShop(t *testing.T, opt Options) *shop {
	t.Helper()
	opt.Patience = time.Minute
	return newShopOn(t, pgtest.Database(t), opt)
}

func newShopOn(t *testing.T, url string, opt Options) *shop {
	t.Helper()
	opt.Log = quiet
	s := &shop{t: t, url: url, patience: opt.Patience}
	e := s.opened(openSoon(s.url, opt))
	s.engine = e
	p, err := e.AddPartner(t.Context(), "Acme")
	testenv.Check(t, err)
	m, err := e.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
	testenv.Check(t, err)
	tag, _, err := e.GenerateTag(t.Context(), m.ID, store.ClientSide, "")
	testenv.Check(t, err)
	s.partner, s.id, s.tag = p.ID, m.ID, tag.ID
	return s
}

func emailOf(n int) string { return fmt.Sprintf("visitor%d@example.com", n) }

// visit returns an event of a visitor. Some have no muid: it is found by the email.
func (s *shop) visit(visitor, i int) store.Mark {
	id := store.Identity{Source: store.BySecret, MUID: store.MUID(fmt.Sprintf("muid-%d", visitor))}
	id.Add(store.Email, emailOf(visitor))
	if i%3 == 2 {
		id.MUID = ""
	}
	return store.Mark{Merchant: s.id, Tag: s.tag, Identity: id, Name: "Visit", Time: time.Now().Add(-time.Duration(i)*time.Hour - 30*time.Minute),
		DedupeID: fmt.Sprintf("%d-%d", visitor, i),
		Raw:      fmt.Appendf(nil, `{"event_id":"%d-%d","email":%q}`, visitor, i, emailOf(visitor))}
}

func (s *shop) record(marks ...store.Mark) []store.Outcome {
	s.t.Helper()
	testenv.Check(s.t, s.Record(s.t.Context(), marks))
	var outcomes []store.Outcome
	for _, m := range marks {
		outcomes = append(outcomes, m.Outcome)
	}
	return outcomes
}

// expect expects how many events are listed, and that the counters agree.
func (s *shop) expect(want int) {
	s.t.Helper()
	page, err := s.Events(s.t.Context(), store.Query{Merchant: s.id, SortBy: store.ByTime, Limit: 1000})
	if err != nil || page.Total != want || len(page.Events) != want {
		s.t.Errorf("%d events of %d, %v; want %d", len(page.Events), page.Total, err, want)
	}
	s.expectConsistent()
}

func (s *shop) expectConsistent() {
	s.t.Helper()
	if _, err := s.Verify(s.t.Context(), store.Verification{
		Found: func(f store.Finding) { s.t.Errorf("verify: %+v", f) },
		Read:  func(store.Part, uint64, uint64) {},
	}); err != nil {
		s.t.Error(err)
	}
}

// rows returns how many rows of a merchant a table has.
func (s *shop) rows(table string, id store.MerchantID) (n int) {
	s.t.Helper()
	testenv.Check(s.t, s.db.Pool.QueryRow(s.t.Context(), "SELECT count(*) FROM "+table+" WHERE merchant = $1", string(id)).Scan(&n))
	return n
}

// finished waits until an erasure is done, and returns its receipt.
func (s *shop) finished(id store.ErasureID) (era store.Erasure) {
	s.t.Helper()
	await(s.t, "the erasure is not done", func() bool {
		var err error
		era, err = s.Erasure(s.t.Context(), id)
		testenv.Check(s.t, err)
		return era.State == store.ErasureDone
	})
	return era
}

// exec runs a statement on a connection, on one of a pool, or in a transaction.
func exec(t *testing.T, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	_, err := on.Exec(t.Context(), sql, args...)
	testenv.Check(t, err)
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: %s", what)
		}
	}
}

func byEmail(visitor int) (id store.Identity) {
	id.Add(store.Email, emailOf(visitor))
	return id
}

func TestErasure(t *testing.T) {
	s := newShop(t, Options{})
	for visitor := range 3 {
		for i := range 7 {
			if got := s.record(s.visit(visitor, i)); got[0] != store.Recorded {
				t.Fatalf("event %d of visitor %d: outcome %d", i, visitor, got[0])
			}
		}
	}
	// An event of somebody else's muid that has the email in its body belongs to the person too.
	other := s.visit(2, 90)
	other.Raw = fmt.Appendf(nil, `{"event_id":"2-90","email":%q}`, "VISITOR1@example.com ")
	s.record(other)

	held := 0
	if _, err := s.PersonalData(t.Context(), s.id, byEmail(1), false, func(r *store.PersonalRecord) error {
		held++
		return nil
	}); err != nil || held != 1+7+1 {
		t.Errorf("%d records are held, %v; want one link and 8 events", held, err)
	}
	era, err := s.Erase(t.Context(), s.id, byEmail(1), store.ErasureOptions{Suppress: true})
	testenv.Check(t, err)
	era = s.finished(era.ID)
	if era.Events != 8 || era.Links != 1 || era.FinishedAt.IsZero() || era.Partner != s.partner {
		t.Errorf("the receipt is %+v, want 8 events and 1 link", era)
	}
	s.expect(14)
	if n := s.rows("dedup", s.id); n != 14 {
		t.Errorf("%d event_ids are remembered, want 14", n)
	}
	if _, err := s.PersonalData(t.Context(), s.id, store.Identity{MUID: "muid-1"}, false, func(r *store.PersonalRecord) error {
		return fmt.Errorf("%+v is still held", r)
	}); err != nil {
		t.Error(err)
	}
	byMUID := s.visit(1, 100)
	byMUID.Identity = store.Identity{MUID: "muid-1"}
	if got := s.record(s.visit(1, 99), byMUID, s.visit(0, 99)); got[0] != store.Suppressed || got[1] != store.Suppressed || got[2] == store.Suppressed {
		t.Errorf("later outcomes %v: want those of the person suppressed", got)
	}
	if page, total, err := s.Erasures(t.Context(), s.id, 0, 10); err != nil || total != 1 || page[0].ID != era.ID {
		t.Errorf("the erasures are %+v of %d, %v", page, total, err)
	}
	_, err = s.Erase(t.Context(), store.NewMerchantID(), byEmail(1), store.ErasureOptions{})
	if store.KindOf(err) != store.KindNotFound {
		t.Errorf("an erasure at an unknown merchant: %v", err)
	}
	if _, err = s.Erase(t.Context(), s.id, store.Identity{}, store.ErasureOptions{}); store.KindOf(err) != store.KindInvalid {
		t.Errorf("an erasure of nobody: %v", err)
	}
}

// The recipe of deploy/cluster.md: a database that was restored to a point before an erasure gets it again.
func TestErasuresAreRepeatedAfterARestore(t *testing.T) {
	psql, url, dir := testenv.Program(t, "psql"), pgtest.Database(t), t.TempDir()
	run := func(arguments string) {
		cmd := osexec.Command("sh", "-c", psql+` "$URL" -v ON_ERROR_STOP=1 `+arguments)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "URL="+url)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	forTables := func(sql string) { // those with data
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "tables.sql"), []byte(`DO $$ DECLARE t text; BEGIN FOR t IN SELECT relname FROM pg_class c
			WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose%'
			AND NOT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND c.oid IN (conrelid, confrelid)) LOOP `+sql+`; END LOOP; END $$`), 0o600))
		run("-f tables.sql")
	}
	var s *shop
	t.Run("erase", func(t *testing.T) {
		s = newShopOn(t, url, Options{Patience: time.Minute})
		s.record(s.visit(0, 0), s.visit(1, 0))
		run(`-c "CREATE SCHEMA saved"`)
		forTables("EXECUTE format('CREATE TABLE saved.%1$I AS TABLE public.%1$I', t)")
		era, err := s.Erase(t.Context(), s.id, byEmail(1), store.ErasureOptions{Suppress: true})
		testenv.Check(t, err)
		s.finished(era.ID)
		s.expect(1)
	})

	guide, err := os.ReadFile("../../deploy/cluster.md")
	testenv.Check(t, err)
	run(string(regexp.MustCompile(`(?m)^psql mtagd (-c .*)$`).FindSubmatch(guide)[1]))
	forTables("EXECUTE format('TRUNCATE public.%1$I; INSERT INTO public.%1$I TABLE saved.%1$I', t)")
	run(`-c "DROP SCHEMA saved CASCADE"`)
	script, err := filepath.Abs("../../deploy/erasures.sql")
	testenv.Check(t, err)
	run("--single-transaction -f " + script)

	s.t = t
	s.engine = s.opened(openSoon(url, Options{Log: quiet, Patience: time.Minute}))
	await(t, "the erasure is not repeated", func() bool {
		page, err := s.Events(t.Context(), store.Query{Merchant: s.id, SortBy: store.ByTime, Limit: 10})
		return err == nil && page.Total == 1
	})
	s.expect(1)
	if got := s.record(s.visit(1, 1)); got[0] != store.Suppressed {
		t.Errorf("a later event of the person: outcome %d", got[0])
	}
}

// A flush that has asked who is refused before the erasure was requested may be committed later.
func TestAnErasureWaitsForFlushesUnderWay(t *testing.T) {
	s := newShop(t, Options{FlushTimeout: time.Minute})
	s.record(s.visit(1, 0))
	for _, sql := range []string{"CREATE TABLE gate ()",
		`CREATE FUNCTION await_gate() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN WHILE NOT EXISTS (SELECT FROM gate) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END'`,
		"CREATE TRIGGER await_gate AFTER INSERT ON event EXECUTE FUNCTION await_gate()"} {
		exec(t, s.db.Pool, sql)
	}
	t.Cleanup(func() { // other tests use the database too
		if _, err := s.db.Pool.Exec(context.Background(), "INSERT INTO gate DEFAULT VALUES"); err != nil {
			t.Error(err)
		}
		if _, err := s.db.Pool.Exec(context.Background(), "DROP FUNCTION await_gate CASCADE"); err != nil {
			t.Error(err)
		}
		if _, err := s.db.Pool.Exec(context.Background(), "DROP TABLE gate"); err != nil {
			t.Error(err)
		}
	})
	holds := func(sql string, args ...any) (yes bool) {
		testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+sql+")", args...).Scan(&yes))
		return yes
	}
	late := s.visit(1, 1)
	late.Identity.Add(store.Phone, "4915112345678")
	var recording sync.WaitGroup
	recording.Go(func() { s.record(late) })
	await(t, "no flush is under way", func() bool {
		return holds("pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
	})
	era, err := s.Erase(t.Context(), s.id, store.Identity{MUID: "muid-1"}, store.ErasureOptions{Suppress: true})
	testenv.Check(t, err)
	isDone := func() bool {
		if era, err = s.Erasure(t.Context(), era.ID); err != nil {
			t.Fatal(err)
		}
		return era.State == store.ErasureDone
	}
	await(t, "the erasure does not wait", func() bool {
		return isDone() || holds("pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted", conn.LockRefusals)
	})
	exec(t, s.db.Pool, "INSERT INTO gate DEFAULT VALUES")
	recording.Wait()
	await(t, "the erasure is not done", isDone)
	if era.Events != 2 || era.Links != 2 {
		t.Errorf("the receipt is %+v, want 2 events and 2 links", era)
	}
	for _, table := range []string{"event", "link", "held_link"} {
		if n := s.rows(table, s.id); n != 0 {
			t.Errorf("%d rows of the person are left in %s", n, table)
		}
	}
}

// The receipt of an erasure whose rows VACUUM cannot remove says so.
func TestAPurgeThatFailsIsNoted(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newShopOn(t, pgtest.Database(t)+"&lock_timeout=50", Options{})
	s.record(s.visit(1, 0))
	tx, err := s.db.Pool.Begin(t.Context())
	testenv.Check(t, err)
	defer conn.Rollback(tx)
	exec(t, tx, "LOCK TABLE dedup IN SHARE UPDATE EXCLUSIVE MODE")
	era, err := s.Erase(t.Context(), s.id, byEmail(1), store.ErasureOptions{})
	testenv.Check(t, err)
	look := func() store.Erasure {
		if era, err = s.Erasure(t.Context(), era.ID); err != nil {
			t.Fatal(err)
		}
		return era
	}
	await(t, "the failure is not noted", func() bool { return look().Attempts > 0 })
	if era.State != store.ErasurePurging || era.LastError == "" {
		t.Errorf("the receipt is %+v", era)
	}
	conn.Rollback(tx)
	await(t, "the erasure is not done", func() bool {
		s.Wake()
		return look().State == store.ErasureDone
	})
	if era.LastError != "" || era.Events != 1 {
		t.Errorf("the receipt is %+v", era)
	}
}

func TestRetention(t *testing.T) {
	s := newShop(t, Options{})
	for i := range 100 {
		s.record(s.visit(0, i)) // one each hour, half an hour from any limit
	}
	if _, err := s.UpdateMerchant(t.Context(), s.id, func(m store.Merchant) store.Merchant { m.Retention = 2; return m }); err != nil {
		t.Fatal(err)
	}
	s.expect(48) // from this moment on
	var fed int
	if _, err := s.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{s.id}}, func(*store.Received) bool { fed++; return true }); err != nil || fed != 48 {
		t.Errorf("the feed has %d events, %v; want 48", fed, err)
	}
	testenv.Check(t, s.Expire(t.Context()))
	if n := s.rows("event", s.id); n != 48 {
		t.Errorf("%d events are stored, want 48", n)
	}
	s.expect(48)
}

// Whoever makes a retention longer saves what a removal has not reached yet.
func TestALongerRetentionEndsARemoval(t *testing.T) {
	s := newShop(t, Options{})
	s.keepAll()
	keepFor := func(r store.Retention) {
		_, err := s.UpdateMerchant(t.Context(), s.id, func(m store.Merchant) store.Merchant { m.Retention = r; return m })
		testenv.Check(t, err)
	}
	const first, rest = 5000, 100
	var marks []store.Mark
	for i := range first + rest {
		marks = append(marks, s.visit(0, 72+i))
	}
	s.record(marks...)
	s.rollUp(s.key())
	keepFor(2)
	tx, err := s.db.Pool.Begin(t.Context())
	testenv.Check(t, err)
	defer conn.Rollback(tx)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", conn.LockRollup)
	testenv.Check(t, err)
	expired := make(chan error, 1)
	go func() { expired <- s.Expire(context.Background()) }()
	await(t, "the removal has not begun", func() (waits bool) {
		testenv.Check(t, tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted)", conn.LockRollup).Scan(&waits))
		return waits
	})
	keepFor(store.Forever)
	conn.Rollback(tx)
	testenv.Check(t, <-expired)
	if n := s.rows("event", s.id); n != rest {
		t.Errorf("%d events are stored, want %d", n, rest)
	}
}

// keepAll keeps the engine from removing events in the background until the end of the test.
func (s *shop) keepAll() { s.t.Cleanup(s.holdRemovals().Release) }

// holdRemovals waits for the lock of removals, and keeps it.
func (s *shop) holdRemovals() *conn.Guard {
	s.t.Helper()
	h, err := s.db.Guard(s.t.Context(), remove.ErrLost, func(tx pgx.Tx) error {
		_, err := tx.Exec(s.t.Context(), "SELECT pg_advisory_xact_lock($1)", conn.LockRemoval)
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
	return h
}

func TestTheDefaultRetention(t *testing.T) {
	s := newShop(t, Options{Retention: 1})
	s.keepAll()
	for i := range 30 {
		s.record(s.visit(0, i))
	}
	s.expect(24)
	if _, err := s.UpdateMerchant(t.Context(), s.id, func(m store.Merchant) store.Merchant { m.Retention = store.Forever; return m }); err != nil {
		t.Fatal(err)
	}
	s.expect(30)
}

func TestADeletedMerchantLeavesNothing(t *testing.T) {
	s := newShop(t, Options{eager: true})
	s.record(s.visit(0, 0), s.visit(1, 0))
	if _, err := s.DeleteMerchant(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"event", "counter", "link", "dedup", "usage", "removal"} {
		await(t, table+" has rows of the merchant", func() bool { return s.rows(table, s.id) == 0 })
	}
}

// An event that was on its way when its merchant was deleted is refused.
func TestEventsOfADeletedMerchantAreRefused(t *testing.T) {
	s := newShop(t, Options{})
	if _, err := s.DeleteMerchant(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	unknown := s.visit(0, 1)
	unknown.Identity.MUID = ""
	for i, got := range s.record(s.visit(0, 0), unknown) {
		if got != store.Removed {
			t.Errorf("the outcome of event %d is %d, want %d", i, got, store.Removed)
		}
	}
}

func TestWhatIsTooOldIsForgotten(t *testing.T) {
	var ahead atomic.Int64 // of the clock; the engine asks for the time in the background, too
	s := newShop(t, Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	s.record(s.visit(0, 0))
	ahead.Store(int64(store.DedupeWindow + 2*time.Hour))
	s.record(s.visit(0, 1))
	testenv.Check(t, s.ForgetOld(context.Background()))
	if n := s.rows("dedup", s.id); n != 1 {
		t.Errorf("%d event_ids are remembered, want 1", n)
	}
	var flushes int
	if err := s.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM flush").Scan(&flushes); err != nil || flushes != 1 {
		t.Errorf("%d flushes, %v; want 1", flushes, err)
	}
	s.expect(2)
}

// A node that is kept from removing events must not believe that it has done what there is to do.
func TestNothingIsRemovedBesideOthers(t *testing.T) {
	s := newShop(t, Options{})
	s.record(s.visit(0, 0))
	s.keepAll()
	if _, err := s.Erase(t.Context(), s.id, byEmail(0), store.ErasureOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.RunOnce(t.Context()); !errors.Is(err, remove.ErrBusy) {
		t.Errorf("%v, want errBusy", err)
	}
	s.expect(1)
}

// A node that has lost the lock of removals ends at once what it is at. So no event goes while another has that lock.
func TestAnErasureEndsWithItsLock(t *testing.T) {
	s := newShop(t, Options{})
	s.record(s.visit(0, 0), s.visit(1, 0))
	db := s.forCopy().db.Pool
	reader, err := db.Begin(t.Context())
	testenv.Check(t, err)
	defer conn.Rollback(reader)
	if _, err := reader.Exec(t.Context(), "SELECT FROM event FOR UPDATE"); err != nil { // removals wait
		t.Fatal(err)
	}
	count := func(from string) (n int) {
		t.Helper()
		testenv.Check(t, db.QueryRow(t.Context(), "SELECT count(*) FROM "+from).Scan(&n))
		return n
	}
	removing := func() bool {
		return count("pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE FROM event %'") > 0
	}
	era, err := s.Erase(t.Context(), s.id, byEmail(1), store.ErasureOptions{})
	testenv.Check(t, err)
	await(t, "nothing is removed", func() bool {
		s.Wake() // the other node may have been at it before
		return removing()
	})

	ofRemovals := fmt.Sprintf("FROM pg_locks WHERE locktype = 'advisory' AND objid = %d", conn.LockRemoval)
	other := make(chan *conn.Guard, 1)
	go func() { other <- s.holdRemovals() }()
	await(t, "the other does not wait for the lock", func() bool { return count("(SELECT "+ofRemovals+" AND NOT granted) AS x") == 1 })
	exec(t, db, "SELECT pg_terminate_backend(pid) "+ofRemovals+" AND granted")
	h := <-other
	await(t, "the node goes on without the lock", func() bool { return !removing() })
	conn.Rollback(reader)
	if n := count("event"); n != 2 {
		t.Errorf("%d events are left while another has the lock, want 2", n)
	}
	h.Release()
	s.Wake()
	await(t, "the erasure is not done", func() bool {
		era, err = s.Erasure(t.Context(), era.ID)
		return err == nil && era.State == store.ErasureDone
	})
	s.expect(1)
}
