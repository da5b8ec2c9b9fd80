package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

// A start reads only the records after the checkpoint, and has all chunks. A checkpoint that is damaged, missing, of another
// log or newer than the database is ignored.
func TestCheckpoint(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	forgotten := j.Committed()
	record(t, j, m, 3)
	testenv.Check(t, errors.Join(j.Forget(forgotten), j.flush()))
	record(t, j, m, 5)
	all := since(t, j, 0)
	if len(all) != 8 {
		t.Fatalf("%d events", len(all))
	}
	killed := t.TempDir()
	testenv.Check(t, os.CopyFS(killed, os.DirFS(dir)))
	closeJournal(t, j)

	path := filepath.Join(killed, checkpointFile)
	good, err := os.ReadFile(path)
	testenv.Check(t, err)
	flipped := bytes.Clone(good)
	flipped[9] ^= 1
	for _, c := range []struct {
		name       string
		checkpoint []byte
		used       bool
	}{
		{"sound", good, true}, {"damaged", flipped, false}, {"cut short", good[:5], false}, {"empty", nil, false}, {"unreadable", nil, false},
	} {
		testenv.Check(t, os.WriteFile(path, c.checkpoint, 0o600))
		copied := t.TempDir()
		testenv.Check(t, os.CopyFS(copied, os.DirFS(killed)))
		if c.name == "unreadable" {
			unreadable := filepath.Join(copied, checkpointFile)
			testenv.Check(t, errors.Join(os.Remove(unreadable), os.Mkdir(unreadable, 0o700)))
		}
		j := open(t, copied)
		if used := j.chunks.list[0].events == 3; used != c.used { // a chunk that is read at the start has no number of events
			t.Errorf("%s: the checkpoint was used: %v", c.name, used)
		}
		if found := since(t, j, forgotten); !reflect.DeepEqual(found, all[len(all)-len(found):]) || len(found) != 8 {
			t.Errorf("%s: %d events, or other ones", c.name, len(found))
		}
		closeJournal(t, j)
	}

	// The database was made of what could be read, and does not know how far it was flushed.
	testenv.Check(t, errors.Join(os.WriteFile(path, good, 0o600), os.RemoveAll(keysDir(killed)), os.Mkdir(keysDir(killed), 0o700)))
	j = open(t, killed)
	if j.chunks.list[0].events != 0 {
		t.Error("the checkpoint was used, though the database lacks what it needs")
	}
	closeJournal(t, j)
}

// The last record before a checkpoint loses a sector, so that a start drops it as torn. Others come in its place, and the log grows past
// the position of the checkpoint, which does not count any more.
func TestACheckpointOfOtherRecords(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	record(t, j, m, 3)
	testenv.Check(t, j.Forget(1)) // the flush has something to write
	record(t, j, m, 250)
	testenv.Check(t, j.flush())
	killed := t.TempDir()
	testenv.Check(t, os.CopyFS(killed, os.DirFS(dir)))
	last := j.chunks.list[len(j.chunks.list)-1].at
	closeJournal(t, j)
	zeroSectors(t, killed, last)
	j = open(t, killed)
	if left, damaged := sinceWithDamage(t, j, 0); len(left) != 3 || len(damaged) != 1 { // the database proves that it was whole
		t.Fatalf("%d events are left, want 3; damaged chunks %v, want one", len(left), damaged)
	}
	for range 8 {
		record(t, j, m, 5)
	}
	again := t.TempDir()
	testenv.Check(t, os.CopyFS(again, os.DirFS(killed)))
	closeJournal(t, j)
	j = open(t, again)
	defer closeJournal(t, j)
	if n := len(since(t, j, 0)); n != 43 {
		t.Errorf("%d events, want 43", n)
	}
}
