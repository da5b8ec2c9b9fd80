package boltfile

import (
	"encoding/binary"
	"fmt"
	"os"

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
// cannot know.
type Scan struct {
	opt   ScanOptions
	name  string
	data  []byte // the file, mapped
	meta  meta
	wrong error // what findMeta has found
}

// ScanOptions are a scan's inputs.
type ScanOptions struct {
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
}

// A PageError says which page is damaged.
type PageError struct {
	Page    uint64
	Problem string
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
	s := &Scan{opt: opt, name: f.Name(), data: data}
	if err := CatchDamage(s.name, func() error { s.wrong = s.findMeta(); return nil }); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Txid returns the transaction that is read; 0 when no meta page is valid.
func (s *Scan) Txid() uint64 { return s.meta.txid }

// Close ends the scan.
func (s *Scan) Close() { _ = unix.Munmap(s.data) } // fails only for memory that is not mapped

// Check checks the whole file, until it finds something wrong.
func (s *Scan) Check() error {
	if s.wrong != nil {
		return damaged(s.wrong)
	}
	return CatchDamage(s.name, func() error {
		w := walk{Scan: s, seen: map[uint64]bool{}}
		if err := w.page(s.meta.root, visit{}); err != nil {
			return err
		}
		return w.checkFree()
	})
}

// Records calls use with all records of a file that Check has found sound.
func (s *Scan) Records(use func(Record) error) error {
	return CatchDamage(s.name, func() error {
		w := walk{Scan: s, seen: map[uint64]bool{}, use: use}
		return w.page(s.meta.root, visit{})
	})
}

// InUse returns the offsets and sizes of what is in use: the metas and the pages that can be reached.
func (s *Scan) InUse() (parts [][2]int) {
	parts = [][2]int{{0, headerSize + metaSize}, {s.meta.pageSize, headerSize + metaSize}}
	w := walk{Scan: s, seen: map[uint64]bool{}}
	_ = w.page(s.meta.root, visit{}) // ends at damage
	w.seen[s.meta.free] = true
	for id := range w.seen {
		parts = append(parts, [2]int{int(id) * s.meta.pageSize, s.meta.pageSize})
	}
	return parts
}

// page returns a page with the pages that belong to it.
func (s *Scan) page(id uint64) ([]byte, error) {
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

// Leaves passes the records of all leaves that are not in the list of free pages, also of those below a damaged page. Only the caller knows
// which are sound. It passes nothing when the list or a meta page is lost: older records could be among them. The slices are valid until the scan is closed.
func (s *Scan) Leaves(use func(key, value []byte)) {
	list, err := s.page(s.meta.free)
	if err != nil || s.wrong != nil {
		return
	}
	free, err := freePages(list, s.meta.free)
	if err != nil {
		return
	}
	skip := map[uint64]bool{s.meta.free: true}
	for _, id := range free {
		skip[id] = true
	}
	for id := uint64(2); id < s.meta.size; id++ {
		b, err := s.page(id)
		if skip[id] || err != nil {
			continue
		}
		if p, err := parsePage(b, id, false); err == nil && p.leaf {
			elements, _ := p.elements() // none when the page is damaged
			leaf(elements, use)
		}
	}
}

func leaf(elements []element, use func(key, value []byte)) {
	for _, e := range elements {
		switch {
		case !e.bucket:
			use(e.key, e.value)
		case len(e.value) > bucketSize:
			below, _ := inlineElements(e)
			leaf(below, use)
		}
	}
}
