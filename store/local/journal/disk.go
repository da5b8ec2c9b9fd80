package journal

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// Badger writes to memory-mapped files: on a full disk the process dies of SIGBUS, and again at every start. So events
// are refused while less than minFree is free. That is enough for a value log, all memtables, a compaction and a merge
// of the index.
const (
	minFree      = 256 << 20 // bytes
	diskInterval = time.Second
)

// diskWatch checks the free space of the journal's file system every second. Each time it also disables readahead in
// Badger's logs, as Badger may have created new ones.
type diskWatch struct {
	dir          string
	log          *slog.Logger
	full         atomic.Bool // less than minFree was free at the last check
	adviceFailed bool        // disableReadahead has failed, which is logged once
	stop         chan struct{}
	done         sync.WaitGroup
}

func watchDisk(dir string, log *slog.Logger) *diskWatch {
	w := &diskWatch{dir: dir, log: log, stop: make(chan struct{})}
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
	free, err := freeSpace(w.dir)
	if err != nil {
		w.log.Warn("cannot read the free disk space", "error", err)
		return
	}
	w.setFree(free)
}

// setFree decides whether events are accepted, and logs when that changes.
func (w *diskWatch) setFree(free uint64) {
	full := free < minFree
	if w.full.Swap(full) != full {
		message := "events are accepted: there is disk space again"
		if full {
			message = "events are refused: the disk is nearly full"
		}
		w.log.Warn(message, "accepting_events", !full, "free_bytes", free, "needed_bytes", minFree)
	}
}

func (w *diskWatch) ready() error {
	if w.full.Load() {
		return store.Unavailable("the disk is nearly full")
	}
	return nil
}

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
