package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/schema"
	"mtagd/store/testenv"
)

// These tests need the extension Citus, and are skipped where PostgreSQL has none.

// newCluster starts a cluster whose databases have distributed tables.
func newCluster(t *testing.T) *pgtest.Citus {
	t.Helper()
	return pgtest.NewCitus(t, func(url string) error {
		_, err := schema.Distribute(context.Background(), url)
		return err
	})
}

func TestCitus(t *testing.T) {
	c := newCluster(t)
	t.Run("one shard", func(t *testing.T) { askOneShard(t, c) })
	t.Run("settings of workers", func(t *testing.T) { askWorkersSettings(t, c) })
	t.Run("two phases", func(t *testing.T) { commitInTwoPhases(t, c) })
	t.Run("distribute while serving", func(t *testing.T) { distributeWhileServing(t, c) })
	t.Run("kill after a migration", func(t *testing.T) { distributeAtStart(t, c) })
	t.Run("loss of a worker", func(t *testing.T) { loseWorker(t, c) })
	t.Run("import from it", func(t *testing.T) { importFromDistributed(t, c) })
}

// A kill may come after a migration has added a table, and before the table is distributed. The next node that starts
// distributes it.
func distributeAtStart(t *testing.T, c *pgtest.Citus) {
	s := newShopOn(t, c.Database(t), Options{})
	exec(t, s.db.Pool, "SELECT undistribute_table('tally')")
	s.second()
	var there bool
	if err := s.db.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = 'tally'::regclass)").Scan(&there); err != nil || !there {
		t.Errorf("the table is not distributed, %v", err)
	}
	s.record(s.mark("PageView", "anna"))
	s.rollUp(s.key())
	s.expect(1)
}

// Compiling a statement takes longer than running it, on workers too.
func askWorkersSettings(t *testing.T, c *pgtest.Citus) {
	s := newShopOn(t, c.Database(t), Options{})
	for _, w := range c.Workers {
		worker, err := pgx.Connect(t.Context(), w.URL(s.db.Pool.Config().ConnConfig.Database))
		testenv.Check(t, err)
		var jit string
		if err := errors.Join(worker.QueryRow(t.Context(), "SHOW jit").Scan(&jit), worker.Close(t.Context())); err != nil || jit != "off" {
			t.Errorf("jit of a worker is %s, %v", jit, err)
		}
	}
}

