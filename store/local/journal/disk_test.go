package journal

import (
	"sync/atomic"
	"testing"

	"mtagd/store"
)

// withFreeSpace makes the journal believe that this much is free.
func withFreeSpace(j *testJournal, bytes uint64) (free *atomic.Uint64) {
	free = new(atomic.Uint64)
	free.Store(bytes)
	j.disk.looking.Lock()
	j.disk.freeSpace = func() (uint64, error) { return free.Load(), nil }
	j.disk.looking.Unlock()
	j.disk.look()
	return free
}

func TestNothingIsAcceptedWhileTheDiskIsNearlyFull(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	free := withFreeSpace(j, minFree-1)
	marks := []store.Mark{newMark(m, "PageView", 0, []byte("{}"))}
	if err := j.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if j.Ready() == nil {
		t.Error("Ready gives no error while the disk is nearly full")
	}
	if n := j.FreeSpace(); n != 0 {
		t.Errorf("%d bytes are free for events, want 0", n)
	}
	free.Store(minFreeAgain)
	j.disk.look()
	if err := j.Record(ctx, marks); err != nil {
		t.Errorf("once there is space again, Record gives %v", err)
	}
	if got := len(since(t, j, 0)); got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

// However fast events come, they take no more than what was free at the last look.
func TestAFloodIsRefusedBeforeItFillsTheDisk(t *testing.T) {
	const size, fits = 1 << 20, 10
	w := &diskWatch{log: quiet, freeSpace: func() (uint64, error) { return minFree + fits*size*costFactor, nil }}
	w.look()
	for i := range fits {
		if err := w.admit(size); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if err := w.admit(size); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("with what was admitted, the disk is nearly full, but the next request gives %v", err)
	}
	// What is written has taken its space: it is in the figure of the next look, and no longer counted.
	w.finish(3 * size)
	w.look()
	for i := range 3 {
		if err := w.admit(size); err != nil {
			t.Errorf("after three requests are written, request %d gives %v", i, err)
		}
	}
	if err := w.admit(size); err == nil {
		t.Error("requests in flight are not counted after a look")
	}
}

func TestTheDiskWatchFollowsTheFreeSpace(t *testing.T) {
	var free uint64
	w := &diskWatch{log: quiet, freeSpace: func() (uint64, error) { return free, nil }}
	for _, step := range []struct {
		free uint64
		full bool
	}{{minFree, false}, {minFree - 1, true}, {minFreeAgain - 1, true}, {minFreeAgain, false}, {minFree, false}} {
		free = step.free
		w.look()
		if full := w.admit(0) != nil; full != step.full {
			t.Errorf("with %d bytes free, events are refused: %v, want %v", step.free, full, step.full)
		}
	}
}
