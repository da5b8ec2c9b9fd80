package journal

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/log"
	"mtagd/store/testenv"
)

// Records that a start finds in the log have what was not flushed: links, event_ids and chunks.
func TestAKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	mark := newMark(m, "Purchase", 0, []byte("{}"))
	mark.DedupeID = "order-1"
	mark.Identity.Add(store.Email, "ann@example.com")
	testenv.Check(t, j.Record(ctx, []store.Mark{mark}))
	killed := t.TempDir()
	testenv.Check(t, os.CopyFS(killed, os.DirFS(dir)))
	closeJournal(t, j)
	j = open(t, killed)
	defer closeJournal(t, j)
	if n := len(since(t, j, 0)); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	var ann store.Identity
	ann.Add(store.Email, "ann@example.com")
	if muid, err := j.Resolve(ctx, m, ann); muid != "u-1" || err != nil {
		t.Errorf("the link leads to %q, %v", muid, err)
	}
	again := []store.Mark{mark}
	if err := j.Record(ctx, again); err != nil || again[0].Outcome != store.Duplicate {
		t.Errorf("the same event_id again: %d, %v", again[0].Outcome, err)
	}
}

// Chunks that do not fit into memory are read from the log.
func TestChunksAreReadFromTheLog(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	for range 5 {
		record(t, j, m, 300)
	}
	want := since(t, j, 0)
	j.chunks.mu.Lock()
	j.chunks.held += maxHeld
	j.chunks.mu.Unlock()
	record(t, j, m, 300)
	j.chunks.mu.RLock()
	onDisk := j.chunks.onDisk
	packed := j.chunks.list[0].packed()
	j.chunks.mu.RUnlock()
	if onDisk == 0 || packed != nil {
		t.Fatal("all chunks are in memory")
	}
	got := since(t, j, 0)
	if len(got) != len(want)+300 {
		t.Errorf("%d events, want %d", len(got), len(want)+300)
	}
	for i := range want {
		if !same(want[i], got[i]) {
			t.Fatalf("event %d is another one", i)
		}
	}
	for _, e := range got {
		testenv.Check(t, j.Read(ctx, []store.Position{e.Position}, func(int, Event) {}))
	}
}

// Forgotten chunks are not kept in memory. A long list of chunks that are only in the log is not copied each time that some
// of them are forgotten. Readers keep what they have.
func TestForgottenChunksAreGarbage(t *testing.T) {
	for _, test := range []struct {
		onDisk, forgotten uint64 // of 100 chunks
		isCopied          bool
	}{{20, 0, false}, {20, 20, false}, {20, 21, true}, {100, 0, false}, {100, 49, false}, {100, 50, true}, {20, 100, true}} {
		c := chunks{onDisk: int(test.onDisk)}
		for seq := range uint64(100) {
			added := stored{seq: seq + 1}
			if seq >= test.onDisk {
				added.record, added.to = new(heldRecord), 5
				added.record.Store(new([]byte("chunk")))
			}
			c.add([]stored{added})
		}
		all := c.between(0, 100)
		c.forget(test.forgotten)
		left := 100 - int(test.forgotten)
		if isCopied := left == 0 || &c.list[left-1] != &all[99]; isCopied != test.isCopied {
			t.Errorf("%+v: the list was copied: %v", test, isCopied)
		}
		if left == 0 && cap(c.list) > 0 {
			t.Errorf("%+v: the list has room for %d chunks", test, cap(c.list))
		}
		inMemory := min(left, 100-int(test.onDisk))
		if len(c.list) != left || c.held != 5*inMemory || c.onDisk != left-inMemory {
			t.Errorf("%+v: %d chunks are left, %d of them only in the log, %d bytes in memory", test, len(c.list), c.onDisk, c.held)
		}
		for i, s := range all {
			if s.seq != uint64(i+1) || (s.packed() == nil) != (i < int(test.onDisk)) {
				t.Fatalf("%+v: a reader has another chunk: %+v", test, s)
			}
		}
	}
}

// A damaged record costs its own events: those before and after it are served, and the loss is reported.
func TestADamagedRecord(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	for i := range 3 {
		testenv.Check(t, j.Record(ctx, []store.Mark{newMark(m, "Page", i, []byte(`{"number":"`+string(rune('a'+i))+`"}`))}))
	}
	closeJournal(t, j)
	changed := false
	logs, err := filepath.Glob(filepath.Join(logDir(dir), "*.log"))
	testenv.Check(t, err)
	for _, path := range logs {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		for i := range b {
			if string(b[i:min(len(b), i+11)]) == `"number":"b` {
				b[i+10] ^= 5 // one bit would be corrected
				changed = true
			}
		}
		testenv.Check(t, os.WriteFile(path, b, 0o600))
	}
	if !changed {
		t.Fatal("the event is in no file")
	}
	opened, err := Open(dir, Options{Log: quiet, Now: time.Now})
	testenv.Check(t, err)
	j = start(t, opened)
	defer closeJournal(t, j)
	events, damaged := 0, 0
	testenv.Check(t, j.Since(0, math.MaxUint64, func(e []Event, _ uint64) error { events += len(e); return nil }, func(DamagedChunk) { damaged++ }))
	if events != 2 || damaged != 1 {
		t.Errorf("%d events and %d damaged chunks, want 2 and 1", events, damaged)
	}
}

