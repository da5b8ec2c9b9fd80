package boltfile

import (
	"errors"
	"os"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// OpenReadOnly opens an existing file to verify it. Other processes may open it in the same way, but not to write. It fails
// like Open, and also when a bucket is missing.
func OpenReadOnly(path, format string, buckets ...[]byte) (db *bolt.DB, err error) {
	err = CatchDamage(path, func() (err error) {
		db, err = openReadOnly(path, format, buckets)
		return err
	})
	return db, err
}

// NewSuffix ends the name of a file that is being made. It loses it when the file replaces another one, of which bbolt learns nothing.
const NewSuffix = ".new"

// Check checks all pages of a file (Scan), as of the last transaction. Others go on writing.
func Check(db *bolt.DB) error {
	return scan(db, strings.TrimSuffix(db.Path(), NewSuffix), ScanOptions{})
}

// checkBranches checks the pages on which bbolt relies without checking them: a branch that leads back to itself would end the
// process with a stack overflow, and a page that is in use and listed as free would be overwritten. It reads the branches and
// the list of free pages, which are about 1 % of a file.
func checkBranches(db *bolt.DB) error { return scan(db, db.Path(), ScanOptions{BranchesOnly: true}) }

func scan(db *bolt.DB, path string, opt ScanOptions) error {
	return CatchDamage(path, func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		s, tx, err := beginScan(db, f, opt)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // never fails here
		defer s.Close()
		return s.Check()
	})
}

// beginScan begins a scan, and a transaction that keeps what it reads. Two writers in between would replace its meta page, so there are none.
func beginScan(db *bolt.DB, f *os.File, opt ScanOptions) (s *Scan, tx *bolt.Tx, err error) {
	if !db.IsReadOnly() {
		writer, err := db.Begin(true)
		if err != nil {
			return nil, nil, err
		}
		defer func() { _ = writer.Rollback() }()
	}
	if tx, err = db.Begin(false); err != nil {
		return nil, nil, err
	}
	opt.Txid = uint64(tx.ID())
	if s, err = OpenScan(f, opt); err != nil {
		return nil, nil, errors.Join(err, tx.Rollback())
	}
	return s, tx, nil
}
