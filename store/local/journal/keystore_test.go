package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mtagd/store"
)

// When links are rebuilt, removed ones may be back. So whoever has to remove them again hears of it before the rebuilt ones count, and when
// that fails, the damaged ones stay.
func TestRebuiltLinksAreAnnouncedBeforeTheyCount(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if err := j.Record(ctx, []store.Mark{{Merchant: store.NewMerchantID(), Name: "View", DedupeID: "1", Identity: store.Identity{MUID: "m"}, Raw: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	if err := os.Truncate(filepath.Join(keysDir(dir), "g1", "000001.sst"), 200); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("cannot be noted")
	for _, result := range []error{failure, nil} {
		called := 0
		opened, err := Open(dir, Options{Log: quiet, Now: time.Now, Rebuilding: func() error { called++; return result }})
		if !errors.Is(err, result) || called != 1 {
			t.Fatalf("Rebuilding was called %d times; Open gives %v, want %v", called, err, result)
		}
		if err == nil {
			closeJournal(t, start(t, opened))
		}
	}
}
