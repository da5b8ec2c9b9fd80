// Package boltfile opens bbolt files, and finds damage in them. bbolt has no checksums and trusts its pages: a wrong bit can
// make it skip records, write over pages that are in use, or recurse until the process ends. So each file is scanned before
// bbolt reads it: all of it, or with CheckBranches what bbolt relies on, the branches of the trees and the list of free
// pages, which are about 1 % of a file. Only the caller can tell whether a record is right, by a seal of its own.
//
//	boltfile.go  opens files, begins transactions; CatchDamage
//	scan.go      Scan: reads a file without bbolt, and checks it
//	pages.go     the byte form of pages
package boltfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// DB is a bbolt file. bbolt keeps its locks when it panics at the beginning of a transaction, as it does when it cannot read
// a valid meta page: whatever comes next would wait for ever. After that, transactions fail, and Close leaves bbolt out.
type DB struct {
	*bolt.DB
	name string // in errors
	file *os.File

	beginning sync.Mutex
	stuck     bool // guarded by beginning
}

var errStuck = fmt.Errorf("%w: its meta pages could not be read", codec.ErrCorrupt)

// Begin begins a transaction. It begins one to read before one to write, so that it panics while others wait for beginning,
// and not for bbolt's lock of writers.
func (d *DB) Begin(writable bool) (*bolt.Tx, error) {
	tx, err := d.beginToRead()
	if err != nil || !writable {
		return tx, err
	}
	if err := tx.Rollback(); err != nil {
		return nil, err
	}
	return d.DB.Begin(true)
}

func (d *DB) beginToRead() (tx *bolt.Tx, err error) {
	d.beginning.Lock()
	defer d.beginning.Unlock()
	if d.stuck {
		return nil, errStuck
	}
	d.stuck = true
	tx, err = d.DB.Begin(false)
	d.stuck = false
	return tx, err
}

// View is bbolt's View, with Begin and CatchDamage.
func (d *DB) View(do func(*bolt.Tx) error) error {
	return CatchDamage(d.name, func() error {
		tx, err := d.Begin(false)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // never fails here
		return do(tx)
	})
}

// Update is bbolt's Update, with Begin.
func (d *DB) Update(do func(*bolt.Tx) error) error {
	tx, err := d.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // fails only when the transaction has ended already
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Close closes the file, when all transactions have ended.
func (d *DB) Close() error {
	d.beginning.Lock()
	defer d.beginning.Unlock()
	if d.stuck {
		return errors.Join(errStuck, unix.Flock(int(d.file.Fd()), unix.LOCK_UN), d.file.Close()) // the memory map would keep the lock
	}
	return d.DB.Close()
}

// OpenChecked opens or creates a bbolt file. Before bbolt reads a file, it calls check; bbolt fills an empty one. check
// may replace the file and return an error. Nobody else changes it meanwhile. OpenChecked fails with store.ErrInUse when
// another process has the file open.
func OpenChecked(path string, opt bolt.Options, check func(f *os.File) error) (db *DB, err error) {
	d := &DB{name: strings.TrimSuffix(filepath.Base(path), durable.NewSuffix)}
	opt.FreelistType = bolt.FreelistMapType
	opt.OpenFile = func(name string, flag int, _ os.FileMode) (*os.File, error) {
		f, err := openLocked(name, flag) // bbolt locks it again, which does nothing
		if err != nil {
			return nil, err
		}
		if err := check(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		d.file = f
		return f, nil
	}
	err = CatchDamage(path, func() (err error) {
		d.DB, err = bolt.Open(path, 0o600, &opt)
		if err == nil && !opt.ReadOnly {
			if err = writeMetasAgain(d.DB); err != nil {
				err = errors.Join(err, d.DB.Close())
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// writeMetasAgain writes the two meta pages again, as they are, and syncs them. When the last transaction before a restart
// could not sync its meta page, the page cache may have that page though the disk does not, and it would never be written.
// The next transaction would reuse pages that the meta page on the disk still needs. The file is locked.
func writeMetasAgain(db *bolt.DB) error {
	f, err := os.OpenFile(db.Path(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	metas := make([]byte, 2*db.Info().PageSize)
	if _, err := f.ReadAt(metas, 0); err != nil {
		return err
	}
	if _, err := f.WriteAt(metas, 0); err != nil {
		return err
	}
	return f.Sync()
}

// OpenToRead opens an existing file for scans. Others may open it in the same way, but not to write. It fails with
// store.ErrInUse like OpenChecked.
func OpenToRead(path string) (*os.File, error) { return openLocked(path, os.O_RDONLY) }

// How long openLocked waits while another process has the file open, and how often it looks. An operator command holds it
// for milliseconds, a server for as long as it runs.
const (
	lockWait  = 2 * time.Second
	lockRetry = 50 * time.Millisecond
)

// openLocked opens and locks a file: alone, or together with others that only read it.
func openLocked(path string, flag int) (*os.File, error) {
	lock := unix.LOCK_EX
	if flag == os.O_RDONLY {
		lock = unix.LOCK_SH
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockRetry) {
		f, err := os.OpenFile(path, flag, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), lock|unix.LOCK_NB)
		if err == nil && isAt(f, path) { // else it was replaced before it was locked
			return f, nil
		}
		if err = errors.Join(err, f.Close()); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock: %w", err)
		}
		if time.Now().After(deadline) {
			return nil, store.ErrInUse
		}
	}
}

// isAt reports whether a file is the one at a path.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	there, thereErr := os.Stat(path)
	return err == nil && thereErr == nil && os.SameFile(own, there)
}

// CatchDamage calls do, which reads or writes a bbolt file, and turns its panics into errors that name the file. bbolt
// panics on a damaged page, and reading past the end of a file that was cut short is a memory fault. In a goroutine
// that serves no request, nothing else would recover from these, and they would end the process.
func CatchDamage(file string, do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %w: %v", file, codec.ErrCorrupt, p)
		}
	}()
	return do()
}
