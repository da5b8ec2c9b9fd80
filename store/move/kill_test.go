package move_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/move"
	"mtagd/store/postgres/pgtest"
)

var (
	kills  = flag.Int("kills", 6, "how often TestKilledMoves cuts a move off")
	events = flag.Int("events", 1500, "how many events it moves")
)

// cutTarget is a target whose connections are all cut at one call.
type cutTarget struct {
	move.Target
	cut  func()
	left int // calls until then; 0: Ready
}

var errCut = errors.New("cut off")

func (c *cutTarget) call() error {
	if c.left == 0 {
		return nil
	}
	if c.left--; c.left == 0 {
		c.cut()
		return errCut
	}
	return nil
}

func (c *cutTarget) Add(ctx context.Context, b *move.Batch) error {
	if c.left%2 == 0 { // some are cut off after the commit, whose answer is lost
		return errors.Join(c.Target.Add(ctx, b), c.call())
	}
	return errors.Join(c.call(), c.Target.Add(ctx, b))
}

func (c *cutTarget) AddKeys(ctx context.Context, keys []move.Key) error {
	return errors.Join(c.Target.AddKeys(ctx, keys), c.call())
}

func (c *cutTarget) AddAudit(ctx context.Context, entries []store.AuditEntry) error {
	return errors.Join(c.Target.AddAudit(ctx, entries), c.call())
}

func (c *cutTarget) SetControl(ctx context.Context, control *move.Control) error {
	return errors.Join(c.call(), c.Target.SetControl(ctx, control))
}

func (c *cutTarget) Ready(ctx context.Context, upTo uint64) (move.Place, error) {
	c.left = max(c.left, 1)
	name, err := c.Target.Ready(ctx, upTo)
	return name, errors.Join(err, c.call())
}

// A move that is cut off again and again, while events come in and persons are erased, ends with everything once.
func TestKilledMoves(t *testing.T) {
	url := pgtest.Database(t)
	e := openLocal(t, t.TempDir())
	s := newShop(t, e)
	s.send(*events)
	who := s.person(55, true)
	must(e.Resolve(t.Context(), s.merchants[2].ID, who)) // links that are erased when the target has them
	opt := silent()
	opt.Portion = max(*events/10, 100)
	for i := range *kills {
		dst := &cutTarget{target(t, url), func() { pgtest.Disconnect(t, url) }, 1 + rand.IntN(6)}
		if i == *kills/2 {
			dst.left = 0
		}
		if _, err := move.Run(t.Context(), local.MoveFrom(e), dst, opt); !errors.Is(err, errCut) {
			t.Fatalf("move %d, to be cut off: %v", i, err)
		}
		if i == *kills/2 {
			must(e.Erase(t.Context(), s.merchants[2].ID, store.Identity{MUID: who.MUID}, store.ErasureOptions{}))
			awaitErasure(t, e, s.merchants[2].ID)
		}
		s.send(100) // the source goes on
	}
	want := s.answers(e)
	began := time.Now()
	result, err := move.Run(t.Context(), local.MoveFrom(e), target(t, url), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d events in %v, frozen for %v", result.Events, time.Since(began), result.Frozen)
	s.expectSame("the database", want, s.answers(openDatabase(t, url)))
}

// leakySource misses an event.
type leakySource struct{ move.Source }

func (l leakySource) Events(ctx context.Context, after, upTo uint64, use func(*move.Event) error) error {
	n := 0
	return l.Source.Events(ctx, after, upTo, func(e *move.Event) error {
		if n++; n == 7 {
			return nil
		}
		return use(e)
	})
}

func TestEventsThatCannotBeReadAreNoticed(t *testing.T) {
	e := openLocal(t, t.TempDir())
	newShop(t, e).send(100)
	_, err := move.Run(t.Context(), leakySource{local.MoveFrom(e)}, target(t, pgtest.Database(t)), silent())
	if err == nil || !strings.Contains(err.Error(), "could be read") {
		t.Errorf("a move that misses an event gives %v", err)
	}
	must(e.AddPartner(t.Context(), "goes on"))
}

// A database that has other data is not touched.
func TestTargetMustBeEmpty(t *testing.T) {
	url := pgtest.Database(t)
	db := openDatabase(t, url)
	must(db.AddPartner(t.Context(), "Somebody"))
	e := openLocal(t, t.TempDir())
	if _, err := move.Run(t.Context(), local.MoveFrom(e), target(t, url), silent()); err == nil {
		t.Error("a move into a database with a partner succeeds")
	}
	must(e.AddPartner(t.Context(), "goes on"))
}

// A source that crashes between two runs may lose what the first run has copied: what was visible, but not on its standbys. The next run
// removes it from the target.
func TestASourceThatHasLostWhatWasCopied(t *testing.T) {
	lost := []string{
		"DELETE FROM dedup WHERE (merchant, key) IN (SELECT merchant, key FROM dedup ORDER BY seen DESC LIMIT 1)",
		"DELETE FROM link WHERE (merchant, key) IN (SELECT merchant, key FROM link LIMIT 1)",
		"DELETE FROM audit WHERE id = (SELECT max(id) FROM audit)",
	}
	url, dir := pgtest.Database(t), t.TempDir()
	e := openDatabase(t, url)
	s := newShop(t, e)
	closeEngine(t, e) // which stores when keys were last used
	e = openDatabase(t, url)
	s.Engine = e
	for _, sql := range lost {
		s.send(100)
		dst := directory(t, dir)
		if _, err := move.Run(t.Context(), target(t, url), &endTarget{Target: dst, cut: true}, silent()); !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if err := dst.Close(); err != nil {
			t.Fatal(err)
		}
		exec(t, url, sql)
		for e.Ready() != nil { // until it learns that the move has failed
			time.Sleep(time.Millisecond)
		}
		must2(e.IssueKey(t.Context(), s.partners[0].ID, store.KeyOptions{Name: "later"})) // gets the number of the lost entry of the audit log
	}
	want := s.answers(e)
	must(move.Run(t.Context(), target(t, url), directory(t, dir), silent()))
	s.expectSame("the directory", want, s.answers(openLocal(t, dir)))
}

// exec runs a statement in a database.
func exec(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), sql)
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}
