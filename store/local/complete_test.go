package local

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
)

var besides = flag.Int("besides", 15, "how many verifications TestVerifyBesideEverything makes")

// Verify and the answers over many events give no false alarm while events are recorded, archived, erased, expired and deleted, while
// tables are merged and removed, and while backups read everything.
func TestVerifyBesideEverything(t *testing.T) {
	dir := t.TempDir()
	opened, err := Open(dir, Options{Log: quiet, archiveRun: 5000, eager: true})
	if err != nil {
		t.Fatal(err)
	}
	x := &erasing{t: t, dir: dir, engine: opened.(*engine)}
	p, err := x.AddPartner(ctx, "Acme")
	if err != nil {
		t.Fatal(err)
	}
	x.partner = p.ID
	var shops []store.MerchantID
	for range 3 {
		shops = append(shops, x.newShop())
	}
	x.shop = shops[0]
	if _, err := x.UpdateMerchant(ctx, shops[1], func(m store.Merchant) store.Merchant { m.Retention = 1; return m }); err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var work sync.WaitGroup
	beside := func(what string, pause time.Duration, do func(n int) error) {
		work.Go(func() {
			for n := 0; working.Err() == nil; n++ {
				if err := do(n); err != nil && !isBusyNow(err) {
					t.Errorf("%s: %v", what, err)
					return
				}
				select { // else it would take all of the processors
				case <-time.After(pause):
				case <-working.Done():
				}
			}
		})
	}
	beside("record", 10*time.Millisecond, func(n int) error {
		var marks []store.Mark
		for i := range 20 {
			m := newVisit(shops[(n+i)%3], rand.IntN(30), n*20+i)
			m.Time = time.Now().Add(-time.Duration(rand.IntN(48)) * time.Hour)
			marks = append(marks, m)
		}
		return x.Record(ctx, marks)
	})
	beside("erase", 0, func(n int) error {
		era, err := x.Erase(ctx, x.shop, byMUID(n%30), store.ErasureOptions{})
		if err == nil {
			x.await(era.ID)
		}
		return err
	})
	beside("expire", 20*time.Millisecond, func(int) error { return x.life.do(ctx, x.life.expire) })
	beside("delete", 50*time.Millisecond, func(n int) error {
		m := x.newShop()
		x.visit(m, 20, 2)
		_, err := x.DeleteMerchant(ctx, m)
		return err
	})
	beside("merge", 5*time.Millisecond, func(int) error { return errors.Join(x.index.now.Merge(ctx), x.archiver.reclaim()) })
	beside("personal data", 10*time.Millisecond, func(n int) error {
		_, err := x.PersonalData(ctx, shops[n%3], byMUID(n%30), false, func(*store.PersonalRecord) error { return nil })
		return err
	})
	beside("feed", 20*time.Millisecond, func(n int) error { _, err := feedOf(x.engine, shops[n%3]); return err })
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	src := SourceOf(x.engine, dir, Options{Log: quiet})
	b := backup.New(d, src)
	beside("back up", 50*time.Millisecond, func(n int) error {
		_, err := b.Run(working, backup.Options{Log: quiet, Now: time.Now, Small: n%5 > 0})
		if working.Err() != nil {
			return nil
		}
		return err
	})
	for range *besides {
		findNothing(t, x.engine)
		if t.Failed() || endsSoon(t) {
			break
		}
	}
	stop()
	work.Wait()
	findNothing(t, x.engine)
	if len(x.damage.notes) > 0 {
		t.Errorf("damage was noted: %v", x.damage.notes)
	}
	if err := src.Close(); err != nil {
		t.Error(err)
	}
	closeEngine(t, x.engine)
	if found := withoutTags(closedFindings(t, dir)); len(found) > 0 {
		t.Errorf("after the stop: %v", found)
	}
}

// isBusyNow reports whether an error says that something is done later.
func isBusyNow(err error) bool {
	return store.KindOf(err) == store.KindUnavailable || fmt.Sprint(err) == errNoSpace.Error()
}
