package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
	"mtagd/store/postgres/read"
	"mtagd/store/postgres/schema"
	"mtagd/store/postgres/write"
	"mtagd/store/testenv"
)

// key returns the shop's merchant as the database has it.
func (s *shop) key() uuid.UUID {
	key, _ := conn.KeyOf(s.id)
	return key
}

// rolled up folds everything that the tally has of merchants.
func (s *shop) rollUp(merchants ...uuid.UUID) {
	s.t.Helper()
	testenv.Check(s.t, s.counts.RollUp(s.t.Context(), merchants))
}

// Two nodes record and fold, in portions that split flushes, while events are removed. All counts are exact meanwhile:
// totals, summaries, usage and every counter.
func TestCountsAreExactDuringRollups(t *testing.T) {
	patient := Options{Log: quiet, FlushTimeout: time.Minute} // under load a flush may take long, and every mark counts here
	s := newShop(t, patient)
	nodes := []*engine{s.engine, s.opened(openURL(s.url, patient))}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	again := func(do func(i int) error) {
		busy.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var recorded atomic.Int64
	for n, e := range nodes {
		again(func(i int) error {
			var marks []store.Mark
			for j := range 5 {
				m := s.mark(fmt.Sprintf("Name%d", (i+j)%7), "anna")
				m.Time = m.Time.Add(-time.Duration(i%200) * 17 * time.Minute)
				m.Bot = j == 0
				marks = append(marks, m)
			}
			recorded.Add(5)
			return e.Record(context.Background(), marks)
		})
		again(func(i int) error {
			_, err := e.counts.RollUpSome(context.Background(), []uuid.UUID{s.key()}, math.MaxInt64, []int{3, 20, 1000}[(i+n)%3], false)
			return err
		})
	}
	again(func(int) error { // removes the oldest events
		old, err := conn.CollectRows(context.Background(), s.db.Pool, func(r *store.Position) []any { return []any{&r.Seq, &r.Index} },
			"SELECT seq, idx FROM event WHERE merchant = $1 ORDER BY at LIMIT 4", s.key())
		if err != nil {
			return err
		}
		recorded.Add(-int64(len(old)))
		return s.RemoveEvents(context.Background(), s.key(), old)
	})
	look := func() {
		from := time.Now().Add(-20 * time.Hour)
		for _, q := range []store.Query{{}, {From: &from}, {SortBy: store.ByName}, {Names: []string{"Name1", "Name4"}, SortBy: store.ByName, From: &from},
			{Bot: new(true), Names: []string{"Name2"}}, {Tag: s.tag, Asc: true}} {
			q.Merchant, q.Limit = s.id, 100_000
			page, err := nodes[1].Events(t.Context(), q)
			if err != nil || page.Total != len(page.Events) {
				t.Fatalf("%+v: %d events of %d, %v", q, len(page.Events), page.Total, err)
			}
			// Pages at the end use the counters of many buckets.
			q.Offset, q.Limit = page.Total*2/3, 100_000
			page, err = nodes[0].Events(t.Context(), q)
			if err != nil || page.Total > q.Offset && page.Total-q.Offset != len(page.Events) {
				t.Fatalf("%+v: %d events of %d, %v", q, len(page.Events), page.Total, err)
			}
		}
		for _, by := range []store.SummaryGroup{store.Ungrouped, store.GroupByName, store.GroupByTag} {
			sum, err := s.Summary(t.Context(), store.SummaryQuery{Merchants: []store.MerchantID{s.id}, By: by, From: &from, Bucket: store.Hourly})
			if err != nil || sum.Other.Total != 0 {
				t.Fatalf("grouped by %v: %+v, %v", by, sum, err)
			}
		}
		s.expectConsistent()
	}
	for range 4 {
		look()
	}
	close(stop)
	busy.Wait()
	look()
	s.rollUp(s.key())
	look()
	if n := s.rows("tally", s.id); n != 0 {
		t.Errorf("%d rows of the tally are left", n)
	}
	if usage, err := s.Usage(t.Context(), []store.MerchantID{s.id}); err != nil || usage[0].Events != uint64(recorded.Load()) {
		t.Errorf("usage %+v of %d events, %v", usage, recorded.Load(), err)
	}
}

// Removed events leave no counters behind, whether they had been rolled up or not.
func TestRemovedEventsLeaveNoCounters(t *testing.T) {
	s := newShop(t, Options{})
	s.record(s.mark("Early", "anna"))
	s.rollUp(s.key())
	s.record(s.mark("Late", "anna"), s.mark("Other", "bert"))
	all, err := conn.CollectRows(t.Context(), s.db.Pool, func(r *store.Position) []any { return []any{&r.Seq, &r.Index} },
		"SELECT seq, idx FROM event WHERE merchant = $1 AND muid = 'anna'", s.key())
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if err := s.RemoveEvents(t.Context(), s.key(), append(all, all...)); err != nil { // each is subtracted once
		t.Fatal(err)
	}
	s.expect(1)
	if usage, err := s.Usage(t.Context(), []store.MerchantID{s.id}); err != nil || usage[0].Events != 1 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	s.rollUp(s.key())
	s.expect(1)
	if n := s.rows("counter", s.id); n != 8 {
		t.Errorf("%d counters are left, want 8: 4 levels, by name and of all names", n)
	}
}

// The tally of a node that has died is rolled up by another one.
func TestAnotherNodeRollsUpDeltas(t *testing.T) {
	now := atomic.Int64{}
	now.Store(time.Now().UnixMicro())
	clock := func() time.Time { return read.TimeAt(now.Load()) }
	s := newShop(t, Options{Now: clock, keepDeltas: true}) // as after a kill
	s.record(s.mark("PageView", "anna"))
	other := s.opened(openURL(s.url, Options{Log: quiet, Now: clock}))
	now.Add(time.Hour.Microseconds())
	testenv.Check(t, other.counts.RollUpLeft(t.Context()))
	if n := s.rows("tally", s.id); n != 0 {
		t.Errorf("%d rows of the tally are left", n)
	}
	s.expect(1)
}

// Dead rows stay in the tally while a backup reads the database. Readers begin after usage.folded, and so skip them.
func TestARollupNotesHowFarItIs(t *testing.T) {
	s := newShop(t, Options{keepDeltas: true})
	s.record(s.mark("PageView", "anna"))
	s.record(s.mark("PageView", "anna"), s.mark("Purchase", "anna"))
	folded := func() (seq, last int64) {
		testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT coalesce((SELECT folded FROM usage WHERE merchant = $1), 0), (SELECT max(seq) FROM flush)", s.key()).Scan(&seq, &last))
		return seq, last
	}
	portion := func(share int, citus bool) {
		t.Helper()
		if moved, err := s.counts.RollUpSome(t.Context(), []uuid.UUID{s.key()}, math.MaxInt64, share, citus); err != nil || len(moved) == 0 {
			t.Fatal(moved, err)
		}
	}
	portion(2, false)
	if seq, last := folded(); seq != last-1 {
		t.Errorf("a part of the flush %d was folded, and all before it: noted is %d", last, seq)
	}
	portion(10, false)
	if seq, last := folded(); seq != last {
		t.Errorf("folded %d, want %d", seq, last)
	}
	_, before := folded()
	s.record(s.mark("PageView", "anna"))
	portion(10, true)
	if seq, _ := folded(); seq > before {
		t.Errorf("with Citus, folded is %d", seq)
	}
	s.expect(4)
}

// readsTally matches a statement that reads the tally.
var readsTally = regexp.MustCompile(`^(?:SELECT|WITH)\b.* (?:FROM|JOIN) tally\b`)

// plan is a node of what EXPLAIN returns.
type plan struct {
	Plans    []plan
	Relation string `json:"Relation Name"`
	Hit      int    `json:"Shared Hit Blocks"` // with those of Plans
	Read     int    `json:"Shared Read Blocks"`
}

// pagesOf returns how many pages of a table and its indexes were read.
func (p *plan) pagesOf(table string) (n int) {
	if p.Relation == table {
		return p.Hit + p.Read
	}
	for i := range p.Plans {
		n += p.Plans[i].pagesOf(table)
	}
	return n
}

// While a backup's snapshot is open, no statement reads the rows that were rolled up since. Merchants that have no usage yet
// are not missed.
func TestDeadDeltasAreNotRead(t *testing.T) {
	s := newShop(t, Options{})
	backup, err := s.db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	testenv.Check(t, err)
	defer func() {
		if err := backup.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	exec(t, backup, "SELECT count(*) FROM tally")
	const dead = 5000
	for range dead / 1000 {
		s.record(s.spread()...)
		s.rollUp(s.key())
	}
	s.holdRollups()
	fresh := s.another()
	s.record(s.mark("PageView", "anna"), fresh.mark("PageView", "bert"))
	if n := s.rows("usage", fresh.id); n != 0 {
		t.Fatalf("the new merchant has %d rows of usage", n)
	}

	reads := &statements{all: map[string][]any{}}
	db, err := conn.Open(t.Context(), s.url, conn.Options{Log: quiet, Tracer: reads})
	testenv.Check(t, err)
	defer db.Close()
	e := &engine{db: db, counts: count.New(db)} // does nothing by itself
	if e.Control, err = control.Load(t.Context(), db, store.DefaultAuditLimits); err != nil {
		t.Fatal(err)
	}
	e.Reader = read.New(db, e.Control, 0)
	usage, err := e.Usage(t.Context(), []store.MerchantID{s.id, fresh.id})
	if err != nil || usage[0].Events != dead+1 || usage[1].Events != 1 {
		t.Errorf("usage %+v, %v", usage, err)
	}
	last := lastReceipt(s)
	if left, err := e.counts.LeftBehind(t.Context(), last); err != nil || len(left) != 2 {
		t.Errorf("rows of the merchants %v are left, %v", left, err)
	}
	if counts, err := e.Verify(t.Context(), store.Verification{
		Found: func(f store.Finding) { t.Errorf("verify: %+v", f) },
		Read:  func(store.Part, uint64, uint64) {},
	}); err != nil || counts.Events != dead+2 {
		t.Errorf("%d events are verified, %v", counts.Events, err)
	}
	moved := 0
	if err := (&Database{db: e.db}).Events(t.Context(), 0, uint64(last), func(*migrate.Event) error { moved++; return nil }); err != nil || moved != dead+2 {
		t.Errorf("%d events are moved, %v", moved, err)
	}
	if _, err := e.Events(t.Context(), store.Query{Merchant: s.id, Limit: 1}); err != nil {
		t.Error(err)
	}

	const few = 20 // more than a search in the index takes, and less than the pages that have dead rows
	explained := 0
	if err := pgx.BeginTxFunc(t.Context(), e.db.Pool, pgx.TxOptions{BeginQuery: conn.BeginRead}, func(tx pgx.Tx) error {
		for sql, args := range reads.copy() {
			if !readsTally.MatchString(sql) {
				continue
			}
			explained++
			var plans []struct{ Plan plan }
			if err := tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&plans); err != nil {
				return err
			}
			if pages := plans[0].Plan.pagesOf("tally"); pages > few {
				t.Errorf("%d pages of the tally are read, want at most %d: %s", pages, few, sql)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if explained < 6 {
		t.Errorf("%d statements read the tally", explained)
	}
}

// The server keeps the plan of a fold. A plan that was made while the tally was empty must still be good when the tally is
// large.
func TestARollupDoesNotScanAllDeltas(t *testing.T) {
	s := newShop(t, Options{})
	session, err := pgx.Connect(t.Context(), s.url)
	testenv.Check(t, err)
	defer func() {
		if err := session.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	for sql, of := range map[string]any{count.TakeRows: []uuid.UUID{s.key()}, count.TakeRowsOfOne: s.key()} {
		if err := pgx.BeginTxFunc(t.Context(), session, pgx.TxOptions{BeginQuery: count.BeginRollUp}, func(tx pgx.Tx) error {
			plan, err := conn.Column[string](t.Context(), tx, "EXPLAIN "+sql, of, math.MaxInt64, 1000)
			if all := strings.Join(plan, "\n"); strings.Contains(all, "Seq Scan") {
				t.Errorf("%s: %s", sql, all)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A removal looks up the counters that it may have emptied: with many, to compare them with all empty ones takes half a
// minute.
func TestARemovalLooksCountersUp(t *testing.T) {
	s := newShop(t, Options{})
	session, err := pgx.Connect(t.Context(), s.url)
	testenv.Check(t, err)
	defer func() { testenv.Check(t, session.Close(context.Background())) }()
	_, err = session.Exec(t.Context(), "INSERT INTO counter SELECT $1, 0, 'Visit', i, 'cs_a', false, 1 FROM generate_series(1, 5000) AS i", s.key().String())
	testenv.Check(t, err)
	_, err = session.Exec(t.Context(), "ANALYZE counter")
	testenv.Check(t, err)
	removed := count.Deltas{}
	removed.Add(s.key(), 0, string(s.tag), "Visit", false, 1, -1)
	var plan []string
	testenv.Check(t, pgx.BeginTxFunc(t.Context(), s.db.Pool, pgx.TxOptions{BeginQuery: count.BeginRollUp}, func(tx pgx.Tx) (err error) {
		plan, err = conn.Column[string](t.Context(), tx, "EXPLAIN "+count.DeleteEmptyCounters, append([]any{s.key()}, removed.Columns()[1:5]...)...)
		return err
	}))
	if all := strings.Join(plan, "\n"); !strings.Contains(all, "Tid Scan on counter") || strings.Contains(all, "Join Filter") || strings.Contains(all, "Seq Scan") {
		t.Error(all)
	}
}

// A database of schema 9 has only counters. While a backup reads usage, a node gives up migrating it, because flushes would
// wait behind the migration.
func TestMigrationToDeltas(t *testing.T) {
	url := pgtest.EmptyDatabase(t)
	pool, err := pgxpool.New(t.Context(), url)
	testenv.Check(t, err)
	defer pool.Close()
	testenv.Check(t, schema.Migrate(t.Context(), pool, 9))
	const partner, id, tag, at = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222", "cs_a", "2026-01-02T03:04:05Z"
	values := strings.NewReplacer("PARTNER", partner, "SHOP", id, "TAG", tag, "AT", at, "SIZE", fmt.Sprint(count.SizeOf(2, 4, "PageView", tag)))
	for _, sql := range []string{
		`INSERT INTO partner (id, created, record) VALUES ('PARTNER', 'AT', '{"partnerId":"PARTNER","name":"Acme","createdAt":"AT"}')`,
		`INSERT INTO merchant VALUES ('SHOP', 'PARTNER', 1, 0, '{"merchantId":"SHOP","partnerId":"PARTNER","name":"Shop","createdAt":"AT"}')`,
		`INSERT INTO tag VALUES ('TAG', 'SHOP', 'PARTNER', 'client-side', 'AT', NULL, NULL, '{"tagId":"TAG","merchantId":"SHOP","partnerId":"PARTNER","type":"client-side","createdAt":"AT","status":"active"}')`,
		`INSERT INTO event SELECT 'SHOP', i, 0, 60000000 * i, false, 'TAG', 'PageView', 'anna', '{}' FROM generate_series(1, 2) AS i`,
		`INSERT INTO counter SELECT 'SHOP', 0, name, i, 'TAG', false, 1 FROM generate_series(1, 2) AS i, (VALUES (''), ('PageView')) AS v(name)`,
		`INSERT INTO counter SELECT 'SHOP', level, name, 0, 'TAG', false, 2 FROM generate_series(1, 3) AS level, (VALUES (''), ('PageView')) AS v(name)`,
		`INSERT INTO usage VALUES ('SHOP', 2, 2 * SIZE)`,
	} {
		if _, err := pool.Exec(t.Context(), values.Replace(sql)); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	s := &shop{t: t, url: url, partner: partner, id: id, tag: tag}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "LOCK TABLE usage IN ACCESS SHARE MODE"); err != nil {
			return err
		}
		e, err := openURL(url, Options{Log: quiet})
		if err == nil {
			return errors.Join(errors.New("a node changes usage while a backup reads it"), e.Close())
		}
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != write.LockNotAvailable {
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if version, err := schema.VersionOf(t.Context(), pool); err != nil || version != 9 {
		t.Fatalf("the schema has version %d, %v", version, err)
	}
	s.engine = s.second()
	s.expect(2)
	s.record(s.mark("PageView", "anna"))
	s.expect(3)
	s.rollUp(s.key())
	s.expect(3)
	s.expectConsistent()
}