// A record is kept as long as its links are not in the database, also when its chunks are forgotten.
func TestALinkOutlivesItsChunk(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	mark := newMark(m, "Login", 0, []byte("{}"))
	mark.Identity.Add(store.Email, "ann@example.com")
	testenv.Check(t, j.Record(ctx, []store.Mark{mark}))
	testenv.Check(t, j.Forget(j.Committed()))
	testenv.Check(t, j.log.Roll())
	record(t, j, m, 1)
	testenv.Check(t, j.trim())
	killed := t.TempDir()
	testenv.Check(t, os.CopyFS(killed, os.DirFS(dir)))
	closeJournal(t, j)
	j = open(t, killed)
	defer closeJournal(t, j)
	var ann store.Identity
	ann.Add(store.Email, "ann@example.com")
	if muid, err := j.Resolve(ctx, m, ann); muid != "u-1" || err != nil {
		t.Errorf("the link leads to %q, %v", muid, err)
	}
}

// A log whose files are gone looks like a new one, but the database knows how far it went: what was in it is lost.
func TestALogWithoutItsFiles(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	record(t, j, m, 3)
	testenv.Check(t, j.Forget(1)) // the flush has something to write
	testenv.Check(t, j.flush())
	closeJournal(t, j)
	files, err := filepath.Glob(filepath.Join(logDir(dir), "*.log"))
	testenv.Check(t, err)
	for _, name := range files {
		testenv.Check(t, os.Remove(name))
	}
	readOnly, err := OpenReadOnly(dir, Options{})
	testenv.Check(t, err)
	if !readOnly.HasLost() {
		t.Error("a check finds nothing lost")
	}
	testenv.Check(t, readOnly.Close())
	j = open(t, dir)
	if !j.HasLost() {
		t.Error("a start finds nothing lost")
	}
	record(t, j, m, 5)
	if found, damaged := sinceWithDamage(t, j, 0); len(found) != 5 || len(damaged) != 1 {
		t.Errorf("%d new events, want 5; damaged chunks %v, want one", len(found), damaged)
	}
	closeJournal(t, j)
}

// A file of the log in which nothing is sound costs its own events, and so does a missing last file: a check, a start and a
// repair report it, and have all others.
func TestAFileOfTheLogIsLost(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"junk":    func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte{0xaa}, 3*4096), 0o600) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := open(t, dir)
			for range 3 {
				record(t, j, store.NewMerchantID(), 3)
				testenv.Check(t, j.log.Roll())
			}
			record(t, j, store.NewMerchantID(), 2)
			killed := t.TempDir()
			testenv.Check(t, os.CopyFS(killed, os.DirFS(dir)))
			closeJournal(t, j)
			files, err := filepath.Glob(filepath.Join(logDir(killed), "*.log"))
			testenv.Check(t, err)
			var used []string
			for _, path := range files {
				if b, err := os.ReadFile(path); err == nil && len(bytes.Trim(b, "\x00")) > 0 {
					used = append(used, path)
				}
			}
			testenv.Check(t, harm(used[len(used)-1]))
			readOnly, err := OpenReadOnly(killed, Options{})
			testenv.Check(t, err)
			if !readOnly.HasLost() {
				t.Error("a check finds nothing lost")
			}
			testenv.Check(t, readOnly.Close())
			to, said := t.TempDir(), 0
			_, err = Repair(ctx, killed, to, Options{Log: quiet}, func(string, error) { said++ })
			testenv.Check(t, err)
			if said != 1 {
				t.Errorf("a repair says %d times that something is lost", said)
			}
			for _, at := range []string{killed, to} {
				j := open(t, at)
				if j.HasLost() != (at == killed) {
					t.Errorf("a start on %s finds something lost: %v", at, j.HasLost())
				}
				if found, _ := sinceWithDamage(t, j, 0); len(found) != 9 {
					t.Errorf("%d events, want 9", len(found))
				}
				closeJournal(t, j)
			}
		})
	}
}

// The last record before the position up to which links were flushed loses a sector, so that a start
// drops it as torn. Others come in its place, and the log grows past that position: their links are
// not in the database.
func TestLinksOfOtherRecords(t *testing.T) {
	t.Run("one ends at the position", func(t *testing.T) { testLinksOfOtherRecords(t, 8, 1) })
	t.Run("one goes beyond the position", func(t *testing.T) { testLinksOfOtherRecords(t, 2, 80) })
}

