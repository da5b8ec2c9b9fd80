package move_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/move"
	"mtagd/store/postgres"
	"mtagd/store/postgres/pgtest"
)

func directory(t *testing.T, dir string) *local.Directory {
	t.Helper()
	d, err := local.NewDirectory(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// Data goes from a directory to a database and on to another directory, and then to the same database again. Nothing is lost or changed.
func TestThereAndBack(t *testing.T) {
	first, second, url := t.TempDir(), filepath.Join(t.TempDir(), "new"), pgtest.Database(t)
	certificate := filepath.Join("certificates", "certificates", "ca", "shop.example", "shop.example.key")
	if err := errors.Join(os.MkdirAll(filepath.Join(first, filepath.Dir(certificate)), 0o700), os.WriteFile(filepath.Join(first, certificate), []byte("key"), 0o600)); err != nil {
		t.Fatal(err)
	}
	e := openLocal(t, first)
	s := newShop(t, e)
	s.send(2000)
	must(e.Erase(t.Context(), s.merchants[0].ID, s.person(5, false), store.ErasureOptions{Suppress: true}))
	awaitErasure(t, e, s.merchants[0].ID)
	must(move.Run(t.Context(), local.MoveFrom(e), target(t, url), silent()))
	closeEngine(t, e)

	db := openDatabase(t, url)
	other := openDatabase(t, url) // another node
	s.Engine = db
	s.send(1000)
	must(db.Erase(t.Context(), s.merchants[1].ID, s.person(7, false), store.ErasureOptions{Suppress: true}))
	awaitErasure(t, db, s.merchants[1].ID) // leaves gaps in the positions
	must(db.Resolve(t.Context(), s.merchants[2].ID, s.person(55, true)))
	must(db.DeleteMerchant(t.Context(), s.merchants[5].ID))
	all := s.merchants
	gone := all[5]
	s.merchants = all[:5]
	want := s.answers(db)
	result, err := move.Run(t.Context(), target(t, url), directory(t, second), silent())
	if err != nil {
		t.Fatal(err)
	}
	if result.Links == 0 || result.EventIDs == 0 || result.Audit == 0 || result.Merchants != 5 {
		t.Errorf("the move says %+v", result)
	}
	for _, node := range []store.Engine{db, other} {
		if err := node.Record(t.Context(), []store.Mark{s.mark(0)}); store.KindOf(err) != store.KindUnavailable {
			t.Errorf("an event for the database: %v, want KindUnavailable", err)
		}
		if _, err := node.AddPartner(t.Context(), "late"); store.KindOf(err) != store.KindUnavailable {
			t.Errorf("a change of the database: %v, want KindUnavailable", err)
		}
	}
	if _, err := postgres.Open(t.Context(), url, postgres.Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has moved to the directory "+second) {
		t.Errorf("the database opens: %v", err)
	}

	back := openLocal(t, second)
	s.expectSame("the new directory", want, s.answers(back))
	if text, err := os.ReadFile(filepath.Join(second, certificate)); string(text) != "key" {
		t.Errorf("the certificate's key is %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(second, "moving")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the move is still there: %v", err)
	}
	must(back.Verify(t.Context(), store.Verification{Found: func(f store.Finding) { t.Errorf("verify: %+v", f) }, Read: func(store.Part, uint64, uint64) {}}))
	mark := s.mark(0)
	mark.Merchant, mark.Tag = gone.ID, gone.Tags[0].ID
	if mark := []store.Mark{mark}; back.Record(t.Context(), mark) != nil || mark[0].Outcome != store.Removed {
		t.Errorf("an event for a merchant that was deleted has outcome %d", mark[0].Outcome)
	}
	s.Engine, s.merchants = back, all
	s.expectDuplicates(back, 500)
	s.merchants = all[:5]
	before := must(back.Latest(t.Context()))
	s.send(200)
	n := 0
	must(back.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{s.merchants[0].ID, s.merchants[1].ID, s.merchants[2].ID, s.merchants[3].ID, s.merchants[4].ID}, After: before},
		func(*store.Received) bool { n++; return true }))
	if n < 100 {
		t.Errorf("after the move a feed sees %d of about 200 events", n)
	}

	want = s.answers(back)
	must(move.Run(t.Context(), local.MoveFrom(back), target(t, url), silent()))
	closeEngine(t, back)
	again := openDatabase(t, url)
	s.expectSame("the database, in use again", want, s.answers(again))
	s.Engine = again
	s.send(100)
	must(again.AddPartner(t.Context(), "new"))
	if err := db.Ready(); err == nil {
		t.Error("a node that was started before the database was filled again is ready")
	}
}

