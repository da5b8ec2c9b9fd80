package journal

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// Events are refused before less than minFree is free. That is enough for the value log and the memtables that the events
// in flight may begin, for a compaction, and for the events that the index has in memory.
const (
	minFree      = 128 << 20 // bytes
	diskInterval = time.Second

	// Once events are refused, they are accepted again when this much is free. The difference keeps the journal from
	// changing its mind every second.
	minFreeAgain = minFree + minFree/8

	// costFactor is how many bytes an accepted event may take on the disk for each byte of its request. The request's
	// size includes the overhead of its keys. The rest of the space is for tables: each key is in a memtable's table and,
	// while a compaction writes, a second time in its output.
	costFactor = 2
)

// diskWatch counts what accepted events may take of the free space, so that a flood cannot fill the disk between two
// looks at it. It looks every second, and whenever the count says that nothing is left. A look sets the count to the
// real figure.
//
// With each look of every second it also disables readahead in Badger's logs, as Badger may have created new ones.
type diskWatch struct {
	log       *slog.Logger
	freeSpace func() (uint64, error) // bytes

	// In bytes on the disk, since the start. Accepted events are counted in accepted until that reaches limit.
	accepted, finished, limit atomic.Int64

	full atomic.Bool // events are refused

	looking      sync.Mutex
	lookFailed   bool // logged once
	adviceFailed bool // disableReadahead has failed, which is logged once

	stop chan struct{}
	done sync.WaitGroup
}

func watchDisk(dir string, log *slog.Logger) *diskWatch {
	w := &diskWatch{
		log:       log,
		freeSpace: func() (uint64, error) { return freeSpace(dir) },
		stop:      make(chan struct{}),
	}
	w.check()
	w.done.Go(func() {
		ticker := time.NewTicker(diskInterval)
		defer ticker.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-ticker.C:
				w.check()
			}
		}
	})
	return w
}

func (w *diskWatch) check() {
	if err := disableReadahead(); err != nil && !w.adviceFailed {
		w.adviceFailed = true
		w.log.Warn("readahead in Badger's logs cannot be disabled; more may be written to the disk than needed", "error", err)
	}
	w.look()
}

// admit counts events of size bytes as accepted, or returns why they cannot be. When they are written, or will not be,
// finish must be called. With size 0 it only tells whether events are accepted.
func (w *diskWatch) admit(size int) error {
	cost := int64(size) * costFactor
	if w.left() < cost && !w.full.Load() {
		w.look() // the count assumes the worst
	}
	if w.full.Load() || w.left() < cost {
		return store.Unavailable("the disk is nearly full")
	}
	w.accepted.Add(cost)
	return nil
}

// left is how many bytes accepted events may still take.
func (w *diskWatch) left() int64 { return w.limit.Load() - w.accepted.Load() }

// finish ends the count of admitted events as being in flight: the next look sees what they take.
func (w *diskWatch) finish(size int) { w.finished.Add(int64(size) * costFactor) }

// look reads the free space, decides whether events are accepted, and logs when that changes.
func (w *diskWatch) look() {
	w.looking.Lock()
	defer w.looking.Unlock()
	finished := w.finished.Load() // before the free space: what is finished in between is counted twice, not left out
	free, err := w.freeSpace()
	if err != nil {
		if !w.lookFailed {
			w.log.Warn("cannot read the free disk space", "error", err)
		}
		w.lookFailed = true
		return
	}
	w.limit.Store(finished + int64(free) - minFree)
	full := free < minFree || w.full.Load() && free < minFreeAgain
	if w.full.Swap(full) != full {
		message := "events are accepted: there is disk space again"
		if full {
			message = "events are refused: the disk is nearly full"
		}
		w.log.Warn(message, "accepting_events", !full, "free_bytes", free, "needed_bytes", minFreeAgain)
	}
}

// freeForEvents returns how many bytes events may still take.
func (w *diskWatch) freeForEvents() uint64 { return uint64(max(0, w.left())) }

func (w *diskWatch) close() {
	close(w.stop)
	w.done.Wait()
}

// freeSpace returns the bytes that users other than root may still write.
func freeSpace(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}
