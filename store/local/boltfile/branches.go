package boltfile

import (
	"os"

	bolt "go.etcd.io/bbolt"
)

// checkBranches checks the pages on which bbolt relies without checking them: a branch that leads back to itself would end the
// process with a stack overflow, and a page that is in use and listed as free would be overwritten. It reads the branches and
// the list of free pages, which are about 1 % of a file.
func checkBranches(db *bolt.DB) error {
	return db.View(func(tx *bolt.Tx) error {
		f, err := os.Open(db.Path())
		if err != nil {
			return err
		}
		defer f.Close()
		s, err := OpenScan(f, ScanOptions{Txid: uint64(tx.ID()), BranchesOnly: true})
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Check()
	})
}
