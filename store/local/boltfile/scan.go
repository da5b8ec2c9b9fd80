package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
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

// findMeta chooses the meta page that counts. When one is damaged, it may have been that of the last transaction. Then the
// other one would silently undo that transaction, so it is only taken when the damaged one can be seen to be older.
func (s *Scan) findMeta() error {
	var metas [2]meta
	var valid [2]bool
	// The first meta is at 0, the second one page later.
	metas[0], valid[0] = s.metaAt(0)
	size := metas[0].pageSize
	if !valid[0] {
		for size = 1 << 10; size <= 1<<16; size *= 2 {
			if m, ok := s.metaAt(size); ok && m.pageSize == size {
				break
			}
		}
	}
	if size > 0 {
		metas[1], valid[1] = s.metaAt(size)
	}
	newest := -1
	for i := range metas {
		if valid[i] && metas[i].pageSize >= 1<<9 && (s.opt.Txid == 0 || metas[i].txid == s.opt.Txid) &&
			(newest < 0 || metas[i].txid > metas[newest].txid) {
			newest = i
		}
	}
	if newest < 0 {
		return fmt.Errorf("%w: it has no valid meta page", codec.ErrCorrupt)
	}
	s.meta = metas[newest]
	if other := 1 - newest; !valid[other] && s.opt.Txid == 0 && metas[other].txid != s.meta.txid-1 {
		return &PageError{Page: uint64(other), Problem: "is a damaged meta page: the last change may be missing"}
	}
	if s.meta.size > uint64(len(s.data)/s.meta.pageSize) {
		return fmt.Errorf("%w: it is cut short: %d bytes instead of %d", codec.ErrCorrupt, len(s.data), s.meta.size*uint64(s.meta.pageSize))
	}
	return nil
}

// metaAt reads the meta page at an offset, and corrects one bit.
func (s *Scan) metaAt(offset int) (m meta, ok bool) {
	if offset+headerSize+metaSize > len(s.data) {
		return m, false
	}
	b := slices.Clone(s.data[offset : offset+headerSize+metaSize])
	if m, ok = parseMeta(b); ok {
		return m, true
	}
	for i := headerSize; i < len(b); i++ {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if m, ok := parseMeta(b); ok {
				s.corrected[int64(offset+i)] = b[i]
				return m, true
			}
			b[i] ^= 1 << bit
		}
	}
	return m, false
}

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

// walk goes through the tree of pages once.
type walk struct {
	*Scan
	seen map[uint64]*suspect // the pages that were reached → their parent
	use  func(Record) error
	lost func(path []string, err error)
}

// visit is how a page was reached: the bucket whose page it is, the bounds of its keys (nil: none), and its parent.
type visit struct {
	path   []string
	lo, hi []byte
	parent *suspect // nil for the root
}

// suspect is a page that may have a wrong bit, and how it was reached.
type suspect struct {
	id uint64
	visit
}

// page reads a page and what is below it.
func (w *walk) page(id uint64, v visit) error {
	if e := w.read(id, v); e != nil {
		e.suspects = append(e.suspects, suspect{id, v})
		if v.parent != nil && !e.value && e.keyAt == 0 {
			e.suspects = append(e.suspects, *v.parent)
		}
		if w.lost == nil {
			return e
		}
		w.lost(v.path, e)
		return nil
	}
	return w.below(id, v)
}

// read checks a page by itself, and what it says of its children.
func (w *walk) read(id uint64, v visit) *PageError {
	if e := w.reach(id, v); e != nil {
		return e
	}
	b, err := w.Scan.page(id)
	if err != nil {
		return &PageError{Page: id, Problem: err.Error()}
	}
	for i := id + 1; i < id+uint64(len(b)/w.meta.pageSize); i++ {
		if _, again := w.seen[i]; again {
			return &PageError{Page: id, Problem: "overlaps another page"}
		}
		w.seen[i] = v.parent
	}
	return w.checkPage(id, b, v)
}

// reach notes that a page was reached, which must not have been so before.
func (w *walk) reach(id uint64, v visit) *PageError {
	if id < 2 || id >= w.meta.size {
		return &PageError{Page: id, Problem: "is outside of the file"}
	}
	if parent, again := w.seen[id]; again {
		e := &PageError{Page: id, Problem: "is in two places"}
		if parent != nil {
			e.suspects = []suspect{*parent}
		}
		return e
	}
	w.seen[id] = v.parent
	return nil
}

