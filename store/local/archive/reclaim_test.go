package archive

import (
	"crypto/rand"
	"runtime"
	"sync"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

// The space of events that were removed comes back when it is a quarter of all.
func TestDrillReclaimGivesBackTheSpaceOfRemovedEvents(t *testing.T) {
	testenv.Drill(t)
	a := openArchive(t, t.TempDir())
	defer closeArchive(t, a)
	const events = 150_000
	body := make([]byte, 500)
	m := merchant(1)
	for seq := uint64(1); seq <= events; {
		var run Run
		for range 5000 {
			rand.Read(body)
			run.Append(m, store.Position{Seq: seq}, body)
			seq++
		}
		testenv.Check(t, a.Add(&run, seq-1, func() {}))
	}
	testenv.Check(t, a.Reclaim(t.Context(), func() {}))
	before, _ := a.Sizes()
	removed, err := removeBetween(a, m, store.Position{}, store.Position{Seq: events / 2}, func(Event) bool { return false }, func(d Damage) { t.Error(d) })
	if err != nil || removed != events/2 {
		t.Fatal(removed, err)
	}
	testenv.Check(t, a.Reclaim(t.Context(), func() {}))
	if after, dead := a.Sizes(); after > before*6/10 {
		t.Errorf("%d bytes of tables became %d, of which %d are dead", before, after, dead)
	}
}

// A purge does not wait until tables are merged: it does the same itself.
func TestAPurgeEndsAReclaim(t *testing.T) {
	a := openArchive(t, t.TempDir())
	defer closeArchive(t, a)
	m, r := model{}, testenv.Random(t)
	for seq := uint64(1); !a.db.NeedsMerge(); {
		seq = m.add(t, a, r, 100, 3, seq)
	}
	begun, goOn := make(chan struct{}), make(chan struct{})
	paces := 0
	var reclaim sync.WaitGroup
	reclaim.Go(func() {
		if err := a.Reclaim(ctx, func() {
			if paces++; paces == 1 {
				close(begun)
				<-goOn
			}
		}); err != nil {
			t.Error(err)
		}
	})
	<-begun
	var purge sync.WaitGroup
	purge.Go(func() {
		if err := a.Purge(ctx, func() {}); err != nil {
			t.Error(err)
		}
	})
	for a.purges.Load() == 0 {
		runtime.Gosched()
	}
	close(goOn)
	reclaim.Wait()
	if paces != 1 {
		t.Errorf("the reclaim has gone on for %d pieces", paces)
	}
	purge.Wait()
	m.check(t, a)
}
