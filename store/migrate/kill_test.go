package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/postgres"
	"mtagd/store/testenv"
)

var errCut = errors.New("cut off")

// cutTarget is a target that is cut off at one call.
type cutTarget struct {
	migrate.Target
	cutAt
	cut func()
}

// cutAt says where: at the nth call of a method, or after it, when its answer is lost.
type cutAt struct {
	method string
	n      int
	after  bool
}

func (c *cutTarget) call(method string, do func() error) error {
	if method != c.method {
		return do()
	}
	if c.n--; c.n != 0 {
		return do()
	}
	if c.after {
		return errors.Join(do(), errCut)
	}
	c.cut()
	return errors.Join(errCut, do())
}

func (c *cutTarget) Add(ctx context.Context, p migrate.Portion) error {
	method := "Add"
	switch {
	case len(p.Keys) > 0:
		method = "Add keys"
	case len(p.Audit) > 0:
		method = "Add audit"
	}
	return c.call(method, func() error { return c.Target.Add(ctx, p) })
}

func (c *cutTarget) SetControl(ctx context.Context, control *migrate.Control) error {
	return c.call("SetControl", func() error { return c.Target.SetControl(ctx, control) })
}

func (c *cutTarget) Index(ctx context.Context, upTo uint64) error {
	return c.call("Index", func() error { return c.Target.Index(ctx, upTo) })
}

func (c *cutTarget) BeginFilling(ctx context.Context) error {
	return c.Target.(migrate.Successor).BeginFilling(ctx)
}

func (c *cutTarget) Ready(ctx context.Context, upTo uint64) (to migrate.Place, err error) {
	err = c.call("Ready", func() (err error) {
		to, err = c.Target.(migrate.Successor).Ready(ctx, upTo)
		return err
	})
	return to, err
}

func (c *cutTarget) Finish(ctx context.Context) error {
	return c.call("Finish", func() error { return c.Target.(migrate.Successor).Finish(ctx) })
}

// expectUnfinished opens a store that is not complete.
func expectUnfinished(t *testing.T, what cutAt, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "has not finished") {
		t.Errorf("after a cut at %+v the target opens: %v", what, err)
	}
}

// A switch that is cut off again and again, while events come in and persons are erased, ends with everything once.
func TestKilledSwitches(t *testing.T) {
	url := pgtest.Database(t)
	e := openLocal(t, t.TempDir())
	s := newShop(t, e)
	s.send(1000)
	who := s.person(55, true)
	must(e.Resolve(t.Context(), s.merchants[2].ID, who)) // links that are erased when the target has had them
	opt := silent()
	opt.Portion = 100
	for _, at := range []cutAt{{"Add", 1, false}, {"Add", 4, true}, {"Index", 1, true}, {"Add keys", 1, true}, {"Add audit", 1, false}, {"SetControl", 1, false}, {"SetControl", 1, true}, {"Ready", 1, false}, {"Ready", 1, true}} {
		dst := &cutTarget{target(t, url), at, func() { testenv.Check(t, pgtest.EndConnections(url)) }}
		if _, err := migrate.Switch(t.Context(), local.MigrateFrom(e), dst, opt); !errors.Is(err, errCut) {
			t.Fatalf("a switch that is cut off at %+v: %v", at, err)
		}
		_, err := postgres.Open(t.Context(), url, postgres.Options{Log: quiet})
		expectUnfinished(t, at, err)
		if at.method == "Add audit" {
			must(e.Erase(t.Context(), s.merchants[2].ID, store.Identity{MUID: who.MUID}, store.ErasureOptions{}))
			awaitErasure(t, e, s.merchants[2].ID)
		}
		s.send(100) // the source goes on
	}
	want := s.answers(e)
	result, err := migrate.Switch(t.Context(), local.MigrateFrom(e), target(t, url), opt)
	testenv.Check(t, err)
	t.Logf("%d events, frozen for %v s", result.Events, result.Refused)
	s.expectSame("the database", want, s.answers(openDatabase(t, url)))
}

// An import that is cut off again and again leaves nothing behind, and the database goes on.
func TestKilledImports(t *testing.T) {
	url, dir := pgtest.Database(t), filepath.Join(t.TempDir(), "new")
	e := openDatabase(t, url)
	s := newShop(t, e)
	closeEngine(t, e) // which stores when keys were last used
	for _, at := range []cutAt{{"Add", 1, false}, {"Add keys", 1, true}, {"SetControl", 1, true}, {"Index", 1, false}, {"Index", 1, true}} {
		e = openDatabase(t, url)
		s.Engine = e
		s.send(200)
		closeEngine(t, e)
		if _, err := copyBack(t, url, dir, func(dst migrate.Target) migrate.Target { return &cutTarget{dst, at, func() {}} }); !errors.Is(err, errCut) {
			t.Fatalf("an import that is cut off at %+v: %v", at, err)
		}
		_, err := local.Open(dir, local.Options{Log: quiet})
		expectUnfinished(t, at, err)
	}
	e = openDatabase(t, url)
	want := s.answers(e)
	closeEngine(t, e)
	if _, err := copyBack(t, url, dir, unchanged); err != nil {
		t.Fatal(err)
	}
	s.expectSame("the directory", want, s.answers(openLocal(t, dir)))
}

