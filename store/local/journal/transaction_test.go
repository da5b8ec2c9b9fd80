package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/google/uuid"

	"mtagd/store"
)

// Earlier versions remembered an event_id without the event's name. After an upgrade no event within DedupeWindow is
// recorded twice.
func TestEventIDsOfEarlierVersionsStillCount(t *testing.T) {
	dir := t.TempDir()
	m, other := store.NewMerchantID(), store.NewMerchantID()
	rememberAsBefore(t, dir, m, map[string]time.Duration{
		"yesterday": 24 * time.Hour,
		"last week": store.DedupeWindow + time.Hour,
	})
	j := open(t, dir)
	defer closeJournal(t, j)
	for _, c := range []struct {
		merchant store.MerchantID
		name, id string
		want     store.Outcome
	}{
		{m, "Purchase", "yesterday", store.Duplicate},
		{m, "Junk", "yesterday", store.Duplicate}, // its name is not known
		{m, "Purchase", "last week", store.Recorded},
		{m, "Purchase", "last week", store.Duplicate},
		{m, "Junk", "last week", store.Recorded},
		{m, "Purchase", "today", store.Recorded},
		{m, "Junk", "today", store.Recorded},
		{other, "Purchase", "yesterday", store.Recorded},
	} {
		marks := []store.Mark{newMark(c.merchant, c.name, 0, []byte("{}"))}
		marks[0].DedupeID = c.id
		if err := j.Record(ctx, marks); err != nil {
			t.Fatal(err)
		}
		if got := marks[0].Outcome; got != c.want {
			t.Errorf("%s with event_id %q has outcome %d, want %d", c.name, c.id, got, c.want)
		}
	}
}

// rememberAsBefore writes event_ids of events received some time ago, in the form of earlier versions.
func rememberAsBefore(t *testing.T, dir string, m store.MerchantID, ago map[string]time.Duration) {
	t.Helper()
	db, err := badger.OpenManaged(formerOptions(dir).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	txn := db.NewTransactionAt(2, true)
	defer txn.Discard()
	for id, ago := range ago {
		merchant, sum := uuid.MustParse(string(m)), sha256.Sum256([]byte(id))
		key := append(append([]byte("D"), merchant[:]...), sum[:16]...)
		value := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(-ago).UnixMicro()))
		if err := txn.SetEntry(badger.NewEntry(key, value).WithTTL(8*24*time.Hour - ago)); err != nil {
			t.Fatal(err)
		}
	}
	if err := txn.Set([]byte{prefixFormat}, []byte("4")); err != nil {
		t.Fatal(err)
	}
	if err := txn.CommitAt(2, nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOldEventIDsAreLookedUpOnlyWhereThereAreSome(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	mark := newMark(store.NewMerchantID(), "Purchase", 0, []byte("{}"))
	mark.DedupeID = "order-1"
	if err := j.Record(ctx, []store.Mark{mark}); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	j = open(t, dir)
	if j.committer.oldDedupe {
		t.Error("a directory without event_ids of earlier versions seems to have some")
	}
	closeJournal(t, j)
	dir = t.TempDir()
	rememberAsBefore(t, dir, mark.Merchant, map[string]time.Duration{"yesterday": 24 * time.Hour})
	j = open(t, dir)
	defer closeJournal(t, j)
	if !j.committer.oldDedupe {
		t.Error("a directory with an event_id of an earlier version seems to have none")
	}
}
