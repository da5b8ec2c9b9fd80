package local

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/backup"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/rank"
	"mtagd/store/testenv"
)

var besides = flag.Int("besides", 2, "how many verifications TestVerifyBesideEverything makes")

// Verify and the answers over many events give no false alarm while events are recorded, archived, erased, expired and deleted, while
// tables are merged and removed, and while backups read everything.
func TestVerifyBesideEverything(t *testing.T) {
	dir := t.TempDir()
	opened, err := Open(dir, Options{Log: quiet, ArchiveRun: 5000, eager: true})
	testenv.Check(t, err)
	x := &erasing{t: t, dir: dir, engine: opened.(*engine)}
	p, err := x.AddPartner(ctx, "Acme")
	testenv.Check(t, err)
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
				if err := do(n); err != nil && working.Err() == nil && !isBusyNow(err) {
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
		for err == nil && era.State != store.ErasureDone && working.Err() == nil {
			time.Sleep(time.Millisecond)
			era, err = x.Erasure(ctx, era.ID)
		}
		return err
	})
	beside("expire", 20*time.Millisecond, func(int) error { return x.remover.do(working, x.remover.expire) })
	beside("delete", 500*time.Millisecond, func(n int) error {
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
	src := SourceOf(x.engine)
	b := backup.New(d, src)
	beside("back up", 50*time.Millisecond, func(n int) error {
		_, err := b.Run(working, backup.Options{Log: quiet, Now: time.Now, Small: n%5 > 0})
		return err
	})
	for n := range *besides {
		findNothing(t, x.engine)
		if t.Failed() || endsSoon(t) {
			t.Log("after verifications: ", n+1)
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
	return store.KindOf(err) == store.KindUnavailable || fmt.Sprint(err) == badgerdb.ErrNearlyFull.Error()
}

// A block of the archive that vanishes without a trace is an error in each answer that needs it, and never a shorter answer. Then it is
// noted, and everything is answered without it.
func TestDrillAVanishedBlockIsNoShorterAnswer(t *testing.T) {
	testenv.Drill(t)
	x := newErasing(t)
	live, e, shops := x.dir, x.engine, []store.MerchantID{x.shop, x.newShop()}
	for _, m := range shops {
		for range 10 {
			record(t, e, m, 500)
			archiveAll(t, e)
		}
	}
	closeEngine(t, e)
	key := keyOf(t, shops[0])
	for name, which := range map[string]func(keys [][]byte) [][]byte{
		"the first one": func(keys [][]byte) [][]byte { return keys[:1] },
		"in the middle": func(keys [][]byte) [][]byte { return keys[len(keys)/2 : len(keys)/2+1] },
		"the last one":  func(keys [][]byte) [][]byte { return keys[len(keys)-1:] },
		"all":           func(keys [][]byte) [][]byte { return keys },
	} {
		for answer, ask := range map[string]func(e *engine) error{
			"feed": func(e *engine) error { _, err := feedOf(e, shops[0]); return err },
			"personal data": func(e *engine) error {
				_, err := e.PersonalData(ctx, shops[0], store.Identity{MUID: "u-1"}, true, func(*store.PersonalRecord) error { return nil })
				return err
			},
			"erasure": func(e *engine) error {
				era, err := e.Erase(ctx, shops[0], store.Identity{MUID: "u-1"}, store.ErasureOptions{Claimed: true})
				for err == nil && era.LastError == "" && era.State != store.ErasureDone {
					time.Sleep(time.Millisecond)
					era, err = e.Erasure(ctx, era.ID)
				}
				if err == nil && era.LastError != "" {
					err = errors.New(era.LastError)
				}
				return err
			},
			"verify": func(e *engine) error {
				var found error
				_, err := e.Verify(ctx, store.Verification{Found: func(f store.Finding) {
					if f.Part != store.PartTags {
						found = errors.New(f.Where + " " + f.Problem)
					}
				}, Read: func(store.Part, uint64, uint64) {}})
				return errors.Join(err, found)
			},
			"backup": func(e *engine) error {
				src := SourceOf(e)
				_, err := backup.New(destination(t, filepath.Join(t.TempDir(), "backup")), src).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
				return errors.Join(err, src.Close())
			},
		} {
			t.Run(name+", "+answer, func(t *testing.T) {
				t.Parallel()
				dir := copied(t, live)
				keys, err := keysOfBadger(filepath.Join(dir, "archive"), append([]byte{'B'}, key[:]...))
				testenv.Check(t, err)
				testenv.Check(t, removeKeys(filepath.Join(dir, "archive"), which(keys)))
				e := open(t, dir)
				defer closeEngine(t, e)
				if err := ask(e); err == nil || store.KindOf(err) == store.KindNotFound {
					t.Fatalf("the answer is given with the error %v", err)
				}
				if events, err := feedOf(e, shops[1]); err != nil || len(events) != 5000 {
					t.Errorf("another merchant's feed has %d events, %v", len(events), err)
				}
				if answer == "erasure" {
					return
				}
				until(t, "the feed is answered", func() bool {
					events, err := feedOf(e, shops[0])
					return err == nil && len(events) == everything(t, e, shops[0])[0].Total && lostEvents(e.damage) == 5000-len(events)
				})
			})
		}
	}
}

// A backup fails that lacks new events, and a restore fails when some of the last point's events are missing.
func TestDrillAShortBackupFails(t *testing.T) {
	testenv.Drill(t)
	live, shops := t.TempDir(), []store.MerchantID{store.NewMerchantID(), store.NewMerchantID()}
	e := open(t, live)
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	for round := range 3 {
		for _, m := range shops {
			record(t, e, m, 1000)
		}
		archiveAll(t, e)
		if round == 0 {
			backUp(t, e, live, d, nil)
		}
	}
	record(t, e, shops[0], 10) // some are not archived
	closeEngine(t, e)
	key := keyOf(t, shops[0])
	blocks, err := keysOfBadger(filepath.Join(live, "archive"), append([]byte{'B'}, key[:]...))
	if err != nil || len(blocks) < 3 {
		t.Fatalf("%d blocks, %v", len(blocks), err)
	}
	counts := append([]byte{'M'}, key[:]...)
	for name, gone := range map[string][][]byte{
		"the last block":             blocks[len(blocks)-1:],
		"a new block":                blocks[len(blocks)-2 : len(blocks)-1],
		"the last block, and counts": {blocks[len(blocks)-1], counts},
		"everything of a merchant":   append([][]byte{counts}, blocks...),
		"nothing":                    nil,
	} {
		for _, small := range []bool{false, true} {
			if small && name != "the last block" && name != "a new block" && gone != nil {
				continue // a backup every few seconds does not count all events
			}
			dir := copied(t, live)
			testenv.Check(t, removeKeys(filepath.Join(dir, "archive"), gone))
			e := open(t, dir)
			to := destination(t, filepath.Join(t.TempDir(), "backup"))
			testenv.Check(t, os.CopyFS(fmt.Sprint(to), os.DirFS(fmt.Sprint(d))))
			result, err := tryBackup(e, dir, to, func(o *backup.Options) { o.Small = small })
			closeEngine(t, e)
			if (err == nil) != (gone == nil) {
				t.Errorf("%s, small %v: the backup gives %v", name, small, err)
			}
			if gone != nil || err != nil {
				continue
			}
			point := result.Point
			if point.Parent == "" || point.Count.Live == nil || *point.Count.Live != 6010 {
				t.Fatalf("the point is %+v", point)
			}
			if err := restoreTo(to, point, filepath.Join(t.TempDir(), "restored")); err != nil {
				t.Error(err)
			}
			*point.Count.Live++
			if err := restoreTo(to, point, filepath.Join(t.TempDir(), "restored")); err == nil {
				t.Error("a restore of too few events succeeds")
			}
		}
	}
}

// An erasure that a kill has cut off between the index and the archive is no damage.
func TestACutOffErasureIsNoDamage(t *testing.T) {
	x := newErasing(t)
	x.visit(x.shop, 20, 3)
	archiveAll(t, x.engine)
	x.remover.busy.Lock() // the erasure does not go on by itself
	era := x.erase(byMUID(3), false)
	if err := x.UpdateErasures(ctx, []store.ErasureID{era.ID}, func(era *store.Erasure) []store.IdentityKey {
		era.State, era.UpTo = store.ErasureRemoving, x.journal.Committed()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := x.index.withIndex(func(u *usedIndex) error {
		var keys []rank.Key
		err := u.ScanEvents(ctx, keyOf(t, x.shop), func(k rank.Key, _ string) { keys = append(keys, k) })
		if err == nil {
			_, err = u.Remove(ctx, keyOf(t, x.shop), keys[:3])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	findNothing(t, x.engine)
	if found := withoutTags(closedFindings(t, copied(t, x.dir))); len(found) > 0 {
		t.Errorf("after a kill: %v", found)
	}
	x.remover.busy.Unlock()
	closeEngine(t, x.engine)
}

// What a verification cannot read when it looks a second time is not missing.
func TestHiddenEventsAreNotMissing(t *testing.T) {
	dir, m := t.TempDir(), store.NewMerchantID()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	record(t, e, m, 500)
	archiveAll(t, e)
	until(t, "tables are merged", func() bool { return !e.archiver.reclaiming.Load() })
	key := keyOf(t, m)
	first := true
	if _, _, _, err := e.archive.RewriteSome(ctx, key, store.Position{}, endOfTime, nil, func(archive.Event) bool {
		was := first
		first = false
		return !was // one event is missing indeed
	}, func(archive.Damage) {}); err != nil {
		t.Fatal(err)
	}
	x := e.index.use()
	defer x.users.Done()
	v := verifier{Verification: store.Verification{Found: func(store.Finding) {}, Read: func(store.Part, uint64, uint64) {}}, ctx: ctx,
		stored: e.stored, control: e.Data, index: x.Index, now: e.now(), live: true, since: e.moment()}
	testenv.Check(t, v.readParts())
	damageTableOf(t, filepath.Join(dir, "archive"), append([]byte{'B'}, key[:]...))
	if err := v.compare(); err == nil {
		t.Error("the verification does not fail")
	}
	if len(e.damage.notes) > 0 {
		t.Errorf("events are noted as missing: %v", e.damage.notes)
	}
}
