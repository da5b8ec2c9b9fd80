package local

import (
	"testing"

	"mtagd/store"
)

func TestANearlyFullDiskTakesNothing(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	record(t, e, m, 1)
	e.disk.full.Store(true)
	marks := []store.Mark{{Merchant: m, Tag: "cs_a", Name: "PageView", Identity: store.Identity{MUID: "u-1"}, Raw: []byte("{}")}}
	if err := e.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if e.Ready() == nil {
		t.Error("the engine says that it is ready")
	}
	e.disk.full.Store(false)
	if err := e.Record(ctx, marks); err != nil {
		t.Errorf("with space again, Record gives %v", err)
	}
	if got := everything(t, e, m)[0].Total; got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

func TestTheDiskWatchFollowsTheFreeSpace(t *testing.T) {
	w := &diskWatch{log: quiet}
	for _, step := range []struct {
		free uint64
		full bool
	}{{minFree, false}, {minFree - 1, true}, {minFree * 2, false}} {
		w.note(step.free)
		if full := w.ready() != nil; full != step.full {
			t.Errorf("with %d bytes free the disk counts as full: %v", step.free, full)
		}
	}
}
