package journal

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/testenv"
)

// withFreeSpace makes the journal believe that this much is free.
func withFreeSpace(j *testJournal, bytes int64) (free *atomic.Int64) {
	free = new(atomic.Int64)
	free.Store(bytes)
	j.disk.measuring.Lock()
	j.disk.freeSpace = func() (int64, error) { return free.Load(), nil }
	j.disk.measuring.Unlock()
	j.disk.measure()
	return free
}

func TestNothingIsAcceptedWhileTheDiskIsNearlyFull(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	record(t, j, m, 1)
	free := withFreeSpace(j, MinFree-1)
	marks := []store.Mark{newMark(m, "PageView", 0, []byte("{}"))}
	if err := j.Record(ctx, marks); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("Record gives %v, want KindUnavailable", err)
	}
	if j.Ready() == nil {
		t.Error("Ready gives no error while the disk is nearly full")
	}
	if n := j.FreeSpace(); n != 0 {
		t.Errorf("%d bytes are free for events, want 0", n)
	}
	free.Store(minFreeAgain)
	j.disk.measure()
	if err := j.Record(ctx, marks); err != nil {
		t.Errorf("once there is space again, Record gives %v", err)
	}
	if got := len(since(t, j, 0)); got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

// A stop on a disk that is nearly full is no failure: what cannot be flushed is in the log.
func TestDrillAStopOnAFullDisk(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		testenv.Skip(t, "a small file system cannot be mounted: "+err.Error())
	}
	defer func() { testenv.Check(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	mark := newMark(store.NewMerchantID(), "PageView", 0, []byte("{}"))
	mark.DedupeID = "1"
	for _, want := range []store.Outcome{store.Recorded, store.Duplicate} {
		j := open(t, filepath.Join(dir, "journal"))
		withFreeSpace(j, math.MaxInt64)
		marks := []store.Mark{mark}
		if err := j.Record(ctx, marks); err != nil || marks[0].Outcome != want {
			t.Errorf("%v, %v; want %v", marks[0].Outcome, err, want)
		}
		var s unix.Statfs_t
		testenv.Check(t, unix.Statfs(dir, &s))
		other, err := os.Create(filepath.Join(dir, "other"))
		testenv.Check(t, err)
		testenv.Check(t, errors.Join(unix.Fallocate(int(other.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-10<<20), other.Close()))
		closeJournal(t, j)
		testenv.Check(t, os.Remove(other.Name()))
	}
}

// However fast events come, they take no more than what was free when it was last measured.
func TestAFloodIsRefusedBeforeItFillsTheDisk(t *testing.T) {
	const size, fits = 1 << 20, 10
	w := &diskWatch{
		log:       quiet,
		freeSpace: func() (int64, error) { return MinFree + fits*size*costFactor, nil },
	}
	w.measure()
	for i := range fits {
		if err := w.admit(size); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if err := w.admit(size); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("with what was admitted, the disk is nearly full, but the next request gives %v", err)
	}
	// What is written has taken its space: it is in the next figure, and no longer counted.
	w.finish(3 * size)
	w.measure()
	for i := range 3 {
		if err := w.admit(size); err != nil {
			t.Errorf("after three requests are written, request %d gives %v", i, err)
		}
	}
	if err := w.admit(size); err == nil {
		t.Error("requests in flight are not counted after a measurement")
	}
}

// Once the counted space is used up, requests wait for a new figure. While the disk hangs, Ready and the metrics answer.
func TestReadyDoesNotWaitForTheFreeSpace(t *testing.T) {
	measuring, free := make(chan bool), make(chan int64)
	w := &diskWatch{log: quiet, freeSpace: func() (int64, error) {
		measuring <- true
		return <-free, nil
	}}
	q := groupcommit.New(w.admit, w.finish)
	j := &Journal{disk: w, committer: &committer{queue: q}}
	joined := make(chan error, 1)
	go func() { joined <- q.Record(t.Context(), uuid.UUID{1}, make([]store.Mark, 1)) }()
	<-measuring
	ready := make(chan error, 1)
	go func() {
		q.Length()
		j.FreeSpace()
		ready <- j.Ready()
	}()
	select {
	case err := <-ready:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Ready waits for the disk")
	}
	free <- minFreeAgain
	timer := time.AfterFunc(time.Hour, q.Recheck)
	defer timer.Stop()
	q.Next(timer)
	for len(q.Take()) > 0 {
	}
	q.Finish(nil)
	if err := <-joined; err != nil {
		t.Error(err)
	}
}

// What the queue refuses takes no space on the disk.
func TestARefusedRequestIsNotCounted(t *testing.T) {
	w := &diskWatch{log: quiet, freeSpace: func() (int64, error) { return math.MaxInt64, nil }}
	w.measure()
	q := groupcommit.New(w.admit, w.finish)
	q.Close()
	if err := q.Record(t.Context(), uuid.UUID{1}, make([]store.Mark, 1)); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a closed queue gives %v, want KindUnavailable", err)
	}
	if accepted, finished := w.accepted.Load(), w.finished.Load(); accepted != finished {
		t.Errorf("%d bytes are counted as accepted, %d as finished", accepted, finished)
	}
}

func TestWithoutAFigureEventsAreAccepted(t *testing.T) {
	w := &diskWatch{log: quiet, freeSpace: func() (int64, error) { return 0, errors.New("no figure") }}
	w.measure()
	if err := w.admit(1 << 20); err != nil {
		t.Error(err)
	}
}

func TestTheDiskWatchFollowsTheFreeSpace(t *testing.T) {
	var free int64
	w := &diskWatch{log: quiet, freeSpace: func() (int64, error) { return free, nil }}
	for _, step := range []struct {
		free int64
		full bool
	}{{MinFree, false}, {MinFree - 1, true}, {minFreeAgain - 1, true}, {minFreeAgain, false}, {MinFree, false}} {
		free = step.free
		w.measure()
		if full := w.admit(0) != nil; full != step.full {
			t.Errorf("with %d bytes free, events are refused: %v, want %v", step.free, full, step.full)
		}
	}
}
