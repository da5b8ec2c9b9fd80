package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
)

// OpenChecked opens or creates a bbolt file. Before bbolt reads a file that is not empty, it calls check, which may replace
// the file and return an error. Nobody else changes it meanwhile. OpenChecked fails with store.ErrInUse when another process has the file open.
func OpenChecked(path string, check func(f *os.File) error) (db *bolt.DB, err error) {
	err = CatchDamage(path, func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, FreelistType: bolt.FreelistMapType,
			OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
				f, err := openLocked(name, flag, mode, unix.LOCK_EX) // bbolt locks it again, which does nothing
				if err != nil {
					return nil, err
				}
				info, err := f.Stat()
				if err == nil && info.Size() > 0 {
					err = check(f)
				}
				if err != nil {
					return nil, errors.Join(err, f.Close())
				}
				return f, nil
			}})
		if err != nil {
			return err
		}
		if err := writeMetasAgain(db); err != nil {
			return errors.Join(err, db.Close())
		}
		return nil
	})
	return db, named(path, err)
}

// OpenToRead opens an existing file for scans. Others may open it in the same way, but not to write. It fails with
// store.ErrInUse like OpenChecked.
func OpenToRead(path string) (*os.File, error) {
	f, err := openLocked(path, os.O_RDONLY, 0, unix.LOCK_SH)
	return f, named(path, err)
}

func openLocked(path string, flag int, mode os.FileMode, lock int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockRetry) {
		err := unix.Flock(int(f.Fd()), lock|unix.LOCK_NB)
		switch {
		case err == nil:
			if !isAt(f, path) { // it was replaced before it was locked
				return openAgain(f, path, flag, mode, lock)
			}
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(store.ErrInUse, f.Close())
		}
	}
}

// isAt reports whether a file is the one at a path.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	there, thereErr := os.Stat(path)
	return err == nil && thereErr == nil && os.SameFile(own, there)
}

func openAgain(f *os.File, path string, flag int, mode os.FileMode, lock int) (*os.File, error) {
	if err := f.Close(); err != nil {
		return nil, err
	}
	return openLocked(path, flag, mode, lock)
}

// lockRetry is how often a lock is tried, as bbolt does it.
const lockRetry = 50 * time.Millisecond

// named adds the path of a file to an error that does not have it.
func named(path string, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); err == nil || ok || errors.Is(err, store.ErrInUse) {
		return err
	}
	return fmt.Errorf("open %s: %w", filepath.Clean(path), err)
}
