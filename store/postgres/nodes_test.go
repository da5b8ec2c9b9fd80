package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// second opens another node on the database of a shop.
func (s *shop) second() *engine {
	s.t.Helper()
	return s.opened(openSoon(s.url, Options{Log: quiet, Patience: s.patience}))
}

// opened closes an engine at the end of the test.
func (s *shop) opened(e *engine, err error) *engine {
	s.t.Helper()
	testenv.Check(s.t, err)
	s.t.Cleanup(func() {
		if err := e.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return e
}

func TestAChangeIsInTheDirectoryOfAnotherNode(t *testing.T) {
	s := newShop(t, Options{})
	other := s.second()
	key, text, err := s.IssueKey(t.Context(), s.partner, store.KeyOptions{})
	testenv.Check(t, err)
	authenticates := func() bool {
		_, _, ok := other.Directory().Authenticate(text, time.Now())
		return ok
	}
	await(t, "the key is unknown", authenticates)
	if _, err := s.RevokeKey(t.Context(), key.ID, true); err != nil {
		t.Fatal(err)
	}
	await(t, "the key is valid", func() bool { return !authenticates() })
	if _, err := other.UpdatePartner(t.Context(), s.partner, func(p store.Partner) store.Partner { p.Suspended = true; return p }); err != nil {
		t.Fatal(err)
	}
	await(t, "the partner is not suspended", func() bool {
		p, _ := s.Directory().Partner(s.partner)
		return p.Suspended
	})
	if _, err := other.DeleteMerchant(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	await(t, "the tag is known", func() bool {
		_, known := s.Directory().Tag(s.tag)
		return !known
	})
}

// What allowed a request when it came to this node may have ended at another one. Then the request changes nothing.
func TestAChangeIsCheckedWhenItKnowsWhatOtherNodesHaveChanged(t *testing.T) {
	s := newShop(t, Options{})
	other := s.second()
	ended := errors.New("the key has ended")
	for i := range 20 {
		key, text, err := s.IssueKey(t.Context(), s.partner, store.KeyOptions{})
		testenv.Check(t, err)
		check := func() error {
			if _, _, ok := other.Directory().Authenticate(text, time.Now()); !ok {
				return ended
			}
			return nil
		}
		await(t, "the key is unknown", func() bool { return check() == nil })
		if _, err := s.RevokeKey(t.Context(), key.ID, true); err != nil {
			t.Fatal(err)
		}
		if _, err := other.AddMerchant(store.WithCheck(t.Context(), check), s.partner, store.NewMerchant{Name: "Late"}); !errors.Is(err, ended) {
			t.Fatalf("change %d with a revoked key: %v", i, err)
		}
	}
	if _, n, err := s.Merchants(t.Context(), store.MerchantQuery{Partner: s.partner, Limit: 10}); err != nil || n != 1 {
		t.Errorf("the partner has %d merchants, want 1: %v", n, err)
	}
}

// A load balancer may send a caller's next request to another node.
func TestANodeAnswersWithWhatAnotherHasJustChanged(t *testing.T) {
	s := newShop(t, Options{})
	other := s.second()
	s.record(s.visit(0, 0))
	for range 20 {
		m, err := s.AddMerchant(t.Context(), s.partner, store.NewMerchant{Name: "Shop"})
		testenv.Check(t, err)
		if _, _, err := other.GenerateTag(t.Context(), m.ID, store.ClientSide, ""); err != nil {
			t.Fatalf("the other node: %v", err)
		}
		if got, err := s.Merchant(t.Context(), m.ID); err != nil || len(got.Tags) != 1 {
			t.Fatalf("the merchant is %+v, %v", got, err)
		}
	}
	if _, err := s.DeleteMerchant(t.Context(), s.id); err != nil {
		t.Fatal(err)
	}
	if page, err := other.Events(t.Context(), store.Query{Merchant: s.id, Limit: 10}); err != nil || page.Total > 0 {
		t.Errorf("the other node lists %d events of a deleted merchant, %v", page.Total, err)
	}
}

// Latest is the end of what a feed reads, with the merchants that the directory has. So no tag may be missing there.
func TestTheDirectoryHasTheTagsOfAllEventsUpToLatest(t *testing.T) {
	s := newShop(t, Options{})
	other := s.second()
	for i := range 20 {
		m, err := s.AddMerchant(t.Context(), s.partner, store.NewMerchant{Name: "Shop"})
		testenv.Check(t, err)
		tag, _, err := s.GenerateTag(t.Context(), m.ID, store.ClientSide, "")
		testenv.Check(t, err)
		e := s.visit(0, i)
		e.Merchant, e.Tag = m.ID, tag.ID
		s.record(e)
		latest, err := other.Latest(t.Context())
		testenv.Check(t, err)
		if mine, err := s.Latest(t.Context()); err != nil || latest != mine {
			t.Errorf("the latest cursor is %s, and %s, %v", latest, mine, err)
		}
		if _, known := other.Directory().Tag(tag.ID); !known {
			t.Fatalf("tag %d is not in the directory", i)
		}
	}
}

// Both nodes record the same event_ids, and a follower on each sees every event once and in the same order.
func TestTwoNodesRecordAtOnce(t *testing.T) {
	s := newShop(t, Options{})
	nodes := []*engine{s.engine, s.second()}
	const calls, perCall = 60, 5
	var recorded atomic.Int64
	var writers sync.WaitGroup
	for _, e := range nodes {
		for w := range 4 {
			writers.Go(func() {
				for call := range calls {
					var marks []store.Mark
					for i := range perCall {
						marks = append(marks, s.visit(w, call*perCall+i))
					}
					marks[0].DedupeID = "" // of these each is recorded
					if err := e.Record(t.Context(), marks); err != nil {
						t.Error(err)
						return
					}
					for _, m := range marks {
						if m.Outcome == store.Recorded {
							recorded.Add(1)
						}
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() {
		writers.Wait()
		close(done)
	}()
	seen := make([][]store.EventID, len(nodes))
	var readers sync.WaitGroup
	for n, e := range nodes {
		readers.Go(func() {
			news, stop := e.Watch([]store.MerchantID{s.id})
			defer stop()
			var after store.Cursor
			for ended := false; ; {
				for more := true; more; {
					end, err := e.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{s.id}, After: after}, func(r *store.Received) bool {
						seen[n] = append(seen[n], r.ID)
						return true
					})
					if err != nil {
						t.Error(err)
						return
					}
					after, more = end.Cursor, end.More
				}
				if ended {
					return
				}
				select {
				case <-news:
				case <-done:
					ended = true
				}
			}
		})
	}
	readers.Wait()
	// Each event_id once, and the events without one.
	want := 4*calls*(perCall-1) + 2*4*calls
	for n := range nodes {
		if len(seen[n]) != want || int(recorded.Load()) != want {
			t.Errorf("node %d has fed %d events, and %d were recorded; want %d", n, len(seen[n]), recorded.Load(), want)
		}
		for i := range seen[n] {
			if i > 0 && seen[n][i-1] >= seen[n][i] || seen[n][i] != seen[0][i] {
				t.Fatalf("node %d: event %d is %s, after %s; node 0 has %s", n, i, seen[n][i], seen[n][max(i-1, 0)], seen[0][i])
			}
		}
	}
	s.expectConsistent()
}

// The watch of another node is told, too.
func TestAWatchOnAnotherNode(t *testing.T) {
	s := newShop(t, Options{})
	news, stop := s.second().Watch([]store.MerchantID{s.id})
	defer stop()
	s.record(s.visit(0, 0))
	select {
	case <-news:
	case <-time.After(time.Minute):
		t.Error("a minute without news")
	}
}

func TestANodeThatMissedChangesIsNotReady(t *testing.T) {
	s := newShop(t, Options{})
	other := s.second()
	testenv.Check(t, other.Ready())
	exec(t, s.db.Pool, "UPDATE change SET seq = seq + 1000")
	await(t, "the node is ready", func() bool { return errors.Is(other.Ready(), store.ErrNeedsRestart) })
	if _, err := other.AddPartner(t.Context(), "Other"); !errors.Is(err, store.ErrNeedsRestart) {
		t.Errorf("a change gives %v", err)
	}
}

func TestManyNodesMayOpenANewDatabaseAtOnce(t *testing.T) {
	url := pgtest.EmptyDatabase(t)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			e, err := openURL(url, Options{Log: quiet})
			if err == nil {
				err = e.Close()
			}
			errs[i] = err
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestWhatADatabaseMustBe(t *testing.T) {
	url := pgtest.Database(t)
	refused := func(why, address string) {
		t.Helper()
		e, err := openURL(address, Options{Log: quiet})
		if err == nil {
			t.Error(errors.Join(errors.New("it is opened"), e.Close()))
		} else if !strings.Contains(err.Error(), why) {
			t.Errorf("the error %q does not say %q", err, why)
		}
		if err := CheckDatabase(t.Context(), address); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("CheckDatabase says %v, want %q", err, why)
		}
	}
	refused("synchronous_commit is off", url+"&synchronous_commit=off")
	s := &shop{t: t, url: url}
	e := s.second()
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		name := "in_" + strings.ToLower(encoding)
		exec(t, e.db.Pool, "CREATE DATABASE "+name+" TEMPLATE template0 LOCALE 'C' ENCODING "+encoding)
		_, query, _ := strings.Cut(url, "?")
		refused("the encoding of the database is "+encoding, "postgres:///"+name+"?"+query)
		exec(t, e.db.Pool, "DROP DATABASE "+name+" WITH (FORCE)")
	}
	exec(t, e.db.Pool, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)")
	refused("schema version 99", url)
	exec(t, e.db.Pool, "DELETE FROM goose_db_version WHERE version_id = 99")
}

// startWithStandby starts a primary with a synchronous standby.
func startWithStandby(t *testing.T) (primary, standby *pgtest.Server) {
	primary = pgtest.NewServer(t)
	standby, err := primary.Standby("standby1", true)
	testenv.Check(t, err)
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	return primary, standby
}

// Without its synchronous standby, the primary commits nothing: no event is acknowledged, not even as a duplicate of one
// that is visible already. The node is not ready, and says why. When the standby is back, the events can be sent again.
func TestWithoutTheSynchronousStandbyNothingIsAcknowledged(t *testing.T) {
	t.Parallel() // it mostly waits
	primary, standby := startWithStandby(t)
	s := newShopOn(t, primary.URL("postgres"), Options{FlushTimeout: 2 * time.Second})
	s.record(s.visit(0, 0))
	testenv.Check(t, standby.Kill())
	for attempt := range 2 {
		if err := s.Record(t.Context(), []store.Mark{s.visit(0, 1)}); err == nil {
			t.Errorf("attempt %d is acknowledged", attempt)
		}
	}
	await(t, "the node does not say what it waits for", func() bool {
		err := s.Ready()
		return err != nil && strings.Contains(err.Error(), "standbys")
	})
	if err := s.Record(t.Context(), []store.Mark{s.visit(0, 1)}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("an event gets %v, want KindUnavailable", err)
	}
	if page, err := s.Events(t.Context(), store.Query{Merchant: s.id, Limit: 10}); err != nil || len(page.Events) == 0 {
		t.Errorf("the listing has %d events, %v", len(page.Events), err)
	}
	testenv.Check(t, standby.Start())
	await(t, "nothing is recorded though the standby is back", func() bool {
		return s.Record(t.Context(), []store.Mark{s.visit(0, 1), s.visit(0, 2)}) == nil
	})
	await(t, "the node is not ready though the standby is back", func() bool { return s.Ready() == nil })
	s.expect(3)
}

// A server may need longer to accept a connection than a node waits for an answer, as after a crash, when all clients come back at
// once. The node does not begin anew again and again: it records as soon as it has connections.
func TestAServerThatIsSlowToAcceptConnections(t *testing.T) {
	t.Parallel() // it mostly waits
	primary, standby := startWithStandby(t)
	s := newShopOn(t, fmt.Sprintf("postgres:///postgres?host=%s,%s&user=mtagd", primary.Dir(), standby.Dir()), Options{})
	s.record(s.visit(0, 0))
	testenv.Check(t, primary.Exec("ALTER SYSTEM SET pre_auth_delay = 3", "SELECT pg_reload_conf()",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"))
	await(t, "nothing is recorded", func() bool { return s.Record(t.Context(), []store.Mark{s.visit(0, 1)}) == nil })
	await(t, "the node is not ready", func() bool { return s.Ready() == nil })
	s.expect(2)
}

// The primary is killed while events come in, and its synchronous standby is promoted: every event that was acknowledged is
// there once. Meanwhile calls fail; those that say that nothing was recorded are right.
func TestFailOver(t *testing.T) {
	primary, standby := startWithStandby(t)
	url := fmt.Sprintf("postgres:///postgres?host=%s,%s&user=mtagd", primary.Dir(), standby.Dir())
	s := newShopOn(t, url, Options{})

	var mu sync.Mutex
	acknowledged, refused := map[string]bool{}, map[string]bool{}
	var after atomic.Int64 // acknowledged after the promotion
	var promoted, stop atomic.Bool
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				id := fmt.Sprintf("%d-%d", w, i)
				e := s.visit(w, 0)
				e.DedupeID, e.Raw = id, fmt.Appendf(nil, `{"id":%q}`, id)
				err := s.Record(context.Background(), []store.Mark{e})
				mu.Lock()
				switch {
				case err == nil:
					acknowledged[id] = true
				case store.KindOf(err) == store.KindUnavailable:
					refused[id] = true
				}
				mu.Unlock()
				if err == nil && promoted.Load() {
					after.Add(1)
				} else if err != nil {
					time.Sleep(time.Millisecond) // as a sender would, only shorter
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	await(t, "hardly anything is recorded", func() bool { return count() > 200 })
	testenv.Check(t, primary.Kill())
	testenv.Check(t, standby.Promote())
	promoted.Store(true)
	await(t, "nothing is recorded after the promotion", func() bool { return after.Load() > 200 })
	stop.Store(true)
	writers.Wait()
	await(t, "the node is not ready", func() bool { return s.Ready() == nil })

	stored := map[string]int{}
	testenv.Check(t, s.eachBody(func(raw []byte) { stored[string(raw)]++ }))
	for id := range acknowledged {
		if n := stored[fmt.Sprintf(`{"id":%q}`, id)]; n != 1 {
			t.Errorf("event %s was acknowledged, and is there %d times", id, n)
		}
	}
	for id := range refused {
		if n := stored[fmt.Sprintf(`{"id":%q}`, id)]; n != 0 {
			t.Errorf("event %s was refused, and is there %d times", id, n)
		}
	}
	t.Logf("%d events were acknowledged, %d refused, %d are stored", len(acknowledged), len(refused), len(stored))
	s.expectConsistent()
}

// eachBody passes the bodies of all events, in the order of receipt.
func (s *shop) eachBody(use func(raw []byte)) error {
	q := store.FeedQuery{Merchants: []store.MerchantID{s.id}}
	for more := true; more; {
		end, err := s.Feed(s.t.Context(), q, func(r *store.Received) bool {
			use(r.Raw)
			return true
		})
		if err != nil {
			return err
		}
		q.After, more = end.Cursor, end.More
	}
	return nil
}
