package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// open opens or creates a file with some buckets.
func open(path string, opt bolt.Options, names ...[]byte) (*DB, error) {
	db, err := OpenChecked(path, opt, CheckBranches)
	if err != nil || opt.ReadOnly {
		return db, err
	}
	return db, db.Update(func(tx *bolt.Tx) error {
		for _, name := range names {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

// bbolt follows the references of a branch, and writes over free pages, without looking. A file in which these are wrong is
// refused.
func TestWrongBranchesAndFreePagesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	things := []byte("things")
	db, err := open(path, bolt.Options{}, things)
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
	sound, err := os.ReadFile(path)
	testenv.Check(t, err)
	f, err := os.Open(path)
	testenv.Check(t, err)
	defer f.Close()
	s, err := OpenScan(f)
	testenv.Check(t, err)
	s.seen, s.use = map[uint64]bool{}, func(string, []byte, []byte) {}
	testenv.Check(t, s.tree(s.meta.root, nil, ""))
	branch := uint64(0)
	for id := range s.seen {
		if b, err := s.page(id); err == nil {
			if p, err := parsePage(b); err == nil && !p.leaf && len(p.elements) > 3 && s.isLeaf(p.elements[0].child) {
				branch = id
			}
		}
	}
	free, child := s.meta.free, func(i int) uint64 { return branch*uint64(s.meta.pageSize) + headerSize + uint64(i)*elementSize + 8 }
	first := binary.LittleEndian.Uint64(sound[child(0):])
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
		content := slices.Clone(sound)
		binary.LittleEndian.PutUint64(content[wrong.at:], wrong.reference)
		damaged := filepath.Join(t.TempDir(), "a.db")
		testenv.Check(t, os.WriteFile(damaged, content, 0o600))
		if _, err := open(damaged, bolt.Options{}, things); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("%s: Open gives %v, want codec.ErrCorrupt", name, err)
		}
		if _, err := open(damaged, bolt.Options{ReadOnly: true}); !errors.Is(err, codec.ErrCorrupt) {
			t.Errorf("%s: read only, it gives %v, want codec.ErrCorrupt", name, err)
		}
	}
}

// A meta page that claims a file of any size is refused, before memory for its pages is asked for.
func TestAMetaPageThatClaimsTooMuch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	db, err := open(path, bolt.Options{})
	testenv.Check(t, err)
	testenv.Check(t, db.Close())
	content, err := os.ReadFile(path)
	testenv.Check(t, err)
	for page := range 2 {
		m := content[page*os.Getpagesize()+headerSize:]
		binary.LittleEndian.PutUint64(m[40:], 1<<52)
		sum := fnv.New64a()
		sum.Write(m[:metaSize-8])
		binary.LittleEndian.PutUint64(m[56:], sum.Sum64())
	}
	binary.LittleEndian.PutUint32(content[2*os.Getpagesize()+12:], 1<<31)
	testenv.Check(t, os.WriteFile(path, content, 0o600))
	if _, err := open(path, bolt.Options{}); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("Open gives %v, want codec.ErrCorrupt", err)
	}
}

// Whatever bbolt has written passes, after each of many changes. A branch has the first key of each child.
func TestWhatBboltWritesPasses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	names := [][]byte{[]byte("large"), []byte("small")}
	db, err := open(path, bolt.Options{}, names...)
	testenv.Check(t, err)
	random := testenv.Random(t)
	for round := range 150 {
		testenv.Check(t, db.Update(func(tx *bolt.Tx) error {
			for range random.IntN(400) {
				b := tx.Bucket(names[0])
				// Long keys make branches below branches.
				key := fmt.Appendf(nil, "%0*d", 4+random.IntN(2)*300, random.IntN(3000))
				if random.IntN(300) == 0 {
					b, key = tx.Bucket(names[1]), key[:1]
				}
				var err error
				if from := b.Cursor(); random.IntN(60) == 0 { // makes pages empty, or nearly so
					for k, _ := from.Seek(key); k != nil && random.IntN(200) > 0 && err == nil; k, _ = from.Next() {
						err = b.Delete(slices.Clone(k))
					}
				} else if random.IntN(5) < 2+round/75 {
					err = b.Delete(key)
				} else {
					err = b.Put(key, make([]byte, random.IntN(200)*(1+random.IntN(40)/39*60)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}))
		if err := Check(db); err != nil {
			t.Fatalf("after round %d: %v", round, err)
		}
	}
	testenv.Check(t, db.Close())
	db, err = open(path, bolt.Options{}, names...)
	testenv.Check(t, err)
	testenv.Check(t, db.Close())
}

// countedReads counts the bytes that are read.
type countedReads struct {
	io.ReaderAt
	bytes int
}

func (c *countedReads) ReadAt(b []byte, at int64) (int, error) {
	c.bytes += len(b)
	return c.ReaderAt.ReadAt(b, at)
}

// Damaged pages that all claim those behind them do not make Leaves read the file many times.
func TestLeavesReadsAFileAFewTimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	things := []byte("things")
	db, err := open(path, bolt.Options{}, things)
	testenv.Check(t, err)
	testenv.Check(t, db.Update(func(tx *bolt.Tx) error {
		for i := range 5000 {
			if err := tx.Bucket(things).Put(fmt.Appendf(nil, "key %d", i), make([]byte, 100)); err != nil {
				return err
			}
		}
		return nil
	}))
	testenv.Check(t, db.Close())
	content, err := os.ReadFile(path)
	testenv.Check(t, err)
	size := uint32(0) // pages
	leaves := func() (n, read int) {
		f := &countedReads{ReaderAt: bytes.NewReader(content)}
		file, err := os.Open(path)
		testenv.Check(t, err)
		defer file.Close()
		s, err := OpenScan(file)
		testenv.Check(t, err)
		s.f, size = f, uint32(s.meta.size)
		s.Leaves(func(_, _ []byte) { n++ })
		return n, f.bytes
	}
	if n, read := leaves(); n < 5000 || read > len(content) {
		t.Errorf("%d records, %d bytes of %d are read", n, read, len(content))
	}
	for id := uint32(2); id < size; id++ {
		if page := content[int(id)*os.Getpagesize():]; binary.LittleEndian.Uint16(page[8:]) == kindLeaf {
			binary.LittleEndian.PutUint32(page[12:], size-id-1)
		}
	}
	if _, read := leaves(); read > 8*len(content) {
		t.Errorf("%d bytes of %d are read", read, len(content))
	}
}
