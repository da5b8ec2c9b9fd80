package journal

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// Badger writes through memory-mapped files: on a full disk the process dies of SIGBUS, and dies again at every start.
// So no events are accepted while less than minFree is left. That is room for a value log, all memtables, a compaction
// and a merge of the index.
const (
	minFree      = 256 << 20 // bytes
	diskInterval = time.Second
)

// diskWatch checks the free space of the journal's file system every second. It also disables readahead in Badger's
// logs each time, as Badger creates new ones all the time.
type diskWatch struct {
	dir          string
	log          *slog.Logger
	full         atomic.Bool
	adviceFailed bool // and was logged
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
		w.log.Warn("free disk space is not known", "error", err)
		return
	}
	w.setFree(free)
}

// setFree decides whether events are accepted, and logs when that changes.
func (w *diskWatch) setFree(free uint64) {
	full := free < minFree
	if w.full.Swap(full) != full {
		w.log.Warn("disk space", "accepting_events", !full, "free_bytes", free, "needed_bytes", minFree)
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

// freeSpace is what is left for users other than root, in bytes.
func freeSpace(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}
