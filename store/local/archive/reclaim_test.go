package archive

import (
	"context"
	"crypto/rand"
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
	removed, err := a.Rewrite(context.Background(), m, store.Position{}, store.Position{Seq: events / 2}, func(Event) bool { return false }, func(d Damage) { t.Error(d) }, func() {})
	if err != nil || removed != events/2 {
		t.Fatal(removed, err)
	}
	testenv.Check(t, a.Reclaim(t.Context(), func() {}))
	if after, dead := a.Sizes(); after > before*6/10 {
		t.Errorf("%d bytes of tables became %d, of which %d are dead", before, after, dead)
	}
}