// checkPage checks what can be seen of a page without the rest of the tree.
func (s *Scan) checkPage(id uint64, b []byte, v visit) *PageError {
	p, err := parsePage(b, id, false)
	if err == nil && p.n == 0 && v.parent != nil {
		err = errPage // bbolt has no empty pages, except in a new file
	}
	var elements []element
	if err == nil {
		elements, err = p.elements()
	}
	if end := dataEnd(elements); err == nil && len(b) != max(1, (end+s.meta.pageSize-1)/s.meta.pageSize)*s.meta.pageSize &&
		len(b) != (end/s.meta.pageSize+1)*s.meta.pageSize {
		err = fmt.Errorf("has another size than its keys and values")
	}
	if err == nil && len(elements) > 0 {
		first, last := elements[0].key, elements[len(elements)-1].key
		if bytes.Compare(first, v.lo) < 0 || v.hi != nil && bytes.Compare(last, v.hi) >= 0 {
			err = fmt.Errorf("has keys of another page")
		}
	}
	if err != nil {
		return &PageError{Page: id, Problem: err.Error()}
	}
	switch {
	case p.leaf:
		return s.checkLeaf(id, elements, v.path)
	case s.opt.BranchesOnly:
		return nil
	default:
		return s.checkChildren(&suspect{id, v}, elements)
	}
}

// checkChildren checks that the children of a branch are pages with keys of their range. A key of the branch that has one other
// bit than the first key of the child is damage as well: when bbolt changes the child, it looks for that key in the branch.
func (s *Scan) checkChildren(parent *suspect, elements []element) *PageError {
	var wrong *PageError
	at := headerSize + len(elements)*elementSize
	for i, e := range elements {
		keyAt := at
		at += len(e.key)
		v := parent.child(elements, i)
		b, err := s.page(e.child)
		if err != nil {
			return &PageError{Page: parent.id, Problem: fmt.Sprintf("refers to page %d, which %v", e.child, err),
				suspects: []suspect{{e.child, v}}}
		}
		p, err := parsePage(b, e.child, false)
		if err != nil || p.n == 0 {
			continue // found when the child is read
		}
		below, err := p.elements()
		if err != nil {
			continue
		}
		if bytes.Compare(below[0].key, v.lo) < 0 || v.hi != nil && bytes.Compare(below[len(below)-1].key, v.hi) >= 0 {
			return &PageError{Page: parent.id, Problem: fmt.Sprintf("refers to page %d, which has other keys", e.child),
				suspects: []suspect{{e.child, v}}}
		}
		if parent.id == s.repaired && !bytes.Equal(e.key, below[0].key) {
			return &PageError{Page: parent.id, Problem: fmt.Sprintf("has another key for page %d than that page", e.child)}
		}
		if i, apart := oneBitApart(e.key, below[0].key); apart && !s.tolerated[parent.id] {
			wrong = &PageError{Page: parent.id, Problem: fmt.Sprintf("has another key for page %d than that page", e.child), keyAt: keyAt + i}
		}
	}
	return wrong
}

// oneBitApart reports whether two keys differ in one bit, and in which byte.
func oneBitApart(a, b []byte) (at int, apart bool) {
	if len(a) != len(b) {
		return 0, false
	}
	n := 0
	for i := range a {
		if d := a[i] ^ b[i]; d != 0 {
			at = i
			n += bits.OnesCount8(d)
		}
	}
	return at, n == 1
}

// child is how a branch reaches its i-th child.
func (parent *suspect) child(elements []element, i int) visit {
	v := visit{path: parent.path, lo: elements[i].key, hi: parent.hi, parent: parent}
	if i+1 < len(elements) {
		v.hi = elements[i+1].key
	}
	return v
}