// cutDirectory is a directory whose move ends at one call: before it, or after it, when its answer is lost.
type cutDirectory struct {
	move.Target
	left int // calls until then
}

func (c *cutDirectory) call(do func() error) error {
	switch c.left--; c.left {
	case 0:
		return errCut
	case 1:
		return errors.Join(do(), errCut)
	}
	return do()
}

func (c *cutDirectory) Add(ctx context.Context, b *move.Batch) error {
	return c.call(func() error { return c.Target.Add(ctx, b) })
}

func (c *cutDirectory) AddKeys(ctx context.Context, keys []move.Key) error {
	return c.call(func() error { return c.Target.AddKeys(ctx, keys) })
}

func (c *cutDirectory) AddAudit(ctx context.Context, entries []store.AuditEntry) error {
	return c.call(func() error { return c.Target.AddAudit(ctx, entries) })
}

func (c *cutDirectory) SetControl(ctx context.Context, control *move.Control) error {
	return c.call(func() error { return c.Target.SetControl(ctx, control) })
}

func (c *cutDirectory) Ready(ctx context.Context, upTo uint64) (to move.Place, err error) {
	err = c.call(func() (err error) {
		to, err = c.Target.Ready(ctx, upTo)
		return err
	})
	return to, errors.Join(err, errCut)
}

// A move out of a database that is cut off again and again, while events come in and persons are erased, ends with everything once.
func TestKilledMovesBack(t *testing.T) {
	url, dir := pgtest.Database(t), t.TempDir()
	e := openDatabase(t, url)
	s := newShop(t, e)
	closeEngine(t, e) // which stores when keys were last used
	e = openDatabase(t, url)
	s.Engine = e
	s.send(*events)
	who := s.person(55, true)
	must(e.Resolve(t.Context(), s.merchants[2].ID, who))
	opt := silent()
	opt.Portion = max(*events/10, 100)
	for i := range *kills {
		dst := directory(t, dir)
		cut := &cutDirectory{dst, 2 + rand.IntN(8)}
		if i == *kills/2 {
			cut.left = 1000 // until Ready
		}
		if _, err := move.Run(t.Context(), target(t, url), cut, opt); !errors.Is(err, errCut) {
			t.Fatalf("move %d, to be cut off: %v", i, err)
		}
		if err := dst.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := local.Open(dir, local.Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "has not finished") {
			t.Fatalf("a directory that is being filled opens: %v", err)
		}
		for e.Ready() != nil {
			time.Sleep(time.Millisecond)
		}
		if i == *kills/2 {
			must(e.Erase(t.Context(), s.merchants[2].ID, store.Identity{MUID: who.MUID}, store.ErasureOptions{}))
			awaitErasure(t, e, s.merchants[2].ID)
		}
		s.send(100) // the source goes on
	}
	want := s.answers(e)
	result, err := move.Run(t.Context(), target(t, url), directory(t, dir), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d events, frozen for %v", result.Events, result.Frozen)
	s.expectSame("the directory", want, s.answers(openLocal(t, dir)))
}

func TestOtherDirectoriesAreNotTouched(t *testing.T) {
	url := pgtest.Database(t)
	e := openDatabase(t, url)
	newShop(t, e).send(10)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := move.Run(t.Context(), target(t, url), directory(t, full), silent()); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a move into a directory with a file: %v", err)
	}
	if found, err := os.ReadDir(full); len(found) != 1 || err != nil {
		t.Errorf("the directory has %v, %v", found, err)
	}
	half := directory(t, t.TempDir())
	must(half.Begin(t.Context(), "another store"))
	if err := half.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := move.Run(t.Context(), target(t, url), half, silent()); err == nil || !strings.Contains(err.Error(), "is being filled from another store") {
		t.Errorf("a move into a directory that another move fills: %v", err)
	}
	must(e.AddPartner(t.Context(), "goes on"))
}

