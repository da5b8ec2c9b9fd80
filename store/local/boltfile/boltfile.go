// Package boltfile opens bbolt files, and finds damage in them, as bbolt has no checksums. It turns the panics of damaged files
// into errors. There are two ways to open a file:
//
//   - Open is for large files whose values are sealed. It checks the branches of the trees and the list of free pages, on which
//     bbolt relies.
//   - OpenChecked is for files that are loaded into memory as a whole, and whose records are sealed. A Scan reads them without bbolt,
//     and checks everything.
//
// Files:
//
//	boltfile.go  Open: files with a format version; CatchDamage
//	check.go     opens files to verify them, and checks pages
//	checked.go   OpenChecked
//	scan.go      Scan: reads a file, and checks all of it
//	meta.go      which transaction a scan reads
//	walk.go      goes through the tree of pages
//	checkpage.go checks a page, and what it says of its children
//	pages.go     the byte form of pages
package boltfile

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// lockWait is how long Open waits while another process has the file open. An operator command holds it for
// milliseconds, a server for as long as it runs.
const lockWait = 2 * time.Second

// BucketMeta is in every file. Its key "format" has the version of the file's layout.
var (
	BucketMeta = []byte("meta")
	keyFormat  = []byte("format")
)

// Open opens or creates a bbolt file with BucketMeta and these buckets. It refuses a file of another format version. It
// fails with store.ErrInUse when another process has the file open.
func Open(path, format string, buckets ...[]byte) (db *bolt.DB, err error) {
	err = CatchDamage(path, func() (err error) {
		db, err = open(path, format, buckets)
		return err
	})
	return db, err
}

func open(path, format string, buckets [][]byte) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, store.ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, asDamage(err))
	}
	err = writeMetasAgain(db)
	if err == nil {
		err = checkBranches(db)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	ready, err := isPrepared(db, format, buckets)
	if err == nil && !ready {
		err = prepare(db, format, buckets)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

func openReadOnly(path, format string, buckets [][]byte) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, ReadOnly: true, FreelistType: bolt.FreelistMapType, PreLoadFreelist: true})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, store.ErrInUse
	}
	if err == nil {
		err = CatchDamage(path, func() error { return checkBranches(db) })
	}
	if err != nil && db != nil {
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, asDamage(err))
	}
	ready, err := isPrepared(db, format, buckets)
	if err == nil && !ready {
		err = fmt.Errorf("%w: a bucket is missing", codec.ErrCorrupt)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

// asDamage adds codec.ErrCorrupt to an error with which bbolt refuses a damaged file.
func asDamage(err error) error {
	for _, damage := range []error{berrors.ErrInvalid, berrors.ErrChecksum, berrors.ErrVersionMismatch} {
		if errors.Is(err, damage) {
			return fmt.Errorf("%w: %w", codec.ErrCorrupt, err)
		}
	}
	if strings.Contains(err.Error(), "file size too small") { // it has no type
		return fmt.Errorf("%w: %w", codec.ErrCorrupt, err)
	}
	return err
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

// isPrepared checks the format of an existing file, and reports whether prepare has nothing to do. So opening a file
// usually writes nothing, and needs no space on a full disk.
func isPrepared(db *bolt.DB, format string, buckets [][]byte) (ready bool, err error) {
	err = db.View(func(tx *bolt.Tx) error {
		meta := tx.Bucket(BucketMeta)
		if meta == nil {
			return nil
		}
		found := meta.Get(keyFormat)
		if found != nil && string(found) != format {
			return codec.UnknownFormat{Found: string(found), Known: format}
		}
		ready = found != nil && !slices.ContainsFunc(buckets, func(name []byte) bool { return tx.Bucket(name) == nil })
		return nil
	})
	return ready, err
}

// prepare writes the format, and creates missing buckets.
func prepare(db *bolt.DB, format string, buckets [][]byte) error {
	return db.Update(func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucketIfNotExists(BucketMeta); err != nil {
			return err
		}
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return tx.Bucket(BucketMeta).Put(keyFormat, []byte(format))
	})
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