// checkLeaf checks the values of a leaf: buckets, and whether the others are sound.
func (s *Scan) checkLeaf(id uint64, elements []element, path []string) *PageError {
	var unsound *PageError
	for _, e := range elements {
		switch {
		case !e.bucket:
			if s.opt.Sound != nil && !s.tolerated[id] && !s.opt.Sound(path, e.key, e.value) {
				unsound = &PageError{Page: id, Problem: fmt.Sprintf("has a damaged record %s %q", strings.Join(path, "/"), e.key), value: true}
			}
		case len(e.value) < bucketSize:
			return &PageError{Page: id, Problem: "has a bucket that is cut short"}
		case s.opt.Bucket != nil && !s.opt.Bucket(path, e.key, binary.LittleEndian.Uint64(e.value[8:])):
			return &PageError{Page: id, Problem: fmt.Sprintf("has an unknown bucket %q", e.key)}
		case isInline(e):
			below, err := inlineElements(e)
			if err != nil {
				return &PageError{Page: id, Problem: err.Error()}
			}
			if err := s.checkLeaf(id, below, childPath(path, e)); err != nil {
				if !err.value {
					return err
				}
				unsound = err
			}
		case len(e.value) != bucketSize:
			return &PageError{Page: id, Problem: "has a bucket that is too long"}
		default:
			child := binary.LittleEndian.Uint64(e.value)
			b, err := s.page(child)
			if err == nil {
				_, err = parsePage(b, child, false)
			}
			if err != nil {
				return &PageError{Page: id, Problem: fmt.Sprintf("refers to page %d, which %v", child, err),
					suspects: []suspect{{child, visit{path: childPath(path, e), parent: &suspect{id: id}}}}}
			}
		}
	}
	return unsound
}

// isInline reports whether the only page of a bucket is in its value.
func isInline(e element) bool { return binary.LittleEndian.Uint64(e.value) == 0 }

func inlineElements(e element) ([]element, error) {
	p, err := parsePage(e.value[bucketSize:], 0, true)
	if err != nil {
		return nil, err
	}
	below, err := p.elements()
	if err == nil && dataEnd(below) != len(p.b) {
		err = errPage
	}
	return below, err
}

func childPath(path []string, e element) []string { return append(slices.Clone(path), string(e.key)) }

// below reads what is below a page.
func (w *walk) below(id uint64, v visit) error {
	b, err := w.Scan.page(id)
	if err != nil {
		return err
	}
	p, err := parsePage(b, id, false)
	if err != nil {
		return err
	}
	elements, err := p.elements()
	if err != nil {
		return err
	}
	of := &suspect{id, v}
	if p.leaf {
		return w.values(of, elements, v.path)
	}
	// The leaves of a tree have one depth.
	leaves := w.opt.BranchesOnly && len(v.path) > 0 && len(elements) > 0 && w.isLeaf(elements[0].child)
	for i, e := range elements {
		child := of.child(elements, i)
		if !leaves {
			if err := w.page(e.child, child); err != nil {
				return err
			}
		} else if err := w.reach(e.child, child); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scan) isLeaf(id uint64) bool {
	b, err := s.page(id)
	return err == nil && binary.LittleEndian.Uint16(b[8:]) == kindLeaf
}

// values reads the records and buckets of a leaf.
func (w *walk) values(of *suspect, elements []element, path []string) error {
	for _, e := range elements {
		switch {
		case e.bucket && isInline(e):
			below, err := inlineElements(e)
			if err != nil {
				return err
			}
			if err := w.values(of, below, childPath(path, e)); err != nil {
				return err
			}
		case e.bucket:
			if err := w.page(binary.LittleEndian.Uint64(e.value), visit{path: childPath(path, e), parent: of}); err != nil {
				return err
			}
		case w.use != nil:
			damaged := w.opt.Sound != nil && !w.opt.Sound(path, e.key, e.value)
			if err := w.use(Record{path, e.key, e.value, damaged}); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkFree checks that each page is either in the tree, or in the list of free pages.
func (w *walk) checkFree() error {
	list := suspect{id: w.meta.free}
	b, err := w.Scan.page(list.id)
	var free []uint64
	if err == nil {
		free, err = freePages(b, list.id)
	}
	if err != nil {
		return &PageError{Page: list.id, Problem: err.Error(), suspects: []suspect{list}}
	}
	used := map[uint64]bool{}
	for i := range uint64(len(b) / w.meta.pageSize) {
		used[list.id+i] = true
	}
	for _, id := range free {
		parent, reached := w.seen[id]
		if reached || used[id] || id < 2 || id >= w.meta.size {
			e := &PageError{Page: id, Problem: "is in use, and in the list of free pages", suspects: []suspect{list}}
			if parent != nil {
				e.suspects = append(e.suspects, *parent)
			}
			return e
		}
		used[id] = true
	}
	for id := range w.seen {
		if used[id] {
			return &PageError{Page: id, Problem: "is in use, and has the list of free pages", suspects: []suspect{list}}
		}
	}
	missing := w.meta.size - 2 - uint64(len(used)) - uint64(len(w.seen))
	if missing != 0 && !w.opt.BranchesOnly { // which does not know how many pages a leaf has
		return &PageError{Page: list.id, Problem: fmt.Sprintf("does not list all free pages: %d are missing", missing), suspects: []suspect{list}}
	}
	return nil
}
