package journal

import (
	"os"

	"golang.org/x/sys/unix"

	"mtagd/store/local/space"
)

// spare is a file that does nothing but take space. When another program has filled the disk, the journal gives this
// space back, so that Badger can open and close.
type spare struct{ path string }

const (
	spareName = "spare"
	// spareSize is enough for all memtables at a close, and for the files that Badger writes while it opens.
	spareSize = 32 << 20
	// spareStep is how much the file gives at once for a small file.
	spareStep = 256 << 10
)

// withSpace calls do, and while the disk is full calls it again with more and more space of the file. After an error do must not
// leave anything that takes space.
func (s spare) withSpace(do func() error) error {
	err := do()
	for space.IsFull(err) && s.give(spareStep) {
		err = do()
	}
	return err
}

// size returns how many bytes the file takes.
func (s spare) size() int64 {
	var stat unix.Stat_t
	if err := unix.Stat(s.path, &stat); err != nil {
		return 0
	}
	return stat.Blocks * 512
}

// fill makes the file as large as it should be, or as large as it can be when keep of the free bytes must stay free. An error
// is ignored: the file is filled again a second later, or at the next start.
func (s spare) fill(free, keep int64) {
	size := s.size()
	want := min(spareSize, size+(free-keep)&^(spareStep-1))
	if want <= size {
		return
	}
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Fallocate(int(f.Fd()), 0, 0, want)
}

// give makes the file smaller by this many bytes, or removes it when it has no more. It reports whether the file gave
// something.
func (s spare) give(bytes int64) (given bool) {
	left := s.size() - bytes
	if left > 0 {
		return os.Truncate(s.path, left) == nil
	}
	return os.Remove(s.path) == nil
}
