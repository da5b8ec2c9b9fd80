package journal

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// However often a link is replaced, compaction keeps only the newest.
func TestCompactionDropsReplacedValues(t *testing.T) {
	dir := t.TempDir()
	m := store.NewMerchantID()
	for start := range 6 { // each close writes a table, and six are enough for a compaction
		j := open(t, dir)
		for i := range 10 {
			id := store.Identity{MUID: store.MUID(fmt.Sprintf("u-%d-%d", start, i))}
			id.Add(store.Email, "ann@example.com")
			if _, err := j.Resolve(ctx, m, id); err != nil {
				t.Fatal(err)
			}
		}
		closeJournal(t, j)
	}

	j := open(t, dir)
	defer closeJournal(t, j)
	for storedVersions(j.db, prefixLink) != 1 { // Flatten leaves out tables that Badger is compacting by itself
		if err := j.db.Flatten(1); err != nil {
			t.Fatal(err)
		}
	}
}

// storedVersions counts the values of a prefix, including those that were replaced.
func storedVersions(db *badger.DB, prefix byte) (n int) {
	txn := db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefix}, AllVersions: true})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		n++
	}
	return n
}

// ignoredErrors quotes Badger's messages, which a new version of Badger may change.
func TestBadgersSourceStillHasTheIgnoredErrors(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dgraph-io/badger/v4").Output()
	if err != nil {
		t.Fatal(err)
	}
	for message := range ignoredErrors {
		found := false
		for _, file := range []string{"levels.go", "value.go"} {
			source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), file))
			if err != nil {
				t.Fatal(err)
			}
			found = found || bytes.Contains(source, []byte(`Errorf("`+message))
		}
		if !found {
			t.Errorf("Badger's source has no error that begins with %q", message)
		}
	}
}
