package journal

import (
	"testing"

	"mtagd/store"
)

func TestNothingIsAcceptedWhileTheDiskIsNearlyFull(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	j.disk.full.Store(true)
	marks := []store.Mark{newMark(m, "PageView", 0, []byte("{}"))}
	if err := j.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if j.Ready() == nil {
		t.Error("Ready gives no error while the disk is nearly full")
	}
	j.disk.full.Store(false)
	if err := j.Record(ctx, marks); err != nil {
		t.Errorf("once there is space again, Record gives %v", err)
	}
	if got := len(since(t, j, 0)); got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

func TestTheDiskWatchFollowsTheFreeSpace(t *testing.T) {
	w := &diskWatch{log: quiet}
	for _, step := range []struct {
		free uint64
		full bool
	}{{minFree, false}, {minFree - 1, true}, {minFree * 2, false}} {
		w.setFree(step.free)
		if full := w.ready() != nil; full != step.full {
			t.Errorf("with %d bytes free, events are refused: %v, want %v", step.free, full, step.full)
		}
	}
}
