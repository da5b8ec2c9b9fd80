package journal

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store"
	"mtagd/store/local/space"
)

// MinFree is how many bytes of the disk must be free: events are refused before less is. That is enough for the files that
// the databases may begin, for a compaction, and for the events that the index has in memory.
const MinFree = 128 << 20

const (
	diskInterval = time.Second

	// Once refused, events are accepted again when this much is free: else the journal would change its mind every second.
	minFreeAgain = MinFree + MinFree/8

	// costFactor is how many bytes an accepted event may take on the disk for each byte of its request. The request's
	// size includes the overhead of its keys. The rest of the space is for tables: each key is in a memtable's table and,
	// while a compaction writes, a second time in its output.
	costFactor = 2
)

// diskWatch counts what accepted events may take of the free space, so that a flood cannot fill the disk between two
// measurements. It measures every second, and whenever the count says that nothing is left.
type diskWatch struct {
	log       *slog.Logger
	freeSpace func() (int64, error) // bytes

	// In bytes on the disk, since the start. Accepted events are counted in accepted until that reaches limit.
	accepted, finished, limit atomic.Int64

	free atomic.Int64 // bytes, when last measured
	full atomic.Bool  // events are refused

	measuring     sync.Mutex
	measureFailed bool // logged once

	stop context.CancelFunc
	done sync.WaitGroup
}

func watchDisk(dir string, log *slog.Logger) *diskWatch {
	w := &diskWatch{log: log, freeSpace: func() (int64, error) { return freeSpace(dir) }}
	w.measure()
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.done.Go(func() {
		for store.Sleep(ctx, diskInterval) == nil {
			w.measure()
		}
	})
	return w
}

// admit counts events of size bytes as accepted, or returns why they cannot be. When they are written, or will not be,
// finish must be called. With size 0 it only tells whether events are accepted, without I/O.
func (w *diskWatch) admit(size int) error {
	cost := int64(size) * costFactor
	fits := func() bool { return !w.full.Load() && (size == 0 || cost <= w.left()) }
	if size > 0 && !fits() && !w.full.Load() {
		w.measure() // the count assumes the worst
	}
	if !fits() {
		return store.Unavailable(messageFull)
	}
	w.accepted.Add(cost)
	return nil
}

// left is how many bytes accepted events may still take.
func (w *diskWatch) left() int64 { return w.limit.Load() - w.accepted.Load() }

// finish ends the count of admitted events as being in flight: the next measurement sees what they take.
func (w *diskWatch) finish(size int) { w.finished.Add(int64(size) * costFactor) }

// ready returns nil while events are accepted, else the reason why not, for operators.
func (w *diskWatch) ready() error {
	if !w.full.Load() {
		return nil
	}
	return fmt.Errorf("the disk is full: %d MiB are free, and events are accepted again at %d MiB",
		w.free.Load()>>20, minFreeAgain>>20)
}

// measure reads the free space, decides whether events are accepted, and logs when that changes.
func (w *diskWatch) measure() {
	w.measuring.Lock()
	defer w.measuring.Unlock()
	finished := w.finished.Load() // before the free space: what is finished in between is counted twice, not left out
	free, err := w.freeSpace()
	if err != nil {
		if !w.measureFailed {
			w.log.Warn("the free disk space cannot be read, so events are accepted until the disk is full", "error", err)
		}
		w.measureFailed = true
		w.limit.Store(math.MaxInt64)
		return
	}
	w.free.Store(free)
	w.limit.Store(finished + free - MinFree)
	full := free < MinFree || w.full.Load() && free < minFreeAgain
	if w.full.Swap(full) != full {
		message := "events are accepted: there is disk space again"
		if full {
			message = "events are refused: the disk is full. Free some space, and they are accepted again"
		}
		w.log.Warn(message, "accepting_events", !full, "free_bytes", free, "needed_bytes", minFreeAgain)
	}
}

// freeForEvents returns how many bytes events may still take.
func (w *diskWatch) freeForEvents() uint64 {
	if w.full.Load() {
		return 0
	}
	return uint64(max(0, w.left()))
}

func (w *diskWatch) close() {
	w.stop()
	w.done.Wait()
}

// messageFull is for customers.
const messageFull = "the disk is nearly full"

// minFiles is how many files it must be possible to create: the log, flushes and compactions begin new ones.
const minFiles = 256

// freeSpace returns the bytes that are free; 0 when no more files can be created.
func freeSpace(dir string) (int64, error) {
	disk, err := space.OfDisk(dir)
	if disk.Files < minFiles {
		return 0, err
	}
	return disk.Free, err
}
