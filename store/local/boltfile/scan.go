package boltfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// Scan reads a bbolt file without bbolt, and checks that
//
//   - each page that is reachable is well-formed, and reached once,
//   - a branch has the first key of each child, with which bbolt finds it again,
//   - the keys of a bucket are in order, also over the pages,
//   - the list of free pages has all other pages, and no more,
//   - both meta pages are whole, so no transaction after the one that is read has existed.
//
// Then a record that is not found does not exist, and bbolt can open the file safely.
type Scan struct {
	f     io.ReaderAt
	meta  meta
	wrong error // the other meta page may be that of a later transaction

	branchesOnly bool            // the leaves, except that with the file's buckets, are not read
	seen         map[uint64]bool // the pages that were reached
	last         []byte          // the last key of the bucket that is read
	use          Use
	all          bool // all records were read
}

// Use gets each bucket, with a nil key, and each record. The slices are valid until it returns.
type Use func(bucket string, key, value []byte)

// damage is an error for what is wrong with a file.
func damage(format string, args ...any) error {
	return fmt.Errorf("%w: %w", codec.ErrCorrupt, fmt.Errorf(format, args...))
}

// OpenScan begins a scan as of the last transaction. No transaction may commit before OpenScan returns. Later ones may,
// while an open read transaction keeps the scanned pages from being reused.
func OpenScan(f *os.File) (*Scan, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s := &Scan{f: f}
	first, ok := s.metaAt(0) // and the second one page later
	second, also := s.metaAt(first.pageSize)
	for size := 1 << 10; !ok && !also && size <= 1<<16; size *= 2 {
		second, also = s.metaAt(size)
		also = also && second.pageSize == size
	}
	if !ok && !also {
		return nil, damage("it has no valid meta page")
	}
	if s.meta = first; !ok || also && second.txid > first.txid {
		s.meta = second
	}
	if !ok || !also {
		s.wrong = damage("a meta page is damaged: the last change may be missing")
	}
	if pages := uint64(info.Size()) / uint64(s.meta.pageSize); pages < s.meta.size {
		return nil, damage("it is cut short: %d pages instead of %d", pages, s.meta.size)
	}
	return s, nil
}

// metaAt reads the meta page at an offset.
func (s *Scan) metaAt(at int) (m meta, ok bool) {
	b := make([]byte, headerSize+metaSize)
	if _, err := s.f.ReadAt(b, int64(at)); err != nil {
		return m, false
	}
	return parseMeta(b[headerSize:])
}

// Txid returns the transaction that is read.
func (s *Scan) Txid() uint64 { return s.meta.txid }

// Records checks the whole file, and calls use with what is in it. The file is sound only if Records returns nil.
func (s *Scan) Records(use Use) error {
	s.seen, s.use = map[uint64]bool{}, use
	if err := s.tree(s.meta.root, nil, ""); err != nil {
		return err
	}
	s.all = true
	return cmp.Or(s.wrong, s.checkFree())
}

// HasAll reports whether Records has found all records: then only a meta page or the list of free pages is damaged.
func (s *Scan) HasAll() bool { return s.all }

// MayBeOlder reports whether the last change may be missing, because a meta page is damaged.
func (s *Scan) MayBeOlder() bool { return s.wrong != nil }

// Check checks all pages of a file, as of the last transaction. Others go on writing.
func Check(db *DB) error {
	f, err := os.Open(strings.TrimSuffix(db.Path(), durable.NewSuffix)) // bbolt does not learn that a file was renamed
	if err != nil {
		return err
	}
	defer f.Close()
	writer, err := db.Begin(true) // keeps others from committing
	if err != nil && !db.IsReadOnly() {
		return err
	}
	tx, err := db.Begin(false)
	s, scanErr := OpenScan(f)
	if writer != nil {
		err = errors.Join(err, writer.Rollback())
	}
	if err == nil {
		defer func() { _ = tx.Rollback() }() // never fails here
	}
	if err = errors.Join(err, scanErr); err != nil {
		return err
	}
	return s.Records(func(string, []byte, []byte) {})
}

