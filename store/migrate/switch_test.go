package migrate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/migrate"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/schema"
	"mtagd/store/rules"
	"mtagd/store/testenv"
)

// A source that cannot be marked goes on.
func TestASourceThatCannotBeMarked(t *testing.T) {
	dir := t.TempDir()
	e := openLocal(t, dir)
	must(e.AddPartner(t.Context(), "Acme"))
	testenv.Check(t, os.MkdirAll(filepath.Join(dir, "moved.json", "in the way"), 0o700))
	if _, err := migrate.Switch(t.Context(), local.MigrateFrom(e), target(t, pgtest.Database(t)), silent()); err == nil {
		t.Error("the switch says that it has succeeded")
	}
	must(e.AddPartner(t.Context(), "goes on"))
}

// leakySource misses an event.
type leakySource struct{ migrate.Live }

func (l leakySource) Events(ctx context.Context, after, upTo uint64, use func(*migrate.Event) error) error {
	n := 0
	return l.Live.Events(ctx, after, upTo, func(e *migrate.Event) error {
		if n++; n == 7 {
			return nil
		}
		return use(e)
	})
}

// wrongTarget changes one thing of what it is given.
type wrongTarget struct {
	migrate.Successor
	what string
}

func (w wrongTarget) Add(ctx context.Context, p migrate.Portion) error {
	if w.what == "events" && len(p.Events) > 0 {
		p.Events[0].Bot = !p.Events[0].Bot
	}
	for i, k := range p.Keys {
		switch {
		case w.what == "links" && k.IsLink():
			p.Keys[i].MUID = []byte("other")
		case w.what == "remembered event_ids" && !k.IsLink():
			p.Keys[i].Seen++
		default:
			continue
		}
		break
	}
	if w.what == "audit log" && len(p.Audit) > 0 {
		p.Audit = p.Audit[1:]
	}
	return w.Successor.Add(ctx, p)
}

func (w wrongTarget) SetControl(ctx context.Context, c *migrate.Control) error {
	wrong := *c
	if w.what == rules.Suppressed {
		wrong.Records = slices.DeleteFunc(slices.Clone(c.Records), func(r rules.Record) bool { return r.Kind == rules.Suppressed })
	}
	return w.Successor.SetControl(ctx, &wrong)
}

// Each difference between the target and the source is found, and the source goes on.
func TestDifferencesAreNoticed(t *testing.T) {
	e := openLocal(t, t.TempDir())
	s := newShop(t, e)
	s.send(100)
	must(e.Erase(t.Context(), s.merchants[0].ID, s.person(5, false), store.ErasureOptions{Suppress: true}))
	awaitErasure(t, e, s.merchants[0].ID)
	dst := target(t, pgtest.Database(t))
	if _, err := migrate.Switch(t.Context(), leakySource{local.MigrateFrom(e)}, dst, silent()); err == nil || !strings.Contains(err.Error(), "could be read") {
		t.Errorf("a switch that misses an event gives %v", err)
	}
	for _, what := range []string{"events", "links", "remembered event_ids", "audit log", rules.Suppressed} {
		if _, err := migrate.Switch(t.Context(), local.MigrateFrom(e), wrongTarget{dst, what}, silent()); err == nil || !strings.Contains(err.Error(), "differ") || !strings.Contains(err.Error(), what) {
			t.Errorf("a switch that changes %s gives %v", what, err)
		}
	}
	must(e.AddPartner(t.Context(), "goes on"))
}

// Stores that have other data are not touched.
func TestTargetsMustBeEmpty(t *testing.T) {
	url, dir := pgtest.Database(t), t.TempDir()
	db := openDatabase(t, url)
	must(db.AddPartner(t.Context(), "Somebody"))
	e := openLocal(t, t.TempDir())
	if _, err := migrate.Switch(t.Context(), local.MigrateFrom(e), target(t, url), silent()); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a switch to a database with a partner: %v", err)
	}
	must(e.AddPartner(t.Context(), "goes on"))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "other"), nil, 0o600))
	if _, err := copyBack(t, url, dir, unchanged); !errors.Is(err, local.ErrNotEmpty) {
		t.Errorf("an import into a directory with a file: %v", err)
	}
	if found, err := os.ReadDir(dir); len(found) != 1 || err != nil {
		t.Errorf("the directory has %v, %v", found, err)
	}
	must(db.AddPartner(t.Context(), "goes on"))
}

// stuckTarget hangs when everything is there.
type stuckTarget struct {
	migrate.Successor
	until chan struct{}
}

func (s stuckTarget) Ready(context.Context, uint64) (migrate.Place, error) {
	<-s.until // without regard to the context
	return migrate.Place{}, errors.New("stuck")
}

// A target that hangs does not keep the source frozen.
func TestATargetThatHangs(t *testing.T) {
	e := openLocal(t, t.TempDir())
	s := newShop(t, e)
	s.send(100)
	stuck := stuckTarget{target(t, pgtest.Database(t)), make(chan struct{})}
	opt := silent()
	opt.FreezeFor = time.Second
	ended := make(chan error)
	go func() {
		_, err := migrate.Switch(t.Context(), local.MigrateFrom(e), stuck, opt)
		ended <- err
	}()
	refused := false
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := e.AddPartner(t.Context(), "x")
		if err == nil && refused {
			break
		}
		refused = refused || err != nil
		if time.Now().After(deadline) {
			t.Fatal("the source stays frozen")
		}
	}
	s.send(10)
	close(stuck.until)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("the switch says %v", err)
	}
	s.send(10)
}

// waitingTarget closes writes when it is to write events, and then waits until its context ends.
type waitingTarget struct {
	migrate.Target
	writes chan struct{}
}

func (w waitingTarget) Add(ctx context.Context, _ migrate.Portion) error {
	close(w.writes)
	<-ctx.Done()
	return ctx.Err()
}

// When the hold of a database is lost, others may change it. The import ends at once, and not when it compares events hours
// later.
func TestAnImportEndsWhenItsLocksAreLost(t *testing.T) {
	url, dir := pgtest.Database(t), filepath.Join(t.TempDir(), "new")
	e := openDatabase(t, url)
	newShop(t, e).send(100)
	closeEngine(t, e)
	writes, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := copyBack(t, url, dir, func(dst migrate.Target) migrate.Target { return waitingTarget{dst, writes} })
		ended <- err
	}()
	<-writes
	testenv.Check(t, pgtest.EndConnections(url))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "changing it was lost: run the same command again") {
		t.Errorf("the import says %v", err)
	}
	must(copyBack(t, url, dir, unchanged))
}

func TestMigrateWithADistributedDatabase(t *testing.T) {
	url := pgtest.NewCitus(t, nil).EmptyDatabase(t)
	if _, err := schema.Distribute(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	e := openLocal(t, t.TempDir())
	s := newShop(t, e)
	s.send(500)
	want := s.answers(e)
	dst := &cutTarget{target(t, url), cutAt{"Ready", 1, true}, nil}
	if _, err := migrate.Switch(t.Context(), local.MigrateFrom(e), dst, silent()); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	must(migrate.Switch(t.Context(), local.MigrateFrom(e), target(t, url), silent()))
	db := openDatabase(t, url)
	s.expectSame("the database", want, s.answers(db))
	s.Engine = db
	s.send(500)
	want = s.answers(db)
	closeEngine(t, db)
	dir := filepath.Join(t.TempDir(), "new")
	must(copyBack(t, url, dir, unchanged))
	s.expectSame("the directory", want, s.answers(openLocal(t, dir)))
}
