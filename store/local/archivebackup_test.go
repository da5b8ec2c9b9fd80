package local

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/testenv"
)

// Each point restores to what the data directory was at its moment, also when events move to the archive between two points,
// blocks are written again, and all events of a merchant are removed.
func TestDrillEveryPointOfAnArchiveRestores(t *testing.T) {
	testenv.Drill(t)
	for _, small := range []bool{false, true} {
		t.Run(fmt.Sprintf("small=%v", small), func(t *testing.T) {
			dir, shops := t.TempDir(), newShops(3)
			e := open(t, dir)
			defer func() { closeEngine(t, e) }()
			d := destination(t, filepath.Join(t.TempDir(), "backup"))
			src := SourceOf(e)
			b := backup.New(d, src)
			var points []*backup.Manifest
			var want []map[store.MerchantID][2]store.Page
			for round := range 7 {
				now := recordMany(t, e, shops, 10)
				switch round {
				case 1, 2, 4:
					archiveAll(t, e)
				case 3:
					archiveAll(t, e)
					drop(t, e, shops[0])
					now = listAll(t, e, shops)
				case 5:
					archiveAll(t, e)
					testenv.Check(t, e.archive.Purge(ctx, func() {}))
				}
				result, err := b.Run(ctx, backup.Options{Log: quiet, Now: time.Now, Small: small})
				testenv.Check(t, err)
				points, want = append(points, result.Point), append(want, now)
			}
			testenv.Check(t, src.Close())
			for i, m := range points {
				copied := restored(t, d, m)
				if got := listAll(t, copied, shops); !reflect.DeepEqual(got, want[i]) {
					t.Errorf("point %d: the listings are not the same", i)
				}
				findNothing(t, copied)
			}
			if points[2].Parent == "" || points[2].Archive == 0 || points[6].Parent == "" {
				t.Error("points are bases that could build on others")
			}
			if points[5].Parent != "" {
				t.Error("a point builds on one with events that were purged since")
			}
		})
	}
}

// After a restore, the erasures that the backup knows are done again, and those that were not done continue.
func TestARestoreRepeatsErasures(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 20, 3)
	archiveAll(t, x.engine)
	done := x.await(x.erase(byMUID(3), true).ID)
	x.remover.busy.Lock() // the next erasure does not begin
	asked := x.erase(byMUID(4), true)
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	src := SourceOf(x.engine)
	result, err := backup.New(d, src).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
	testenv.Check(t, errors.Join(err, src.Close()))
	x.remover.busy.Unlock()
	closeEngine(t, x.engine)
	x.engine = restored(t, d, result.Point)
	for _, id := range []store.ErasureID{done.ID, asked.ID} {
		if era := x.await(id); !era.FinishedAt.After(done.FinishedAt) {
			t.Errorf("the erasure %s was finished at %s, before the restore", id, era.FinishedAt)
		}
	}
	if n := x.total(x.shop); n != 54 {
		t.Errorf("%d events are listed, want 54", n)
	}
	if found := filesWith(t, x.engine.dir, wordOf(3), wordOf(4)); len(found) > 0 {
		t.Error(found)
	}
	mark := newVisit(x.shop, 4, 9)
	testenv.Check(t, x.Record(ctx, []store.Mark{mark}))
	if n := x.total(x.shop); n != 54 {
		t.Errorf("an event of an erased person was recorded: %d", n)
	}
}

// A backup of a directory in which a kill has left chunks that are archived already can be restored.
func TestABackupAfterAKillOfTheArchiver(t *testing.T) {
	dir, m := t.TempDir(), store.NewMerchantID()
	e := open(t, dir)
	record(t, e, m, 3000)
	testenv.Check(t, e.index.now.Wait(ctx, e.journal.Committed()))
	release := e.archiver.PauseMoves()
	testenv.Check(t, e.index.now.Merge(ctx))
	upTo, err := e.index.now.StoredUpTo()
	testenv.Check(t, err)
	run, last, _, err := e.archiver.read(upTo, func() {})
	if err == nil {
		err = e.archive.Add(run, last, func() {})
	}
	testenv.Check(t, err)
	killed := copied(t, dir)
	release()
	closeEngine(t, e)
	src, err := OpenSource(killed, Options{Log: quiet})
	testenv.Check(t, err)
	d := destination(t, t.TempDir())
	result, err := backup.New(d, src).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
	testenv.Check(t, errors.Join(err, src.Close()))
	copied := restored(t, d, result.Point)
	if page := everything(t, copied, m)[0]; page.Total != 3000 {
		t.Errorf("%d events were restored, want 3000", page.Total)
	}
}

// drop removes all events of a merchant.
func drop(t *testing.T, e *engine, m store.MerchantID) {
	t.Helper()
	k, err := store.NewMerchantKey(m)
	testenv.Check(t, err)
	release := e.archiver.PauseMoves()
	defer release()
	testenv.Check(t, e.index.now.Drop(ctx, k))
	if removed, err := e.archive.DropMerchant(ctx, k); err != nil || removed == 0 {
		t.Fatalf("%d events were removed, %v", removed, err)
	}
}
