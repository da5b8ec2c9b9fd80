package boltfile

import (
	"encoding/binary"
)

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

// child is how a branch reaches its i-th child.
func (parent *suspect) child(elements []element, i int) visit {
	v := visit{path: parent.path, lo: elements[i].key, hi: parent.hi, parent: parent}
	if i+1 < len(elements) {
		v.hi = elements[i+1].key
	}
	return v
}

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
