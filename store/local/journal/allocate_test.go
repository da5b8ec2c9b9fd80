package journal

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// allocated returns how many bytes a file takes on the disk.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return s.Blocks * 512
}

// needAllocation skips the test where the file system of dir cannot allocate in advance.
func needAllocation(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 4096); err != nil {
		t.Skip("the file system of the test's directory cannot allocate: ", err)
	}
}

// recordNoise records events of about this many bytes that cannot be compressed.
func recordNoise(t *testing.T, j *testJournal, m store.MerchantID, size int) (events int) {
	t.Helper()
	noise := rand.NewChaCha8([32]byte{})
	for ; size > 0; events += 8 {
		marks := make([]store.Mark, 8)
		for i := range marks {
			raw := make([]byte, 64<<10)
			noise.Read(raw)
			marks[i] = newMark(m, "PageView", i, raw)
			size -= len(raw)
		}
		if err := j.Record(ctx, marks); err != nil {
			t.Fatal(err)
		}
	}
	return events
}

// A write to a memory map without blocks would be a SIGBUS on a full disk. If this fails after an update of x/sys or
// ristretto, allocate.go must follow their new source.
func TestBadgersFilesAreAllocatedBeforeTheyAreWritten(t *testing.T) {
	dir := t.TempDir()
	needAllocation(t, dir)
	j := open(t, dir)
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	recordNoise(t, j, m, valueLogSize+4<<20) // the second value log is begun
	for pattern, want := range map[string]int64{
		"000002.vlog": newLog,
		"*.mem":       newMemLog,
		"DISCARD":     1 << 20,
		"MANIFEST":    manifestTailMin,
	} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, path := range paths {
			if got := allocated(t, path); got < want {
				t.Errorf("%d bytes of %s are allocated, want %d", got, filepath.Base(path), want)
			}
		}
	}
	info, err := os.Stat(filepath.Join(dir, "000001.vlog"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > newLog {
		t.Errorf("Badger has written %d bytes into a value log of which %d are allocated", info.Size(), newLog)
	}
}

// fakeDisk is a disk that can be full.
type fakeDisk struct{ left atomic.Int64 }

func (d *fakeDisk) fallocate(fd int, mode uint32, offset, length int64) error {
	if length > d.left.Load() {
		return unix.ENOSPC
	}
	return unix.Fallocate(fd, mode, offset, length)
}

// openOn opens a journal on a disk with this much space for each file.
func openOn(t *testing.T, dir string, left int64) (*Journal, *fakeDisk) {
	t.Helper()
	needAllocation(t, dir)
	disk := &fakeDisk{}
	disk.left.Store(left)
	files, err := newAllocator(dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	files.fallocate = disk.fallocate
	files.patience = allocateRetry
	j, err := openWith(dir, Options{Log: quiet, Now: time.Now}, files)
	if err != nil {
		t.Fatal(err)
	}
	return j, disk
}

const plenty = 1 << 40

func TestAStartOnAFullDiskReadsAndAcceptsOnceThereIsSpace(t *testing.T) {
	dir := t.TempDir()
	m := store.NewMerchantID()
	j := open(t, dir)
	record(t, j, m, 3)
	closeJournal(t, j)

	reopened, disk := openOn(t, dir, logBeginning)
	j = start(t, reopened)
	marks := []store.Mark{newMark(m, "PageView", 0, []byte("{}"))}
	if err := j.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if err := j.Ready(); err == nil || !strings.HasPrefix(err.Error(), "the disk is full: ") {
		t.Errorf("Ready gives %v", err)
	}
	if got := len(since(t, j, 0)); got != 3 {
		t.Errorf("%d events on the full disk, want 3", got)
	}
	disk.left.Store(plenty)
	j.disk.measure()
	if err := j.Record(ctx, marks); err != nil {
		t.Errorf("once there is space again, Record gives %v", err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.vlog"))
	if err != nil {
		t.Fatal(err)
	}
	if newest := logs[len(logs)-1]; allocated(t, newest) < newLog {
		t.Errorf("events are accepted, but only %d bytes of %s are allocated", allocated(t, newest), newest)
	}
	closeJournal(t, j)
}

// Badger loses data when it gets an error for a new table. So it waits, and what waits is still in its logs.
func TestACloseOnAFullDiskFailsAndLosesNothing(t *testing.T) {
	dir := t.TempDir()
	m := store.NewMerchantID()
	opened, disk := openOn(t, dir, plenty)
	j := start(t, opened)
	record(t, j, m, 3)
	if err := os.Remove(filepath.Join(dir, spareName)); err != nil {
		t.Fatal(err)
	}
	disk.left.Store(0)
	if err := j.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("Close gives %v", err)
	}
	copied := filepath.Join(t.TempDir(), "events")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	disk.left.Store(plenty) // lets Badger's goroutines end
	again := open(t, copied)
	if got := len(since(t, again, 0)); got != 3 {
		t.Errorf("%d events after the next start, want 3", got)
	}
	closeJournal(t, again)
	for { // until Badger has closed and the directory can be removed
		if _, err := os.Stat(filepath.Join(dir, "LOCK")); err != nil {
			return
		}
		time.Sleep(allocateRetry)
	}
}

func TestAKilledValueLogGivesBackWhatItDidNotUse(t *testing.T) {
	dir := t.TempDir()
	needAllocation(t, dir)
	path := filepath.Join(dir, "000001.vlog")
	content := append(bytes.Repeat([]byte{7}, 3<<20+5), 0, 0, 9)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(2 * valueLogSize); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, newLog); err != nil {
		t.Fatal(err)
	}
	if _, err := repairLogs(dir); err != nil {
		t.Fatal(err)
	}
	if got := allocated(t, path); got > 4<<20 {
		t.Errorf("%d bytes are allocated for %d bytes of entries", got, len(content))
	}
	got := make([]byte, 2*valueLogSize)
	if n, err := f.ReadAt(got, 0); err != nil {
		t.Fatalf("%d bytes: %v", n, err)
	}
	if !bytes.Equal(got[:len(content)], content) || len(bytes.Trim(got[len(content):], "\x00")) > 0 {
		t.Error("the contents of the log have changed")
	}
}

func TestTheSpareFileGivesAndTakes(t *testing.T) {
	dir := t.TempDir()
	needAllocation(t, dir)
	s := spare{filepath.Join(dir, spareName)}
	for _, step := range []struct{ free, keep, want int64 }{
		{spareSize, spareSize, 0},
		{spareSize / 2, spareSize / 4, spareSize / 4},
		{spareSize, 0, spareSize},
		{spareSize, 0, spareSize},
	} {
		s.fill(step.free, step.keep)
		if got := s.size(); got != step.want {
			t.Errorf("filled from %d bytes of which %d must stay: it takes %d bytes, want %d", step.free, step.keep, got, step.want)
		}
	}
	if !s.give(1<<20) || s.size() != spareSize-1<<20 {
		t.Errorf("after giving back a MiB, it takes %d bytes", s.size())
	}
	if !s.give(spareSize) || s.size() != 0 {
		t.Errorf("after giving back everything, it takes %d bytes", s.size())
	}
	if s.give(1) {
		t.Error("it gives though it is gone")
	}
}

// A kill while Badger creates a log leaves a file of which nothing was written, and which may not be allocated.
func TestLogsThatWereNeverWrittenAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int64{"000001.vlog": 2 * valueLogSize, "00001.mem": 2 * memTableSize, "000002.vlog": 0} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	memtables, err := repairLogs(dir)
	if err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if memtables != 0 || len(left) != 0 {
		t.Errorf("%d memtables, and these files: %v; want none", memtables, left)
	}
}
