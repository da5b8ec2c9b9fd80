package local

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// Badger writes through memory-mapped files: on a full disk the process dies of SIGBUS, and dies
// again at every start. So nothing is accepted while less than minFree is left, which holds a value log, all
// memtables, a compaction and a merge of the index.
const (
	minFree      = 256 << 20 // bytes
	diskInterval = time.Second
)

// diskWatch looks at the free space of the data directory's file system, and keeps Badger's logs, of which new ones
// come all the time, from being read ahead.
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
	w.look()
	w.done.Go(func() {
		ticker := time.NewTicker(diskInterval)
		defer ticker.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-ticker.C:
				w.look()
			}
		}
	})
	return w
}

func (w *diskWatch) look() {
	if err := stopReadAhead(); err != nil && !w.adviceFailed {
		w.adviceFailed = true
		w.log.Warn("more may be written to the disk than is needed", "error", err)
	}
	free, err := freeSpace(w.dir)
	if err != nil {
		w.log.Warn("free disk space is not known", "error", err)
		return
	}
	w.note(free)
}

// note stops the acceptance of events, or lets it go on.
func (w *diskWatch) note(free uint64) {
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