// testLinksOfOtherRecords writes so many other records, of so many events each.
func testLinksOfOtherRecords(t *testing.T, records, events int) {
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
	flushed := log.Position(j.flushed.Load())
	closeJournal(t, j)
	zeroSectors(t, killed, last)
	j = open(t, killed)
	var people []store.Identity
	random, isBoundary := rand.New(rand.NewPCG(1, 2)), false
	for i := range records {
		marks := make([]store.Mark, events)
		for n := range marks {
			raw := make([]byte, 1000)
			for at := range raw {
				raw[at] = byte(random.Uint32())
			}
			marks[n] = newMark(m, "Login", i*events+n, raw)
		}
		people = append(people, store.Identity{})
		people[i].Add(store.DeviceID, "device-"+string(rune('a'+i)))
		marks[0].Identity.Add(store.DeviceID, "device-"+string(rune('a'+i)))
		testenv.Check(t, j.Record(ctx, marks))
		isBoundary = isBoundary || j.log.End() == flushed
	}
	if isBoundary == (events > 1) || j.log.End() <= flushed {
		t.Fatalf("the log has %d bytes; a record ends at %d: %v", j.log.End(), flushed, isBoundary)
	}
	again := t.TempDir()
	testenv.Check(t, os.CopyFS(again, os.DirFS(killed)))
	closeJournal(t, j)
	j = open(t, again)
	defer closeJournal(t, j)
	for i, who := range people {
		if muid, err := j.Resolve(ctx, m, who); muid != "u-1" || err != nil {
			t.Errorf("link %d leads to %q, %v", i, muid, err)
		}
	}
}

// zeroSectors writes zeros over the first sector of the record at a position, as if a power cut had torn it.
func zeroSectors(t *testing.T, dir string, at log.Position) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(logDir(dir), "*.log"))
	testenv.Check(t, err)
	for _, path := range logs {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		if len(b) == 0 {
			continue // the spare file, copied before it was allocated
		}
		clear(b[4096+at : 4096+at+512]) // the spare file has only zeros
		testenv.Check(t, os.WriteFile(path, b, 0o600))
	}
}

// A link that was flushed counts, though the record that made it is damaged, and an earlier record has another one.
func TestDrillAnOldLinkBeforeDamage(t *testing.T) {
	testenv.Drill(t)
	t.Run("the last record", func(t *testing.T) { testOldLinkBeforeDamage(t, 0, false) })
	t.Run("the last record but one", func(t *testing.T) { testOldLinkBeforeDamage(t, 1, false) })
	t.Run("and the first record that was not flushed", func(t *testing.T) { testOldLinkBeforeDamage(t, 0, true) })
}

func testOldLinkBeforeDamage(t *testing.T, behind int, isKilled bool) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	for _, muid := range []store.MUID{"muid-aaaa", "muid-bbbb"} {
		mark := newMark(m, "Login", 0, []byte("{}"))
		mark.Identity = store.Identity{MUID: muid}
		mark.Identity.Add(store.Email, "ann@example.com")
		testenv.Check(t, j.Record(ctx, []store.Mark{mark}))
	}
	for range behind {
		record(t, j, m, 1)
	}
	if isKilled {
		testenv.Check(t, j.flush())
		testenv.Check(t, j.Record(ctx, []store.Mark{newMark(m, "muid-bbbb", 0, nil)}))
		record(t, j, m, 1)
		killed := t.TempDir()
		testenv.Check(t, os.CopyFS(killed, os.DirFS(dir)))
		closeJournal(t, j)
		dir = killed
	} else {
		closeJournal(t, j)
	}
	testenv.Check(t, os.Remove(filepath.Join(dir, checkpointFile))) // so that the record is read
	logs, err := filepath.Glob(filepath.Join(logDir(dir), "*.log"))
	testenv.Check(t, err)
	for _, path := range logs {
		b, err := os.ReadFile(path)
		testenv.Check(t, err)
		for at := range b {
			if bytes.HasPrefix(b[at:], []byte("muid-bbbb")) {
				b[at] ^= 5
			}
		}
		testenv.Check(t, os.WriteFile(path, b, 0o600))
	}
	j = open(t, dir)
	defer closeJournal(t, j)
	if len(j.lost) == 0 {
		t.Error("nothing is damaged")
	}
	var ann store.Identity
	ann.Add(store.Email, "ann@example.com")
	if muid, err := j.Resolve(ctx, m, ann); muid != "muid-bbbb" || err != nil {
		t.Errorf("the link leads to %q, %v", muid, err)
	}
}
