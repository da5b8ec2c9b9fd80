package migrate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/postgres"
	"mtagd/store/testenv"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(url string) error {
		d, err := postgres.OpenDatabase(context.Background(), url, quiet)
		if err == nil {
			d.Close()
		}
		return err
	}))
}

// shop is a store with some of everything in it.
type shop struct {
	*testing.T
	store.Engine
	random    *rand.Rand
	partners  []store.Partner
	merchants []store.Merchant
	n         int // events that were sent
}

func openLocal(t *testing.T, dir string) store.Engine {
	t.Helper()
	e, err := local.Open(dir, local.Options{Log: quiet})
	testenv.Check(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func openDatabase(t *testing.T, url string) store.Engine {
	t.Helper()
	e, err := postgres.Open(t.Context(), url, postgres.Options{Log: quiet})
	testenv.Check(t, err)
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newShop fills an empty engine.
func newShop(t *testing.T, e store.Engine) *shop {
	t.Helper()
	ctx := t.Context()
	s := &shop{T: t, Engine: e, random: rand.New(rand.NewPCG(1, 2))}
	for i := range 2 {
		p := must(e.AddPartner(ctx, fmt.Sprintf("Partner %d", i)))
		s.partners = append(s.partners, p)
		k, _ := must2(e.IssueKey(ctx, p.ID, store.KeyOptions{Name: "first", Once: "k"}))
		e.Directory().SetLastUse(k.ID, time.Now().Add(-time.Hour))
		used, _ := must2(e.IssueKey(ctx, p.ID, store.KeyOptions{ExpiresIn: time.Hour, Scope: store.ReadOnly}))
		must(e.RevokeKey(ctx, used.ID, true))
		for j := range 3 {
			m := must(e.AddMerchant(ctx, p.ID, store.NewMerchant{Name: fmt.Sprintf("Shop %d", j), Domain: "x.example", Once: fmt.Sprint("once", j)}))
			must2(e.GenerateTag(ctx, m.ID, store.ClientSide, ""))
			tag, _ := must2(e.GenerateTag(ctx, m.ID, store.ServerSide, fmt.Sprintf("shop%d%d.example", i, j)))
			if j == 1 {
				must(e.UpdateTag(ctx, tag.ID, func(t store.Tag) store.Tag { t.Verified, t.Connected = true, true; return t }))
			}
			if j == 2 {
				must(e.ReleaseDomain(ctx, tag.Domain))
			}
			s.merchants = append(s.merchants, must(e.Merchant(ctx, m.ID)))
		}
	}
	must(e.EnablePreverified(ctx, s.partners[0].ID, "track.partner.example"))
	must2(e.GenerateTag(ctx, s.merchants[0].ID, store.Preverified, ""))
	must(e.UpdateMerchant(ctx, s.merchants[1].ID, func(m store.Merchant) store.Merchant {
		m.Suspended, m.Retention = true, 3000
		return m
	}))
	must(e.UpdatePartner(ctx, s.partners[1].ID, func(p store.Partner) store.Partner {
		p.Suspended = true
		return p
	}))
	must(e.DeleteMerchant(ctx, must(e.AddMerchant(ctx, s.partners[0].ID, store.NewMerchant{Name: "Deleted"})).ID))
	must2(e.AddLink(ctx, s.partners[0].ID)) // which is dropped
	return s
}

func must2[A, B any](a A, b B, err error) (A, B) {
	if err != nil {
		panic(err)
	}
	return a, b
}

// person returns the identity of one of a few persons of a merchant.
func (s *shop) person(n int, muid bool) (id store.Identity) {
	id.Add(store.Email, fmt.Sprintf("p%d@example.org", n))
	if n%2 == 0 {
		id.Add(store.Phone, fmt.Sprintf("+49 %d", n))
	}
	if muid {
		id.MUID, id.Source = store.MUID(fmt.Sprintf("muid-%d", n)), []store.LinkSource{store.ByAnyone, store.ByCookie, store.BySecret}[n%3]
	}
	return id
}

// send records n events.
func (s *shop) send(n int) {
	s.Helper()
	for n > 0 {
		marks := make([]store.Mark, min(n, 1+s.random.IntN(300)))
		for i := range marks {
			marks[i] = s.mark(s.n)
			s.n++
		}
		testenv.Check(s, s.Record(context.Background(), marks))
		n -= len(marks)
	}
}

func (s *shop) mark(n int) store.Mark {
	m := s.merchants[n%len(s.merchants)]
	r := s.random
	return store.Mark{
		Merchant: m.ID, Tag: m.Tags[n%len(m.Tags)].ID, Identity: s.person(r.IntN(50), r.IntN(4) > 0 || n < 1000),
		Name: []string{"PageView", "Purchase", "View"}[r.IntN(3)], Bot: r.IntN(10) == 0, DedupeID: fmt.Sprint("id", n),
		Time: time.Now().Add(-time.Duration(r.Int64N(int64(90 * 24 * time.Hour)))).Truncate(time.Microsecond).UTC(),
		Raw:  fmt.Appendf(nil, `{"event":"x","n":%d,"filler":"%s"}`, n, strings.Repeat("é", r.IntN(50))),
	}
}

// answers are everything that an engine says of the shop, as text.
func (s *shop) answers(e store.Engine) []string {
	s.Helper()
	ctx := s.Context()
	var all []string
	say := func(what string, v any) { all = append(all, what+" "+string(must(json.Marshal(v)))) }
	partners := must(e.Partners(ctx))
	say("partners", partners)
	for _, p := range partners {
		keys := must(e.Keys(ctx, p.ID))
		for i := range keys {
			keys[i].LastUsedAt = e.Directory().LastUse(keys[i].ID)
			say("used", keys[i].LastUsedAt.UTC())
		}
		say("keys", keys)
		merchants, total, err := e.Merchants(ctx, store.MerchantQuery{Partner: p.ID, Limit: 100})
		say("merchants", []any{must(merchants, err), total})
		for _, m := range merchants {
			for _, t := range m.Tags {
				say("tag", []any{t, t.Host, t.ClaimLost, t.Status()})
			}
			eras, n, err := e.Erasures(ctx, m.ID, 0, 100)
			say("erasures", []any{append([]store.Erasure{}, must(eras, err)...), n})
		}
		say("claims", must(e.Claims(ctx, p.ID)))
	}
	say("audit", must(e.Audit(ctx, store.AuditQuery{Limit: 10_000})))
	var ids []store.MerchantID
	for _, m := range s.merchants {
		ids = append(ids, m.ID)
		for _, sort := range []store.SortKey{store.ByTime, store.ByName} {
			for _, offset := range []int{0, 17, 1000} {
				page := must(e.Events(ctx, store.Query{Merchant: m.ID, SortBy: sort, Offset: offset, Limit: 100}))
				say("total", page.Total)
				for _, of := range page.Events {
					say("event", []any{of.ID, of.MUID, of.Name, of.Time, string(of.Raw), of.Bot})
				}
			}
		}
		for n := range 60 {
			who := s.person(n, false)
			say("muid", must(e.Resolve(ctx, m.ID, who)))
		}
		say("usage", must(e.Usage(ctx, []store.MerchantID{m.ID}))[0].Events)
	}
	for _, by := range []store.SummaryGroup{store.GroupByTag, store.GroupByName} {
		say("summary", must(e.Summary(ctx, store.SummaryQuery{Merchants: ids, Bucket: store.Daily, By: by, Now: time.Unix(1, 0)})))
	}
	for at := store.Cursor(""); ; {
		end, err := e.Feed(ctx, store.FeedQuery{Merchants: ids, After: at}, func(r *store.Received) bool {
			say("feed", []any{r.ID, r.Cursor, r.ReceivedAt, r.Merchant, r.Tag, r.Bot, r.MUID, string(r.Raw)})
			return true
		})
		if at = must(end, err).Cursor; !end.More {
			say("end", at)
			return all
		}
	}
}

func (s *shop) expectSame(what string, want, got []string) {
	s.Helper()
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(want):
			s.Fatalf("%s has more: %s", what, got[i])
		case i >= len(got):
			s.Fatalf("%s lacks: %s", what, want[i])
		case want[i] != got[i]:
			s.Fatalf("%s answers\n%s, want\n%s", what, got[i], want[i])
		}
	}
}

// expectDuplicates sends the first events again, which all must be known.
func (s *shop) expectDuplicates(e store.Engine, n int) {
	s.Helper()
	random := s.random
	s.random = rand.New(rand.NewPCG(1, 2))
	defer func() { s.random = random }()
	var marks []store.Mark
	seen := 0
	for seen < n {
		batch := min(n-seen, 1+s.random.IntN(300))
		for range batch {
			marks = append(marks, s.mark(seen))
			seen++
		}
	}
	testenv.Check(s, e.Record(s.Context(), marks[:n]))
	for i := range marks[:n] {
		if got := marks[i].Outcome; got != store.Duplicate && got != store.Suppressed && got != store.Removed && got != store.Unresolved {
			s.Fatalf("mark %d has outcome %d after the move, want Duplicate", i, got)
		}
	}
}

func silent() migrate.Options {
	return migrate.Options{Log: quiet, Progress: func(migrate.Phase, uint64) {}}
}

func target(t *testing.T, url string) *postgres.Database {
	t.Helper()
	d, err := postgres.OpenDatabase(t.Context(), url, quiet)
	testenv.Check(t, err)
	t.Cleanup(d.Close)
	return d
}

// closed has the engines that a test has closed itself.
var closed sync.Map

// closeEngine closes an engine, once.
func closeEngine(t *testing.T, e store.Engine) {
	t.Helper()
	if _, already := closed.LoadOrStore(e, true); already {
		return
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// noDamage is a verification that must find nothing.
func noDamage(t *testing.T) store.Verification {
	return store.Verification{Found: func(f store.Finding) { t.Errorf("verify: %+v", f) }, Read: func(store.Part, uint64, uint64) {}}
}

// copyBack fills a new directory from a database, as the command does.
func copyBack(t *testing.T, url, dir string, wrap func(migrate.Target) migrate.Target) (result migrate.Result, err error) {
	t.Helper()
	src := target(t, url)
	held, err := src.PreventChanges(t.Context(), "the directory "+dir)
	if err != nil {
		return result, err
	}
	defer held.Release()
	err = local.Import(dir, "the directory "+dir, quiet, func(dst migrate.Target) (err error) {
		result, err = migrate.Import(held.Context(), src, wrap(dst), silent())
		return err
	}, func() error { return held.Moved(t.Context()) })
	return result, err
}

func unchanged(dst migrate.Target) migrate.Target { return dst }

// Data goes from a directory to a database, and from there to a new directory. Nothing is lost or changed.
func TestThereAndBack(t *testing.T) {
	first, second, url := t.TempDir(), filepath.Join(t.TempDir(), "new"), pgtest.Database(t)
	certificate := filepath.Join("certificates", "certificates", "ca", "shop.example", "shop.example.key")
	testenv.Check(t, errors.Join(os.MkdirAll(filepath.Join(first, filepath.Dir(certificate)), 0o700), os.WriteFile(filepath.Join(first, certificate), []byte("key"), 0o600)))
	e := openLocal(t, first)
	s := newShop(t, e)
	s.send(2000)
	must(e.Erase(t.Context(), s.merchants[0].ID, s.person(5, false), store.ErasureOptions{Suppress: true}))
	awaitErasure(t, e, s.merchants[0].ID)
	must(e.Resolve(t.Context(), s.merchants[2].ID, s.person(55, true))) // a link without an event
	want := s.answers(e)
	result, err := migrate.Switch(t.Context(), local.MigrateFrom(e), target(t, url), silent())
	testenv.Check(t, err)
	if result.Links == 0 || result.EventIDs == 0 || result.Audit == 0 || result.Merchants != 6 {
		t.Errorf("the switch says %+v", result)
	}
	if err := e.Record(t.Context(), []store.Mark{s.mark(0)}); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("an event for the old store: %v, want KindUnavailable", err)
	}
	if _, err := e.AddPartner(t.Context(), "late"); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a change of the old store: %v, want KindUnavailable", err)
	}
	closeEngine(t, e)
	if _, err := local.Open(first, local.Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has moved to postgres://") {
		t.Errorf("the old store opens: %v", err)
	}

	db := openDatabase(t, url)
	s.expectSame("the database", want, s.answers(db))
	if files := must(db.(store.Shared).Files(t.Context(), "", true)); len(files) != 1 || files[0].Path != "certificates/ca/shop.example/shop.example.key" || string(files[0].Content) != "key" {
		t.Errorf("the database has the certificates %+v", files)
	}
	s.expectDuplicates(db, 500)
	s.Engine = db
	s.expectFeedGoesOn()
	must(db.Verify(t.Context(), noDamage(t)))
	s.send(800)
	must(db.Erase(t.Context(), s.merchants[1].ID, s.person(7, false), store.ErasureOptions{Suppress: true}))
	awaitErasure(t, db, s.merchants[1].ID) // leaves gaps in the positions
	must(db.Resolve(t.Context(), s.merchants[2].ID, s.person(55, true)))
	must(db.DeleteMerchant(t.Context(), s.merchants[5].ID)) // its events are still there
	all, gone := s.merchants, s.merchants[5]
	s.merchants = all[:5]
	want = s.answers(db)
	closeEngine(t, db)
	if result, err = copyBack(t, url, second, unchanged); err != nil {
		t.Fatal(err)
	}
	if result.Links == 0 || result.EventIDs == 0 || result.Audit == 0 || result.Merchants != 5 {
		t.Errorf("the import says %+v", result)
	}
	if _, err := postgres.Open(t.Context(), url, postgres.Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has moved to the directory "+second) {
		t.Errorf("the database opens: %v", err)
	}

	back := openLocal(t, second)
	s.expectSame("the new directory", want, s.answers(back))
	if text, err := os.ReadFile(filepath.Join(second, certificate)); string(text) != "key" {
		t.Errorf("the certificate's key is %q, %v", text, err)
	}
	must(back.Verify(t.Context(), noDamage(t)))
	mark := s.mark(0)
	mark.Merchant, mark.Tag = gone.ID, gone.Tags[0].ID
	if mark := []store.Mark{mark}; back.Record(t.Context(), mark) != nil || mark[0].Outcome != store.Removed {
		t.Errorf("an event for a merchant that was deleted has outcome %d", mark[0].Outcome)
	}
	s.Engine, s.merchants = back, all
	s.expectDuplicates(back, 500)
	s.merchants = all[:5]
	s.expectFeedGoesOn()
}

// expectFeedGoesOn sends events, which a feed that has read all must see.
func (s *shop) expectFeedGoesOn() {
	s.Helper()
	before := must(s.Latest(s.Context()))
	s.send(200)
	var ids []store.MerchantID
	for _, m := range s.merchants {
		ids = append(ids, m.ID)
	}
	n := 0
	must(s.Feed(s.Context(), store.FeedQuery{Merchants: ids, After: before}, func(*store.Received) bool { n++; return true }))
	if n < 100 {
		s.Errorf("after the migration a feed sees %d of about 200 events", n)
	}
}

func awaitErasure(t *testing.T, e store.Engine, m store.MerchantID) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		all, _, err := e.Erasures(t.Context(), m, 0, 10)
		testenv.Check(t, err)
		if !slices.ContainsFunc(all, func(e store.Erasure) bool { return e.State != store.ErasureDone }) {
			return
		}
	}
	t.Fatal("the erasure is not done")
}
