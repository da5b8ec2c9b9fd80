package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// bbolt follows the references of a branch, and writes over free pages, without looking. A file in which these are wrong is
// refused.
func TestWrongBranchesAndFreePagesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	things := []byte("things")
	db, err := Open(path, "1", things)
	testenv.Check(t, err)
	for range 2 { // the second time frees pages
		if err := db.Update(func(tx *bolt.Tx) error {
			var err error
			for i := range 2000 {
				err = errors.Join(err, tx.Bucket(things).Put(fmt.Appendf(nil, "key %d", i), make([]byte, 100)))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Check(t, db.Close())
	f, err := os.Open(path)
	testenv.Check(t, err)
	defer f.Close()
	s, err := OpenScan(f, ScanOptions{})
	testenv.Check(t, err)
	defer s.Close()
	testenv.Check(t, s.Check())
	branch := uint64(2)
	for id := range s.meta.size {
		b, err := s.page(id)
		if err != nil {
			continue
		}
		p, err := parsePage(b, id, false)
		elements, elementsErr := p.elements()
		if err == nil && elementsErr == nil && !p.leaf && s.isLeaf(elements[0].child) && isReached(s, id) {
			branch = id
		}
	}
	free, child := s.meta.free, func(i int) uint64 { return branch*uint64(s.meta.pageSize) + headerSize + uint64(i)*elementSize + 8 }
	first := binary.LittleEndian.Uint64(s.data[child(0):])
	for name, wrong := range map[string]struct{ at, reference uint64 }{
		"a branch that leads to itself":                  {child(3), branch},
		"a branch that leads to its tree's parent":       {child(3), s.meta.root},
		"two references to one leaf":                     {child(3), first},
		"a reference out of the file":                    {child(3), s.meta.size},
		"a reference to the list of free pages":          {child(3), free},
		"a leaf in the list of free pages":               {free*uint64(s.meta.pageSize) + headerSize, first},
		"the list of free pages in itself":               {free*uint64(s.meta.pageSize) + headerSize, free},
		"a page outside of the file in the list of free": {free*uint64(s.meta.pageSize) + headerSize, s.meta.size},
	} {
		content := slices.Clone(s.data)
		binary.LittleEndian.PutUint64(content[wrong.at:], wrong.reference)
		damaged := filepath.Join(t.TempDir(), "a.db")
		testenv.Check(t, os.WriteFile(damaged, content, 0o600))
		if _, err := Open(damaged, "1", things); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("%s: Open gives %v, want codec.ErrCorrupt", name, err)
		}
		if _, err := OpenReadOnly(damaged, "1", things); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("%s: OpenReadOnly gives %v, want codec.ErrCorrupt", name, err)
		}
	}
}

func isReached(s *Scan, id uint64) bool {
	reached := walk{Scan: s, seen: map[uint64]bool{}}
	return reached.page(s.meta.root, visit{}) == nil && reached.seen[id]
}
