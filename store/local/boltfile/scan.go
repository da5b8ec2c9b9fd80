package boltfile

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
)

// Scan reads bbolt files without bbolt, which trusts its pages: a wrong bit can make it skip records, read others twice or for
// ever, or write over pages that are in use. A scan checks that
//
//   - each page that is reachable is well-formed, and reached once,
//   - the keys are in order, also over the pages,
//   - the list of free pages has all other pages, and no more,
//   - no transaction after the one that is read has existed, as far as the other meta page can tell.
//
// So what is not found is not there, and a bbolt that opens the file afterwards is safe. Whether a value is right the scan
// cannot know: Options.Sound says it.
type Scan struct {
	opt  ScanOptions
	name string
	data []byte // the file, mapped
	meta meta

	patched   map[uint64][]byte // pages with a corrected bit
	tolerated map[uint64]bool   // pages whose unsound values, or keys of children, could not be corrected
	repaired  uint64            // the page that is being repaired: its keys must be those of its children
	corrected map[int64]byte    // bytes of the file that had a wrong bit, as they should be
}

// ScanOptions are a scan's inputs.
type ScanOptions struct {
	// Sound reports whether a record is as it was written. path is the record's bucket. Without it nothing is corrected but meta
	// pages, because nobody can tell what is right.
	Sound func(path []string, key, value []byte) bool
	// Bucket reports whether a bucket may have this name and sequence; nil when nobody can tell.
	Bucket func(path []string, name []byte, sequence uint64) bool
	// Txid is the transaction to read; 0 for the last one.
	Txid uint64
	// BranchesOnly leaves out the leaves, except those with the file's buckets: that these are not damaged is not checked.
	BranchesOnly bool
}

// Record is a record as a scan finds it. Key and Value are valid until the scan is closed.
type Record struct {
	Path       []string
	Key, Value []byte
	Damaged    bool // Sound has refused it
}

// A PageError says which page is damaged.
type PageError struct {
	Page    uint64
	Problem string

	suspects []suspect // pages that may have the wrong bit
	value    bool      // the page is well-formed, but has an unsound value
	keyAt    int       // not 0: where the page has a key of a child that is not the child's first key. Readers find everything
}

func (e *PageError) Error() string { return fmt.Sprintf("page %d %s", e.Page, e.Problem) }

// Unwrap makes it a codec.ErrCorrupt.
func (e *PageError) Unwrap() error { return codec.ErrCorrupt }

// OpenScan maps a file, which must not be empty, for a scan.
func OpenScan(f *os.File, opt ScanOptions) (*Scan, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < 4*headerSize {
		return nil, fmt.Errorf("%w: it is too short", codec.ErrCorrupt)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	s := &Scan{opt: opt, name: f.Name(), data: data,
		patched: map[uint64][]byte{}, tolerated: map[uint64]bool{}, corrected: map[int64]byte{}}
	if err := CatchDamage(s.name, s.findMeta); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// IsSealed reports whether the records have seals (ScanOptions.Sound).
func (s *Scan) IsSealed() bool { return s.opt.Sound != nil }

// Txid returns the transaction that is read.
func (s *Scan) Txid() uint64 { return s.meta.txid }

// Close ends the scan.
func (s *Scan) Close() { _ = unix.Munmap(s.data) } // fails only for memory that is not mapped

// Check checks the whole file. Where a page has one wrong bit, it is corrected (Corrected). A value that is damaged in
// another way is a record with Damaged set; any other damage is a *PageError.
func (s *Scan) Check() error {
	return CatchDamage(s.name, func() error {
		for tries := 0; ; tries++ {
			err := s.check()
			e, ok := err.(*PageError)
			if !ok || s.IsSealed() && tries < maxCorrections && s.correct(e) {
				if !ok {
					return err
				}
				continue
			}
			if !e.value && e.keyAt == 0 {
				return e
			}
			s.tolerated[e.Page] = true
		}
	})
}

// check checks the file once, until it finds something wrong.
func (s *Scan) check() error {
	w := walk{Scan: s, seen: map[uint64]*suspect{}}
	if err := w.page(s.meta.root, visit{}); err != nil {
		return err
	}
	return w.checkFree()
}

// Records calls use with all records of a file that Check has found sound.
func (s *Scan) Records(use func(Record) error) error {
	return CatchDamage(s.name, func() error {
		w := walk{Scan: s, seen: map[uint64]*suspect{}, use: use}
		return w.page(s.meta.root, visit{})
	})
}

// Salvage calls use with the records of the pages that can be read, and lost with what is wrong with the others.
func (s *Scan) Salvage(use func(Record) error, lost func(path []string, err error)) error {
	return CatchDamage(s.name, func() error {
		w := walk{Scan: s, seen: map[uint64]*suspect{}, use: use, lost: lost}
		return w.page(s.meta.root, visit{})
	})
}

// SalvageBucket is Salvage for one bucket of the root. It may be called while the file is written, as long as the pages of this
// bucket are not.
func (s *Scan) SalvageBucket(name string, use func(Record) error, lost func(path []string, err error)) error {
	return CatchDamage(s.name, func() error {
		b, err := s.page(s.meta.root)
		if err != nil {
			return err
		}
		w := walk{Scan: s, seen: map[uint64]*suspect{}, use: use, lost: lost}
		v := visit{}
		for {
			p, err := parsePage(b, binary.LittleEndian.Uint64(b), false)
			if err != nil {
				return err
			}
			elements, err := p.elements()
			if err != nil {
				return err
			}
			i, found := slices.BinarySearchFunc(elements, name, func(e element, name string) int { return strings.Compare(string(e.key), name) })
			if p.leaf {
				if !found {
					return nil
				}
				return w.values(&suspect{s.meta.root, v}, elements[i:i+1], nil)
			}
			if !found {
				i--
			}
			if i < 0 {
				return nil
			}
			if b, err = s.page(elements[i].child); err != nil {
				return err
			}
		}
	})
}

// InUse returns the offsets and sizes of what is in use: the metas and the pages that can be reached.
func (s *Scan) InUse() (parts [][2]int) {
	parts = [][2]int{{0, headerSize + metaSize}, {s.meta.pageSize, headerSize + metaSize}}
	w := walk{Scan: s, seen: map[uint64]*suspect{}}
	_ = w.page(s.meta.root, visit{}) // ends at damage
	w.seen[s.meta.free] = nil
	for id := range w.seen {
		parts = append(parts, [2]int{int(id) * s.meta.pageSize, s.meta.pageSize})
	}
	return parts
}

// page returns a page with the pages that belong to it.
func (s *Scan) page(id uint64) ([]byte, error) {
	if b, ok := s.patched[id]; ok {
		return b, nil
	}
	if id < 2 || id >= s.meta.size {
		return nil, fmt.Errorf("is outside of the file")
	}
	at := int(id) * s.meta.pageSize
	more := uint64(binary.LittleEndian.Uint32(s.data[at+12:]))
	if more >= s.meta.size-id {
		return nil, fmt.Errorf("has its end outside of the file")
	}
	return s.data[at : at+int(1+more)*s.meta.pageSize], nil
}
