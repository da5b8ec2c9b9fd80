package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store/local/space"
)

// allocator allocates the files of one database.
//
// While the disk is full, it makes Badger wait. It must not return an error: when a compaction cannot create a table,
// Badger 4.9.6 ignores that, deletes the tables that were to be merged into it, and so loses data (subcompact in
// levels.go). When Badger cannot create the log of a memtable, the next read panics. Only while Badger is opening, an
// error is safe.
type allocator struct {
	dir       string
	log       *slog.Logger
	spare     spare
	memLog    int64                                                 // bytes that the log of a new memtable takes
	patience  time.Duration                                         // how long a close waits for space
	fallocate func(fd int, mode uint32, offset, length int64) error // unix.Fallocate, except in tests

	mu          sync.Mutex
	opening     bool
	short       map[string]int64 // path → bytes: logs of which only the beginning is allocated
	waiting     int              // files that wait for space
	unsupported bool             // the file system cannot allocate; logged once
	newTables   []*os.File       // tables that Badger writes, until they are synced (tableerrors.go)

	failed atomic.Pointer[string] // why a table cannot be read or written
}

const (
	// Badger maps its logs at twice the size at which it begins the next one. It exceeds that size by one transaction at
	// most, so the rest of the file needs no blocks.
	valueLogSize  = 64 << 20
	memTableSize  = 4 << 20
	newLog        = valueLogSize + 1<<20 // bytes that a new value log takes
	newMemLog     = memTableSize + 1<<20 // bytes that the log of a new memtable takes
	logBeginning  = 64 << 10             // bytes of a log that Badger writes while it opens
	allocateRetry = 100 * time.Millisecond

	// Badger appends to its manifest, which would be corrupt after an entry that was written in part. So there is always
	// allocated space behind its end, enough for tens of thousands of entries.
	manifestTail    = 1 << 20
	manifestTailMin = manifestTail / 4
)

// allocators has the *allocator of each open journal. Its key is the journal's directory, without symbolic links.
var allocators sync.Map

// newAllocator returns the allocator for a directory that exists, and makes Badger use it until close.
func newAllocator(dir string, log *slog.Logger) (*allocator, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	a := &allocator{
		dir:       dir,
		log:       log,
		spare:     spare{path: filepath.Join(dir, spareName)},
		memLog:    newMemLog,
		patience:  15 * time.Second,
		fallocate: unix.Fallocate,
		opening:   true,
		short:     map[string]int64{},
	}
	allocators.Store(dir, a)
	return a, nil
}

func (a *allocator) close() {
	allocators.Delete(a.dir)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range a.newTables {
		_ = f.Close()
	}
}

// opened tells the allocator that Badger is open, and allocates the space behind the manifest.
func (a *allocator) opened() {
	a.mu.Lock()
	a.opening = false
	a.mu.Unlock()
	a.extendManifest()
}

// allocate allocates the blocks that Badger will write in a file of this length. It returns when they are allocated, or
// when the file system cannot allocate.
func (a *allocator) allocate(fd int, path string, length int64) error {
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return nil
	}
	want, isLog := length, false
	if filepath.Ext(path) == ".sst" && s.Blocks == 0 {
		a.noteTable(path)
	}
	switch filepath.Ext(path) {
	case ".vlog":
		want, isLog = min(length, newLog), true
	case ".mem":
		want, isLog = min(length, a.memLog), true
	}
	if allocated := s.Blocks * 512; allocated >= want || isLog && allocated > 0 {
		return nil // an old log: Badger only reads it
	}
	err := a.tryAllocate(fd, want)
	if !space.IsFull(err) {
		return nil
	}
	if a.isOpening() && filepath.Ext(path) != ".sst" {
		err := a.allocateBeginning(fd, path, want)
		if s.Blocks > 0 {
			return nil // an old file of which Badger will hardly write more than there is
		}
		return err
	}
	if filepath.Ext(path) == ".mem" {
		// Badger holds the lock that all reads need.
		for space.IsFull(err) && a.spare.give(want) {
			err = a.tryAllocate(fd, want)
		}
	}
	if space.IsFull(err) {
		a.wait(fd, want)
	}
	return nil
}

// allocateBeginning allocates what Badger writes before the journal accepts events. The rest is allocated before that, by
// complete.
func (a *allocator) allocateBeginning(fd int, path string, want int64) error {
	err := a.tryAllocate(fd, logBeginning)
	for space.IsFull(err) && a.spare.give(spareStep) { // more than once if another program is faster
		err = a.tryAllocate(fd, logBeginning)
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.short[path] = want
	return nil
}

// wait returns when the blocks are allocated.
func (a *allocator) wait(fd int, want int64) {
	a.mu.Lock()
	a.waiting++
	a.mu.Unlock()
	for space.IsFull(a.tryAllocate(fd, want)) {
		time.Sleep(allocateRetry)
	}
	a.mu.Lock()
	a.waiting--
	a.mu.Unlock()
}

// tryAllocate allocates the first bytes of a file. An error is about space: when the file system cannot allocate at all,
// tryAllocate logs that once and returns nil.
func (a *allocator) tryAllocate(fd int, bytes int64) error {
	// A failed call may allocate what there is, which something else needs.
	if free, err := space.Free(a.dir); err == nil && free < bytes {
		return unix.ENOSPC
	}
	for {
		err := a.fallocate(fd, 0, 0, bytes)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil || space.IsFull(err) {
			return err
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.unsupported {
			a.unsupported = true
			a.log.Warn("the file system cannot allocate disk space in advance: if another program fills the disk within a second, "+
				"the service may end", "error", err)
		}
		return nil
	}
}

// missing is how many bytes complete will take.
func (a *allocator) missing() (bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, want := range a.short {
		bytes += want
	}
	return bytes
}

// complete allocates the rest of the logs of which only the beginning is allocated.
func (a *allocator) complete() error {
	a.mu.Lock()
	short := a.short
	a.mu.Unlock()
	for path, want := range short {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			err = errors.Join(a.tryAllocate(int(f.Fd()), want), f.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		a.mu.Lock()
		delete(a.short, path)
		a.mu.Unlock()
	}
	return nil
}

// extendManifest allocates space behind the end of Badger's manifest. An error does no harm: before Badger writes to the
// manifest, it creates a table and waits for the space for that.
func (a *allocator) extendManifest() {
	f, err := os.OpenFile(filepath.Join(a.dir, "MANIFEST"), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil || s.Blocks*512-s.Size >= manifestTailMin {
		return
	}
	_ = a.fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, s.Size+manifestTail)
}

func (a *allocator) isOpening() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opening
}

// isWaiting reports whether Badger waits for space.
func (a *allocator) isWaiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting > 0
}

// await returns nil when done is closed. When Badger waits for space meanwhile, it gets that of the spare file. When that
// does not help, await returns an error after a while.
func (a *allocator) await(done <-chan struct{}) error {
	ticker := time.NewTicker(allocateRetry)
	defer ticker.Stop()
	for waited := time.Duration(0); waited < a.patience; {
		select {
		case <-done:
			return nil
		case <-ticker.C:
			if err := a.failure(); err != nil {
				return fmt.Errorf("%w. Not everything was moved from logs to tables: the next start does it", err)
			}
			if !a.isWaiting() {
				continue
			}
			waited += allocateRetry
			a.spare.give(spareSize)
		}
	}
	return errors.New("the disk is full: not everything was moved from logs to tables. Nothing is lost: the next start does it")
}
