package badgerdb

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mtagd/store/local/space"
)

// Badger copies to memory maps of sparse files, which ends the process when the disk is full. So whoever writes first looks
// whether there is room for all that Badger may create before the next look: the tables of three memtables, and the log of another
// one. The blocks of the log are allocated when it appears.

const margin = 6 * memTable

var errNearlyFull = errors.New("the disk is nearly full")

// IsNearlyFull reports whether an error says that nothing was written because the disk is nearly full.
func IsNearlyFull(err error) bool { return errors.Is(err, errNearlyFull) || space.IsFull(err) }

// room returns an error when the disk has too little space to write this many bytes of tables.
func (d *DB) room(bytes int64) error {
	if free, err := space.Free(d.dir); err == nil && free < bytes+margin {
		return errNearlyFull
	}
	return nil
}

// logBytes is what Badger writes of the log of a memtable.
const logBytes = memTable + 2<<20

// allocateLogs allocates the blocks of new logs of memtables.
func allocateLogs(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		var info unix.Stat_t
		if err := unix.Stat(path, &info); err != nil || info.Blocks*512 >= logBytes {
			continue // Badger has removed it, or it is allocated
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, logBytes)
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// newestLog returns the name of the newest log of a memtable.
func newestLog(dir string) (name string, err error) {
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem")) // sorted
	if err != nil || len(logs) == 0 {
		return "", err
	}
	return logs[len(logs)-1], nil
}