// CheckBranches is for OpenChecked: it checks the branches and the list of free pages. It ignores a damaged meta page:
// readers of the file notice when it is older.
func CheckBranches(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 { // a new one
		return err
	}
	s, err := OpenScan(f)
	if err == nil {
		s.branchesOnly, s.wrong = true, nil
		err = s.Records(func(string, []byte, []byte) {})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}

// tree reads a page, and what is below it. first is the key of the branch above; nil: the page is the root of the bucket.
func (s *Scan) tree(id uint64, first []byte, bucket string) error {
	b, err := s.page(id)
	if err == nil {
		err = s.reach(id, uint64(len(b)/s.meta.pageSize))
	}
	if err != nil {
		return err
	}
	p, err := parsePage(b)
	switch {
	case err != nil:
		return damage("page %d %w", id, err)
	case len(p.elements) == 0 && (!p.leaf || first != nil), first != nil && !bytes.Equal(p.elements[0].key, first):
		return damage("the first key of page %d differs from the page above", id)
	case p.leaf:
		return s.leaf(p, bucket)
	}
	unread := s.branchesOnly && bucket != "" && s.isLeaf(p.elements[0].child) // the leaves of a bucket have one depth
	for _, e := range p.elements {
		if unread {
			err = s.reach(e.child, 1)
		} else {
			err = s.tree(e.child, e.key, bucket)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reach notes that n pages from id on were reached. It fails when one of them was reached before.
func (s *Scan) reach(id, n uint64) error {
	for i := id; i < id+n; i++ {
		if i < 2 || i >= s.meta.size || s.seen[i] {
			return damage("page %d is used twice, or is outside of the file", i)
		}
		s.seen[i] = true
	}
	return nil
}

func (s *Scan) isLeaf(id uint64) bool {
	b, err := s.page(id)
	return err == nil && binary.LittleEndian.Uint16(b[8:]) == kindLeaf
}

// leaf reads the records of a bucket, or the buckets of the file.
func (s *Scan) leaf(p page, bucket string) error {
	for _, e := range p.elements {
		if s.last != nil && bytes.Compare(s.last, e.key) >= 0 {
			return damage("key %q of bucket %q is not in order", e.key, bucket)
		}
		s.last = e.key
		switch {
		case e.bucket != (bucket == ""):
			return damage("key %q of bucket %q has the wrong type", e.key, bucket)
		case !e.bucket:
			s.use(bucket, e.key, e.value)
		default:
			if err := s.bucket(e); err != nil {
				return err
			}
			s.last = e.key
		}
	}
	return nil
}

func (s *Scan) bucket(e element) error {
	s.last = nil
	s.use(string(e.key), nil, nil)
	root, inline, err := parseBucket(e.value)
	switch {
	case err != nil:
		return damage("bucket %q %w", e.key, err)
	case root != 0:
		return s.tree(root, nil, string(e.key))
	}
	return s.leaf(inline, string(e.key))
}

// checkFree checks that each page is either in the tree, or in the list of free pages.
func (s *Scan) checkFree() error {
	b, free, err := s.freePages()
	if err == nil {
		err = s.reach(s.meta.free, uint64(len(b)/s.meta.pageSize))
	}
	for _, id := range free {
		if err == nil {
			err = s.reach(id, 1)
		}
	}
	if err != nil {
		return fmt.Errorf("free pages: %w", err)
	}
	// A scan of the branches does not know how many pages a leaf has.
	if missing := s.meta.size - 2 - uint64(len(s.seen)); missing != 0 && !s.branchesOnly {
		return damage("%d free pages are not in the list", missing)
	}
	return nil
}

func (s *Scan) freePages() (b []byte, free []uint64, err error) {
	if b, err = s.page(s.meta.free); err == nil {
		free, err = parseFree(b)
	}
	return b, free, err
}

// page reads a page with the pages that belong to it.
func (s *Scan) page(id uint64) ([]byte, error) {
	if id < 2 || id >= s.meta.size {
		return nil, damage("page %d is outside of the file", id)
	}
	b := make([]byte, s.meta.pageSize)
	_, err := s.f.ReadAt(b, int64(id)*int64(s.meta.pageSize))
	if err != nil {
		return nil, damage("page %d: %w", id, err)
	}
	if binary.LittleEndian.Uint64(b) != id {
		return nil, damage("page %d says that it is page %d", id, binary.LittleEndian.Uint64(b))
	}
	more := uint64(binary.LittleEndian.Uint32(b[12:]))
	if more >= s.meta.size-id {
		return nil, damage("page %d ends outside of the file", id)
	}
	if more > 0 {
		b = make([]byte, int(1+more)*s.meta.pageSize)
		if _, err := s.f.ReadAt(b, int64(id)*int64(s.meta.pageSize)); err != nil {
			return nil, damage("page %d: %w", id, err)
		}
	}
	return b, nil
}

// Leaves passes the records of all leaves that are not in the list of free pages, also of those below a damaged page. Only
// the caller knows which are sound. It passes nothing when the list is lost: older records could be among them. Of a file in
// which pages overlap, it may not read all.
func (s *Scan) Leaves(use func(key, value []byte)) {
	_, free, err := s.freePages()
	if err != nil {
		return
	}
	skip := map[uint64]bool{s.meta.free: true}
	for _, id := range free {
		skip[id] = true
	}
	left := 2 * s.meta.size // pages to read: damaged ones may all claim those behind them
	for id := uint64(2); id < s.meta.size && left > 0; id++ {
		if skip[id] {
			continue
		}
		if b, err := s.page(id); err == nil {
			p, _ := parsePage(b) // no elements when it is damaged
			records(p, use)
			left -= min(left, uint64(len(b)/s.meta.pageSize))
		}
	}
}

func records(p page, use func(key, value []byte)) {
	if !p.leaf {
		return
	}
	for _, e := range p.elements {
		if !e.bucket {
			use(e.key, e.value)
		} else if _, inline, err := parseBucket(e.value); err == nil {
			records(inline, use)
		}
	}
}
