package log

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store/local/durable"
)

// Allocated blocks that were never written are marked so in the metadata of a file system. The first write to them clears
// the mark, and its sync then waits for a commit of the journal, with what other files have in it. Blocks of zeros that
// were written need only the data: at 64 KiB a sync takes about two thirds of the time. So a spare file is filled with
// zeros while nothing waits for it, at a pace that leaves the disk to others. It is taken as it is when it is needed.
const (
	zeroEvery  = 8 * time.Millisecond   // for each piece of len(zeros): 32 MiB/s
	retryAfter = 100 * time.Millisecond // when a file could not be allocated
)

// spares has the next file ready.
type spares struct {
	dir  string
	id   uint64
	size int64

	mu      sync.Mutex
	changed sync.Cond     // signals a change of spare or err
	count   uint64        // of the newest file
	spare   *file         // allocated, with a durable name; nil: being made
	filled  bool          // spare has all its zeros, and nobody writes to it until it is taken
	err     error         // of the last attempt to make one
	taken   chan struct{} // asks for the next file
	stop    chan struct{}
	stopped sync.WaitGroup
}

// create makes a file of zeros, and returns once it and its name are durable. The zeros are written if filled is set.
func (s *spares) create(size int64, filled bool) (*file, error) {
	s.count++
	f := &file{count: s.count, header: header{id: s.id, size: size}}
	var err error
	if f.File, err = os.OpenFile(filepath.Join(s.dir, fileName(s.count, s.id)), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err = f.allocate(f.size); errors.Is(err, unix.EOPNOTSUPP) { // the file system allocates what is written
		filled, err = true, nil
	}
	for offset := int64(0); filled && offset < f.size && err == nil; offset += int64(len(zeros)) {
		err = f.fillAt(offset)
	}
	if err = errors.Join(err, f.Sync(), durable.SyncPath(s.dir)); err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

// fillAt writes a piece of zeros at an offset, block by block: a larger write would put the blocks into the page cache
// as one folio, and the sync of a record in it would write them all.
func (f *file) fillAt(offset int64) error {
	for end := min(offset+int64(len(zeros)), f.size); offset < end; offset += block {
		if _, err := f.WriteAt(zeros[:min(block, end-offset)], offset); err != nil {
			return err
		}
	}
	return nil
}

// start makes spare files until close.
func (s *spares) start() {
	s.changed.L = &s.mu
	s.taken, s.stop = make(chan struct{}, 1), make(chan struct{})
	s.stopped.Go(s.run)
}

func (s *spares) run() {
	for {
		f, err := s.create(s.size, false)
		s.mu.Lock()
		s.set(f, err)
		s.mu.Unlock()
		if err == nil {
			err = s.fill(f)
		}
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(retryAfter)
		}
		select {
		case <-s.taken:
		case <-retry:
		case <-s.stop:
			return
		}
	}
}

// set notes the result of an attempt to make a file. The lock is held.
func (s *spares) set(f *file, err error) {
	s.spare, s.err, s.filled = f, err, false
	s.changed.Broadcast()
}

// fill writes zeros to a spare file until it is taken.
func (s *spares) fill(f *file) error {
	tick := time.NewTicker(zeroEvery)
	defer tick.Stop()
	for offset := int64(0); offset < s.size; offset += int64(len(zeros)) {
		select {
		case <-tick.C:
		case <-s.stop:
			return nil
		}
		if more, err := s.fillAt(f, offset); !more {
			return err
		}
	}
	s.mu.Lock()
	s.filled = s.spare == f
	s.mu.Unlock()
	return nil
}

func (s *spares) fillAt(f *file, offset int64) (more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spare != f {
		return false, nil
	}
	err = errors.Join(f.fillAt(offset), f.sync())
	if err != nil { // the file must not be used any more
		err = errors.Join(err, f.remove())
		s.set(nil, err)
	}
	return err == nil, err
}

// take returns the spare file, with at least some size. It waits for one that is in the making.
func (s *spares) take(size int64) (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.spare == nil && s.err == nil {
		s.changed.Wait()
	}
	if s.err != nil {
		return nil, s.err
	}
	f := s.spare
	if size > f.size {
		if err := errors.Join(f.allocate(size), f.Sync()); err != nil {
			return nil, err
		}
		f.size = size
	}
	s.spare = nil
	s.taken <- struct{}{}
	return f, nil
}

// close ends the work. The spare file stays; Open removes it.
func (s *spares) close() error {
	close(s.stop)
	s.stopped.Wait()
	if s.spare == nil {
		return nil
	}
	return s.spare.Close()
}