// At no moment of an import's end can both the database and the directory be opened.
func TestAnImportThatIsCutOffAtItsEnd(t *testing.T) {
	url, dir := pgtest.Database(t), filepath.Join(t.TempDir(), "new")
	e := openDatabase(t, url)
	s := newShop(t, e)
	s.send(200)
	want := s.answers(e)
	closeEngine(t, e)
	for _, isMarked := range []bool{false, true} {
		src := target(t, url)
		held := must(src.PreventChanges(t.Context(), "the directory "+dir))
		if err := local.Import(dir, "the directory "+dir, quiet, func(dst migrate.Target) error {
			_, err := migrate.Import(held.Context(), src, dst, silent())
			return err
		}, func() error {
			if isMarked {
				testenv.Check(t, held.Moved(t.Context()))
			}
			return errCut
		}); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		held.Release()
		_, err := local.Open(dir, local.Options{Log: quiet})
		expectUnfinished(t, cutAt{method: "Moved", after: isMarked}, err)
		if !isMarked {
			closeEngine(t, openDatabase(t, url))
		} else if _, err := postgres.Open(t.Context(), url, postgres.Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has moved to the directory") {
			t.Errorf("the database opens: %v", err)
		}
	}
	if finished, err := local.FinishImport(dir, "the directory elsewhere"); err != nil || finished {
		t.Errorf("the directory is finished for a database that has moved elsewhere: %v, %v", finished, err)
	}
	if finished, err := local.FinishImport(dir, "the directory "+dir); err != nil || !finished {
		t.Fatalf("the directory is not finished: %v", err)
	}
	if finished, err := local.FinishImport(dir, local.NameOf(dir)); err != nil || !finished {
		t.Errorf("a finished directory is not known as one: %v", err)
	}
	s.expectSame("the directory", want, s.answers(openLocal(t, dir)))
}

// What was not complete is not finished.
func TestFinishOfADirectoryThatIsNotComplete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	done := func() error { t.Error("it is complete"); return nil }
	if err := local.Import(dir, "the directory "+dir, quiet, func(migrate.Target) error { return errCut }, done); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	for _, where := range []string{dir, filepath.Join(dir, "nowhere")} {
		if finished, err := local.FinishImport(where, local.NameOf(where)); err != nil || finished {
			t.Errorf("%s is finished: %v, %v", where, finished, err)
		}
	}
	_, err := local.Open(dir, local.Options{Log: quiet})
	expectUnfinished(t, cutAt{}, err)
}

// killedSource is killed when it has been marked as moved.
type killedSource struct{ migrate.Live }

func (s killedSource) Freeze(ctx context.Context) (migrate.Frozen, error) {
	f, err := s.Live.Freeze(ctx)
	return killedFrozen{f}, err
}

type killedFrozen struct{ migrate.Frozen }

func (f killedFrozen) MarkMoved(ctx context.Context, to migrate.Place) error {
	return errors.Join(f.Frozen.MarkMoved(ctx, to), errCut)
}

// After a kill between the mark of the source and the end, the same command opens the target.
func TestAKillAtTheVeryEnd(t *testing.T) {
	url, dir := pgtest.Database(t), t.TempDir()
	e := openLocal(t, dir)
	s := newShop(t, e)
	s.send(100)
	want := s.answers(e)
	dst := target(t, url)
	if err := dst.Finish(t.Context()); err != nil { // nothing is to be finished
		t.Error(err)
	}
	if _, err := migrate.Switch(t.Context(), killedSource{local.MigrateFrom(e)}, dst, silent()); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	closeEngine(t, e)
	_, err := postgres.Open(t.Context(), url, postgres.Options{Log: quiet})
	expectUnfinished(t, cutAt{method: "Commit"}, err)
	again := target(t, url)
	moved, is, err := local.MovedTo(dir)
	if here := must(again.Place(t.Context())); err != nil || !is || moved.ID != here.ID {
		t.Fatalf("the directory has moved to %+v, %v, and the database is %+v", moved, err, here)
	}
	for range 2 {
		testenv.Check(t, again.Finish(t.Context()))
	}
	s.expectSame("the database", want, s.answers(openDatabase(t, url)))
}

// A follower of many merchants has a cursor from the time between a switch that was cut off at its end and the next one. It
// misses nothing.
func TestTheFeedAfterASwitchThatWasCutOff(t *testing.T) {
	url := pgtest.Database(t)
	e := openLocal(t, t.TempDir())
	partner := must(e.AddPartner(t.Context(), "Acme"))
	var merchants []store.MerchantID
	var tags []store.TagID
	for i := range 20 {
		m := must(e.AddMerchant(t.Context(), partner.ID, store.NewMerchant{Name: fmt.Sprint("Shop ", i)}))
		tag, _ := must2(e.GenerateTag(t.Context(), m.ID, store.ClientSide, ""))
		merchants, tags = append(merchants, m.ID), append(tags, tag.ID)
	}
	send := func() { // one commit for each merchant
		for i, m := range merchants {
			mark := store.Mark{Merchant: m, Tag: tags[i], Name: "PageView", Identity: store.Identity{MUID: "muid"}, Time: time.Now(), Raw: []byte("{}")}
			testenv.Check(t, e.Record(t.Context(), []store.Mark{mark}))
		}
	}
	send()
	dst := &cutTarget{target(t, url), cutAt{"Ready", 1, true}, nil}
	if _, err := migrate.Switch(t.Context(), local.MigrateFrom(e), dst, silent()); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	at := must(e.Latest(t.Context()))
	send()
	must(migrate.Switch(t.Context(), local.MigrateFrom(e), target(t, url), silent()))
	n := 0
	must(openDatabase(t, url).Feed(t.Context(), store.FeedQuery{Merchants: merchants, After: at}, func(*store.Received) bool { n++; return true }))
	if n != len(merchants) {
		t.Errorf("the feed has %d events, want %d", n, len(merchants))
	}
}
