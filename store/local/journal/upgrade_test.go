package journal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/testenv"
)

// formerJournal writes a journal of format 4, and returns its merchant and how many events it has.
func formerJournal(t *testing.T, dir string) (m store.MerchantID, events int) {
	t.Helper()
	db, err := badger.OpenManaged(formerOptions(dir).WithLogger(nil))
	testenv.Check(t, err)
	m = store.NewMerchantID()
	key, err := codec.NewMerchantKey(m)
	testenv.Check(t, err)
	var ann store.Identity
	ann.Add(store.Email, "ann@example.com")
	set := func(version uint64, key, value []byte) {
		t.Helper()
		txn := db.NewTransactionAt(version, true)
		defer txn.Discard()
		testenv.Check(t, txn.Set(key, value))
		testenv.Check(t, txn.CommitAt(version, nil))
	}
	set(1, []byte{prefixFormat}, []byte("4"))
	set(2, appendLinkKey(nil, key, ann.Keys()[0]), []byte("u-ann"))
	for seq := uint64(10); seq < 400; seq += 2 {
		mark := newMark(m, "Purchase", int(seq), []byte(`{"from":"before"}`))
		chunk, _ := appendEvent(nil, key, &mark, "u-ann")
		chunk, _ = appendEvent(chunk, key, &mark, "u-ann")
		events += 2
		set(seq+1, appendChunkKey(nil, seq), packChunk(nil, chunk))
	}
	testenv.Check(t, db.Close())
	return m, events
}

// A journal of the version before is taken over, whenever a kill comes between.
func TestAJournalOfTheVersionBefore(t *testing.T) {
	for at, kill := range map[string]func(t *testing.T, dir string){
		"at once": func(*testing.T, string) {},
		"before the new one is complete": func(t *testing.T, dir string) {
			testenv.Check(t, os.MkdirAll(filepath.Join(dir, upgradeDir, "log"), 0o700))
		},
		"when it is complete": func(t *testing.T, dir string) {
			testenv.Check(t, rewriteFormer(dir, filepath.Join(dir, upgradeDir), quiet))
			testenv.Check(t, durable.ReplaceFile(filepath.Join(dir, upgradeDir, completeMark), nil))
		},
		"when the former one is half removed": func(t *testing.T, dir string) {
			testenv.Check(t, rewriteFormer(dir, filepath.Join(dir, upgradeDir), quiet))
			testenv.Check(t, durable.ReplaceFile(filepath.Join(dir, upgradeDir, completeMark), nil))
			testenv.Check(t, os.Remove(filepath.Join(dir, formerFile)))
			testenv.Check(t, os.Rename(filepath.Join(dir, upgradeDir, "log"), logDir(dir)))
		},
	} {
		t.Run(at, func(t *testing.T) {
			dir := t.TempDir()
			m, events := formerJournal(t, dir)
			kill(t, dir)
			for range 2 {
				j := open(t, dir)
				if got := since(t, j, 0); len(got) != events {
					t.Errorf("%d events, want %d", len(got), events)
				}
				var ann store.Identity
				ann.Add(store.Email, "ann@example.com")
				if muid, err := j.Resolve(ctx, m, ann); muid != "u-ann" || err != nil {
					t.Errorf("the link leads to %q, %v", muid, err)
				}
				key, _ := codec.NewMerchantKey(m)
				if _, found, err := j.keys.get(appendLinkedKey(nil, key, store.MUIDKey("u-ann"))); !found || err != nil {
					t.Errorf("it is not known that the muid was linked: %v", err)
				}
				record(t, j, m, 1)
				events++
				closeJournal(t, j)
			}
			left, err := filepath.Glob(filepath.Join(dir, "*.*"))
			if err != nil || len(left) > 0 {
				t.Errorf("the former journal has left %v, %v", left, err)
			}
		})
	}
}