// The row of a flush, on the coordinator, may be committed only together with its events on a worker.
func commitInTwoPhases(t *testing.T, c *pgtest.Citus) {
	s := newShopOn(t, c.Database(t), Options{})
	var before []string // Citus removes old transactions once a minute
	testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT coalesce(array_agg(gid), '{}') FROM pg_dist_transaction").Scan(&before))
	s.record(s.mark("PageView", "anna"))
	var n int
	testenv.Check(t, s.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_dist_transaction WHERE gid <> ALL($1)", before).Scan(&n))
	if n == 0 {
		t.Error("the event was not committed in two phases")
	}
}

// another returns another merchant on the same engine.
func (s *shop) another() *shop {
	s.t.Helper()
	m, err := s.AddMerchant(s.t.Context(), s.partner, store.NewMerchant{Name: "Shop"})
	testenv.Check(s.t, err)
	tag, _, err := s.GenerateTag(s.t.Context(), m.ID, store.ClientSide, "")
	testenv.Check(s.t, err)
	return &shop{engine: s.engine, t: s.t, url: s.url, partner: s.partner, id: m.ID, tag: tag.ID}
}

// mark returns a new event of a visitor.
func (s *shop) mark(name, muid string) store.Mark {
	id := store.Identity{MUID: store.MUID(muid)}
	id.Add(store.Email, muid+"@example.com")
	return store.Mark{Merchant: s.id, Tag: s.tag, Identity: id, Name: name, Time: time.Now(), DedupeID: uuid.NewString(), Raw: []byte(`{}`)}
}

// Citus itself says how many shards a statement asks.
func askOneShard(t *testing.T, c *pgtest.Citus) {
	e := newShopOn(t, c.Database(t), Options{})
	useEverything(t, e)
	asked := 0
	for sql, args := range sent.copy() {
		if !ofOneMerchant.MatchString(sql) || !ofEvents.MatchString(sql) {
			continue
		}
		asked++
		plan, err := conn.Column[string](t.Context(), e.db.Pool, "EXPLAIN "+sql, args...)
		if err != nil {
			t.Errorf("%s: %v", sql, err)
			continue
		}
		if !slices.ContainsFunc(plan, func(line string) bool { return strings.TrimSpace(line) == "Task Count: 1" }) {
			t.Errorf("not one shard: %s\n%s", sql, strings.Join(plan, "\n"))
		}
	}
	if asked < 15 {
		t.Errorf("%d statements were asked about, which is too few", asked)
	}
}

// useEverything calls what the hot path, the listing, the summary, the feed and erasures consist of.
func useEverything(t *testing.T, s *shop) {
	t.Helper()
	for range 30 {
		s.record(s.mark("PageView", "anna"), s.mark("Purchase", "bert"))
	}
	carl := s.mark("PageView", "carl")
	carl.Identity.Source = store.ByCookie
	s.record(carl)
	var email, nobody store.Identity
	email.Add(store.Email, "anna@example.com")
	nobody.Add(store.Email, "nobody@example.com")
	if _, err := s.Resolve(t.Context(), s.id, email); err != nil {
		t.Fatal(err)
	}
	unknown := s.mark("PageView", "")
	unknown.Identity = email
	s.record(unknown)
	unknown.Identity = nobody
	unknown.DedupeID = "lost"
	s.record(unknown)
	from, to := time.Now().Add(-90*time.Minute), time.Now().Add(time.Minute)
	for _, q := range []store.Query{{}, {From: &from, To: &to}, {Names: []string{"PageView"}}, {Tag: s.tag, From: &from},
		{SortBy: store.ByName, From: &from, Asc: true}, {SortBy: store.ByName}, {Asc: true, Offset: 10}, {Asc: true, Tag: s.tag},
		{Asc: true, Names: []string{"PageView"}}, {Asc: true, Names: []string{"PageView"}, Tag: s.tag}} {
		q.Merchant, q.Limit, q.SortBy = s.id, 20, cmp.Or(q.SortBy, store.ByTime)
		if page, err := s.Events(t.Context(), q); err != nil || page.Total == 0 {
			t.Fatal(page.Total, err)
		}
	}
	for _, by := range []store.SummaryGroup{store.Ungrouped, store.GroupByName, store.GroupByTag} {
		if _, err := s.Summary(t.Context(), store.SummaryQuery{Merchants: []store.MerchantID{s.id}, By: by, From: &from, Bucket: store.Hourly}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{s.id}}, func(*store.Received) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Erase(t.Context(), s.id, store.Identity{MUID: "bert"}, store.ErasureOptions{Suppress: true}); err != nil {
		t.Fatal(err)
	}
	await(t, "the erasure is not done", func() bool {
		page, total, err := s.Erasures(t.Context(), s.id, 0, 1)
		return err == nil && total == 1 && page[0].State == store.ErasureDone
	})
	s.expect(32)
}

// A database with events is distributed while a node serves; a call that was killed before is completed.
func distributeWhileServing(t *testing.T, c *pgtest.Citus) {
	url := c.EmptyDatabase(t)
	e := newShopOn(t, url, Options{})
	shops := []*shop{e, e.another(), e.another()}
	for _, s := range shops {
		s.record(s.mark("Before", "anna"))
	}
	// As after a kill: one table is distributed, and its old rows are still there.
	exec(t, e.db.Pool, "SELECT create_distributed_table('event', 'merchant', colocate_with => 'none')")
	stop := make(chan struct{})
	var serving sync.WaitGroup
	counts := make([]int, len(shops))
	for i, s := range shops {
		serving.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.Record(context.Background(), []store.Mark{s.mark("During", "bert")}); err == nil {
					counts[i]++
				}
			}
		})
	}
	first, err := schema.Distribute(t.Context(), url)
	close(stop)
	serving.Wait()
	testenv.Check(t, err)
	for _, table := range first.Tables {
		if want := table.Placement != schema.OnCoordinator && table.Name != "event"; table.Moved != want {
			t.Errorf("%+v: want moved %v", table, want)
		}
	}
	again, err := schema.Distribute(t.Context(), url)
	testenv.Check(t, err)
	for _, table := range again.Tables {
		if table.Moved {
			t.Errorf("the table %s has moved again", table.Name)
		}
		var left int
		if err := e.db.Pool.QueryRow(t.Context(), "SELECT pg_relation_size($1::text::regclass)", table.Name).Scan(&left); err != nil || left != 0 && table.Placement != schema.OnCoordinator {
			t.Errorf("%d bytes of the table %s are left: %v", left, table.Name, err)
		}
	}
	for i, s := range shops {
		s.record(s.mark("After", "anna"))
		page, err := s.Events(t.Context(), store.Query{Merchant: s.id, Limit: 1})
		if err != nil || page.Total < counts[i]+2 {
			t.Errorf("%d events, but %d were acknowledged: %v", page.Total, counts[i]+2, err)
		}
	}
	e.expectConsistent()
}

