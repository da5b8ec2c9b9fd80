package move_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/move"
	"mtagd/store/postgres"
	"mtagd/store/postgres/pgtest"
)

// endTarget is a target whose last calls can fail.
type endTarget struct {
	move.Target
	cut     bool // after Ready
	bounded bool // Finish had a deadline
}

func (e *endTarget) Ready(ctx context.Context, upTo uint64) (move.Place, error) {
	name, err := e.Target.Ready(ctx, upTo)
	if e.cut {
		err = errors.Join(err, errCut)
	}
	return name, err
}

func (e *endTarget) Finish(ctx context.Context) error {
	_, e.bounded = ctx.Deadline()
	return e.Target.Finish(ctx)
}

// A follower of many merchants has a cursor from the time between a move that was cut off at its end and the next one. It misses nothing.
func TestTheFeedAfterAMoveThatWasCutOff(t *testing.T) {
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
			mark := store.Mark{Merchant: m, Tag: tags[i], Name: "PageView", Time: time.Now(), Raw: []byte("{}")}
			mark.Identity.MUID = "muid"
			if err := e.Record(t.Context(), []store.Mark{mark}); err != nil {
				t.Fatal(err)
			}
		}
	}
	send()
	dst := &endTarget{Target: target(t, url), cut: true}
	if _, err := move.Run(t.Context(), local.MoveFrom(e), dst, silent()); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	at := must(e.Latest(t.Context()))
	send()
	dst.cut = false
	if _, err := move.Run(t.Context(), local.MoveFrom(e), dst, silent()); err != nil {
		t.Fatal(err)
	}
	if !dst.bounded {
		t.Error("a target that does not answer keeps the source frozen for ever")
	}
	n := 0
	must(openDatabase(t, url).Feed(t.Context(), store.FeedQuery{Merchants: merchants, After: at}, func(*store.Received) bool { n++; return true }))
	if n != len(merchants) {
		t.Errorf("the feed has %d events, want %d", n, len(merchants))
	}
}

// A source that cannot be marked goes on.
func TestASourceThatCannotBeMarked(t *testing.T) {
	dir := t.TempDir()
	e := openLocal(t, dir)
	must(e.AddPartner(t.Context(), "Acme"))
	if err := os.MkdirAll(filepath.Join(dir, "moved.json", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := move.Run(t.Context(), local.MoveFrom(e), target(t, pgtest.Database(t)), silent()); err == nil {
		t.Error("the move says that it has succeeded")
	}
	must(e.AddPartner(t.Context(), "goes on"))
}

func TestMoveIntoADistributedDatabase(t *testing.T) {
	url := pgtest.NewCitus(t, nil).EmptyDatabase(t)
	if _, err := postgres.Distribute(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	e := openLocal(t, t.TempDir())
	s := newShop(t, e)
	s.send(500)
	want := s.answers(e)
	dst := &endTarget{Target: target(t, url), cut: true}
	if _, err := move.Run(t.Context(), local.MoveFrom(e), dst, silent()); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	if _, err := move.Run(t.Context(), local.MoveFrom(e), dst.Target, silent()); err != nil {
		t.Fatal(err)
	}
	db := openDatabase(t, url)
	s.expectSame("the database", want, s.answers(db))
	s.Engine = db
	s.send(500)
	want = s.answers(db)
	dir := t.TempDir()
	must(move.Run(t.Context(), target(t, url), directory(t, dir), silent())) // and back
	s.expectSame("the directory", want, s.answers(openLocal(t, dir)))
}
