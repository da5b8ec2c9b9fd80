package boltfile

import (
	"encoding/binary"
	"fmt"
)

// walk goes through the tree of pages once.
type walk struct {
	*Scan
	seen map[uint64]bool // the pages that were reached
	use  func(Record) error
}

// visit is how a page was reached: the bucket whose page it is, the bounds of its keys (nil: none), and whether it is below another
// page of that bucket.
type visit struct {
	path   []string
	lo, hi []byte
	below  bool
}

// child is how a branch reaches its i-th child.
func (v visit) child(elements []element, i int) visit {
	c := visit{path: v.path, lo: elements[i].key, hi: v.hi, below: true}
	if i+1 < len(elements) {
		c.hi = elements[i+1].key
	}
	return c
}

// page checks a page, what it says of its children, and what is below it.
func (w *walk) page(id uint64, v visit) error {
	if err := w.reach(id); err != nil {
		return err
	}
	b, err := w.Scan.page(id)
	if err != nil {
		return &PageError{id, err.Error()}
	}
	for i := id + 1; i < id+uint64(len(b)/w.meta.pageSize); i++ {
		if w.seen[i] {
			return &PageError{id, "overlaps another page"}
		}
		w.seen[i] = true
	}
	p, elements, err := w.checkPage(id, b, v)
	if err != nil {
		return &PageError{id, err.Error()}
	}
	if p.leaf {
		return w.values(elements, v.path)
	}
	// The leaves of a tree have one depth.
	leaves := w.opt.BranchesOnly && len(v.path) > 0 && len(elements) > 0 && w.isLeaf(elements[0].child)
	for i, e := range elements {
		if leaves {
			err = w.reach(e.child)
		} else {
			err = w.page(e.child, v.child(elements, i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reach notes that a page was reached, which must not have been so before.
func (w *walk) reach(id uint64) error {
	if id < 2 || id >= w.meta.size {
		return &PageError{id, "is outside of the file"}
	}
	if w.seen[id] {
		return &PageError{id, "is in two places"}
	}
	w.seen[id] = true
	return nil
}

func (s *Scan) isLeaf(id uint64) bool {
	b, err := s.page(id)
	return err == nil && binary.LittleEndian.Uint16(b[8:]) == kindLeaf
}

// values reads the records and buckets of a leaf.
func (w *walk) values(elements []element, path []string) error {
	for _, e := range elements {
		switch {
		case e.bucket && isInline(e):
			below, err := inlineElements(e)
			if err != nil {
				return err
			}
			if err := w.values(below, childPath(path, e)); err != nil {
				return err
			}
		case e.bucket:
			if err := w.page(binary.LittleEndian.Uint64(e.value), visit{path: childPath(path, e)}); err != nil {
				return err
			}
		case w.use != nil:
			if err := w.use(Record{path, e.key, e.value}); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkFree checks that each page is either in the tree, or in the list of free pages.
func (w *walk) checkFree() error {
	list := w.meta.free
	b, err := w.Scan.page(list)
	var free []uint64
	if err == nil {
		free, err = freePages(b, list)
	}
	if err != nil {
		return &PageError{list, err.Error()}
	}
	used := map[uint64]bool{}
	for i := range uint64(len(b) / w.meta.pageSize) {
		used[list+i] = true
	}
	for _, id := range free {
		if w.seen[id] || used[id] || id < 2 || id >= w.meta.size {
			return &PageError{id, "is in use, and in the list of free pages"}
		}
		used[id] = true
	}
	for id := range w.seen {
		if used[id] {
			return &PageError{id, "is in use, and has the list of free pages"}
		}
	}
	missing := w.meta.size - 2 - uint64(len(used)) - uint64(len(w.seen))
	if missing != 0 && !w.opt.BranchesOnly { // which does not know how many pages a leaf has
		return &PageError{list, fmt.Sprintf("does not list all free pages: %d are missing", missing)}
	}
	return nil
}