// While a worker is lost, its merchants' events are refused; what was acknowledged is there once, and visible at once.
func loseWorker(t *testing.T, c *pgtest.Citus) {
	e := newShopOn(t, c.Database(t), Options{})
	shops := []*shop{e}
	for range 7 {
		shops = append(shops, e.another())
	}
	stop := make(chan struct{})
	var senders sync.WaitGroup
	acknowledged := make([][]string, len(shops))
	for i, s := range shops {
		senders.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				muid := fmt.Sprintf("visitor%d", n)
				m := s.mark("PageView", muid)
				for s.Record(context.Background(), []store.Mark{m}) != nil {
					time.Sleep(10 * time.Millisecond) // as senders do
				}
				acknowledged[i] = append(acknowledged[i], muid)
			}
		})
	}
	for _, w := range c.Workers {
		time.Sleep(300 * time.Millisecond) // of load
		if err := w.Kill(); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := w.Start(); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(300 * time.Millisecond)
	close(stop)
	senders.Wait()
	for i, s := range shops {
		seen := map[string]int{}
		if _, err := s.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{s.id}}, func(r *store.Received) bool {
			seen[string(r.MUID)]++
			return true
		}); err != nil {
			t.Fatal(err)
		}
		for _, muid := range acknowledged[i] {
			if seen[muid] != 1 {
				t.Errorf("an acknowledged event is there %d times", seen[muid])
			}
		}
		if len(seen) != len(acknowledged[i]) {
			t.Errorf("%d events, but %d were acknowledged", len(seen), len(acknowledged[i]))
		}
	}
	e.expectConsistent()
}

// Before a distributed database is copied, what a worker has only prepared is committed.
func importFromDistributed(t *testing.T, c *pgtest.Citus) {
	url := c.EmptyDatabase(t)
	if _, err := schema.Distribute(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	s := newShopOn(t, url, Options{})
	s.record(s.visit(0, 0))
	db := s.forCopy()
	prepareLink(t, s, c)
	h := s.lockOf(db)
	prepared := 0
	if _, err := db.Keys(t.Context(), 0, func(k *migrate.Key) error {
		if string(k.MUID) == "prepared" {
			prepared++
		}
		return nil
	}); err != nil || prepared != 1 {
		t.Errorf("%d links are there that a worker had prepared, %v; want 1", prepared, err)
	}
	testenv.Check(t, h.Moved(t.Context()))
	if err := s.Record(t.Context(), []store.Mark{s.visit(0, 3)}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a flush after the move: %v", err)
	}
}

// prepareLink leaves a link that a worker has prepared and not committed, as after a coordinator's failure between the two
// phases.
func prepareLink(t *testing.T, s *shop, c *pgtest.Citus) {
	t.Helper()
	const name = "citus_0_999_999_999"
	var shard int64
	var group int
	var host string
	if err := s.db.Pool.QueryRow(t.Context(), `SELECT shardid, groupid, nodename FROM pg_dist_shard_placement JOIN pg_dist_node USING (nodename, nodeport)
		WHERE shardid = get_shard_id_for_distribution_column('link', $1::uuid)`, s.key()).Scan(&shard, &group, &host); err != nil {
		t.Fatal(err)
	}
	for _, w := range c.Workers {
		if w.Dir() != host {
			continue
		}
		worker, err := pgx.Connect(t.Context(), w.URL(s.db.Pool.Config().ConnConfig.Database))
		testenv.Check(t, err)
		for _, sql := range []string{"SET citus.enable_manual_changes_to_shards TO on", "BEGIN",
			fmt.Sprintf("INSERT INTO link_%d (merchant, key, muid) VALUES ('%s', '\\x01', 'prepared')", shard, s.key()),
			"PREPARE TRANSACTION '" + name + "'"} {
			exec(t, worker, sql)
		}
		testenv.Check(t, worker.Close(t.Context()))
	}
	exec(t, s.db.Pool, "INSERT INTO pg_dist_transaction (groupid, gid) VALUES ($1, $2)", group, name)
}

func TestDistributeNeedsCitus(t *testing.T) {
	_, err := schema.Distribute(t.Context(), pgtest.Database(t))
	if err == nil || !strings.Contains(err.Error(), "CREATE EXTENSION citus") {
		t.Errorf("got %v", err)
	}
}

// Each table with a merchant is either distributed by it, or one of those of which a merchant has few rows.
func TestPlacements(t *testing.T) {
	e := newShop(t, Options{})
	few := []string{"tag", "removal", "expiry", "erasure", "suppressed", "document"}
	tables, err := conn.Column[string](t.Context(), e.db.Pool, `SELECT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
		WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'merchant'`)
	testenv.Check(t, err)
	for _, table := range tables {
		if _, ok := schema.Placements[table]; !ok && !slices.Contains(few, table) {
			t.Errorf("where is the table %s in a distributed database?", table)
		}
	}
}
