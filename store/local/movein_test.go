package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/move"
	"mtagd/store/testenv"
)

// A move that is killed while the files get to their places is finished by another call, and until then nobody can open the directory.
func TestDrillAKillAtTheEndOfAMove(t *testing.T) {
	testenv.Drill(t)
	files := []string{"events", "archive", "index.db", "control.db"}
	for moved := range len(files) + 2 {
		dir, log := filepath.Join(t.TempDir(), "new"), quiet
		d, err := NewDirectory(dir, log)
		if err != nil {
			t.Fatal(err)
		}
		partner := store.Partner{ID: store.PartnerID(uuid.NewString()), Name: "Acme", CreatedAt: time.Now().UTC()}
		merchant := move.Merchant{Merchant: store.Merchant{ID: store.MerchantID(uuid.NewString()), Partner: partner.ID, Name: "Shop", CreatedAt: partner.CreatedAt}, Ordinal: 1}
		key, err := codec.NewMerchantKey(merchant.ID)
		if err != nil {
			t.Fatal(err)
		}
		// Positions with gaps, and far ahead of this machine's clock.
		last := uint64(time.Now().Add(time.Hour).UnixMicro())
		batch := &move.Batch{UpTo: last, Events: []move.Event{
			{Merchant: key, At: codec.Position{Seq: last - 5, Index: 3}, Time: 1, Tag: "cs_1", Name: "View", MUID: []byte("m"), Raw: []byte("{}")},
			{Merchant: key, At: codec.Position{Seq: last - 5, Index: 700}, Time: 2, Tag: "cs_1", Name: "View", MUID: []byte("m"), Raw: []byte("{}")},
		}}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%d files in their places: %v", moved, err)
			}
		}
		_, err = d.Begin(t.Context(), "source")
		must(err)
		must(d.Add(t.Context(), batch))
		must(d.Index(t.Context()))
		must(d.SetControl(t.Context(), &move.Control{Retention: store.Forever, Partners: []store.Partner{partner}, Merchants: []move.Merchant{merchant}}))
		if err := d.Finish(t.Context()); err == nil {
			t.Error("a directory that is not ready can be finished")
		}
		place, err := d.Ready(t.Context(), last)
		must(err)
		for _, name := range files[:min(moved, len(files))] {
			must(os.Rename(filepath.Join(dir, movingDir, name), filepath.Join(dir, name)))
		}
		if moved > len(files) {
			must(os.Remove(filepath.Join(dir, movingDir, "ready")))
		}
		if _, err := Open(dir, Options{Log: log}); err == nil || !strings.Contains(err.Error(), "has not finished") {
			t.Errorf("%d files in their places: the directory opens: %v", moved, err)
		}
		elsewhere := dir + " mounted elsewhere"
		must(os.Rename(dir, elsewhere))
		dir = elsewhere
		again, err := NewDirectory(dir, log)
		must(err)
		here, err := again.Place()
		must(err)
		if !place.Is(here) || here.Name == place.Name {
			t.Errorf("%d files in their places: the directory is %+v, and was %+v", moved, here, place)
		}
		must(again.Finish(t.Context()))
		must(again.Finish(t.Context()))
		if finished, err := again.Place(); err != nil || finished != here {
			t.Errorf("the finished directory is %+v, %v, and was %+v", finished, err, here)
		}
		e, err := Open(dir, Options{Log: log})
		must(err)
		if id, err := MoveFrom(e).ID(t.Context()); err != nil || id != place.ID {
			t.Errorf("the directory is moved as %s, %v, want %s", id, err, place.ID)
		}
		if _, err := again.Place(); !errors.Is(err, store.ErrInUse) {
			t.Errorf("the place of a directory that is in use: %v", err)
		}
		mark := store.Mark{Merchant: merchant.ID, Tag: "cs_1", Name: "View", Identity: store.Identity{MUID: "m"}, Time: time.Now(), Raw: []byte("{}")}
		must(e.Record(t.Context(), []store.Mark{mark}))
		page, err := e.Events(t.Context(), store.Query{Merchant: merchant.ID, Limit: 10})
		must(err)
		if page.Total != 3 || len(page.Events) != 3 {
			t.Errorf("%d files in their places: %d events of %d are listed, want 3", moved, len(page.Events), page.Total)
		}
		// The new event comes after those that were moved.
		n := 0
		_, err = e.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{merchant.ID}, After: codec.EndOf(last).Cursor()}, func(*store.Received) bool { n++; return true })
		must(err)
		if n != 1 {
			t.Errorf("after the last moved event a feed has %d events, want 1", n)
		}
		must(e.Close())
	}
}
