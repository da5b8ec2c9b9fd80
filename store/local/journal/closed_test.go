package journal

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"mtagd/store"
)

// After a recent clean stop a start does not read the blocks of tables. After an older one, or a kill, it corrects them.
func TestTablesAreCheckedUnlessTheStopWasClean(t *testing.T) {
	for name, c := range map[string]struct {
		before  func(dir string) error
		checked bool
	}{
		"a clean stop":          {func(string) error { return nil }, false},
		"a stop without a note": {func(dir string) error { return os.Remove(filepath.Join(dir, closedName)) }, true},
		"an old stop": {func(dir string) error {
			old := time.Now().Add(-time.Hour)
			return os.Chtimes(filepath.Join(dir, closedName), old, old)
		}, true},
		"a damaged note": {func(dir string) error { return os.WriteFile(filepath.Join(dir, closedName), []byte("0"), 0o600) }, true},
	} {
		dir := t.TempDir()
		j := open(t, dir)
		record(t, j, store.NewMerchantID(), 300)
		closeJournal(t, j)
		if err := c.before(dir); err != nil {
			t.Fatal(err)
		}
		tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatal(tables, err)
		}
		var wrong byte
		change(t, tables[0], func(b []byte) []byte {
			b[10] ^= 1 // in the first block
			wrong = b[10]
			return b
		})
		spare := &setAside{log: quiet}
		if err := precheck(dir, spare, quiet); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, err := os.ReadFile(tables[0])
		if err != nil {
			t.Fatal(err)
		}
		if corrected := b[10] != wrong; corrected != c.checked {
			t.Errorf("%s: corrected %v, want %v", name, corrected, c.checked)
		}
		if _, err := os.Stat(filepath.Join(dir, closedName)); !os.IsNotExist(err) {
			t.Errorf("%s: the note is still there", name)
		}
	}
}