// stuckTarget hangs when everything is there.
type stuckTarget struct {
	move.Target
	until chan struct{}
}

func (s stuckTarget) Ready(context.Context, uint64) (move.Place, error) {
	<-s.until // without regard to the context, like a disk
	return move.Place{}, errors.New("stuck")
}

// A target that hangs does not keep the source frozen.
func TestATargetThatHangs(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (store.Engine, move.Source, move.Target){
		"a database": func(t *testing.T) (store.Engine, move.Source, move.Target) {
			e := openLocal(t, t.TempDir())
			return e, local.MoveFrom(e), target(t, pgtest.Database(t))
		},
		"a directory": func(t *testing.T) (store.Engine, move.Source, move.Target) {
			url := pgtest.Database(t)
			return openDatabase(t, url), target(t, url), directory(t, t.TempDir())
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, src, dst := open(t)
			s := newShop(t, e)
			s.send(100)
			stuck := stuckTarget{dst, make(chan struct{})}
			opt := silent()
			opt.FreezeFor = time.Second
			ended := make(chan error)
			go func() {
				_, err := move.Run(t.Context(), src, stuck, opt)
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
				t.Errorf("the move says %v", err)
			}
			s.send(10)
		})
	}
}

// waitingTarget closes writes when it is to write events, and then waits until its context ends.
type waitingTarget struct {
	move.Target
	writes chan struct{}
}

func (w waitingTarget) Add(ctx context.Context, _ *move.Batch) error {
	close(w.writes)
	<-ctx.Done()
	return ctx.Err()
}

// When the hold is lost, nodes may remove events again. The move ends at once, and not when it compares events hours later.
func TestAMoveEndsWhenItsHoldIsLost(t *testing.T) {
	url, dir := pgtest.Database(t), directory(t, t.TempDir())
	newShop(t, openDatabase(t, url)).send(100)
	waiting := waitingTarget{dir, make(chan struct{})}
	ended := make(chan error)
	go func() {
		_, err := move.Run(t.Context(), target(t, url), waiting, silent())
		ended <- err
	}()
	<-waiting.writes
	pgtest.Disconnect(t, url)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "removing events was lost: run the same command again") {
		t.Errorf("the move says %v", err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	must(move.Run(t.Context(), target(t, url), dir, silent()))
}

// countingTarget counts the links and event_ids that it gets. When the audit log is to be copied, it calls audited.
type countingTarget struct {
	move.Target
	audited func()
	keys    int
}

func (c *countingTarget) AddKeys(ctx context.Context, keys []move.Key) error {
	c.keys += len(keys)
	return c.Target.AddKeys(ctx, keys)
}

func (c *countingTarget) LastAudit(ctx context.Context) (store.AuditID, error) {
	c.audited()
	return c.Target.LastAudit(ctx)
}

// While the source is frozen, only changed links are written. A link that changes and then changes back ends up right.
func TestFewLinksAreCopiedWhileFrozen(t *testing.T) {
	url, dir := pgtest.Database(t), t.TempDir()
	e := openDatabase(t, url)
	s := newShop(t, e)
	s.send(500)
	link := func(muid store.MUID) {
		who := s.person(7, false)
		who.MUID = muid
		must(e.Resolve(t.Context(), s.merchants[0].ID, who))
	}
	link("first")
	before, after := 0, false
	dst := &countingTarget{Target: directory(t, dir), audited: func() {
		if !after {
			link("second")
		}
	}}
	opt := silent()
	opt.Progress = func(phase move.Phase, _ uint64) {
		if phase == move.Switching {
			link("first")
			before, after = dst.keys, true
		}
	}
	must(move.Run(t.Context(), target(t, url), dst, opt))
	if before < 500 || dst.keys != before+2 {
		t.Errorf("%d links and event_ids were copied before the freeze, and %d in it, want 2: the link, and the one that it replaced", before, dst.keys-before)
	}
	who := must(openLocal(t, dir).Resolve(t.Context(), s.merchants[0].ID, s.person(7, false)))
	if who != "first" {
		t.Errorf("the link leads to %q", who)
	}
}
