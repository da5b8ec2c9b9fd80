package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// checkPage checks what can be seen of a page without the rest of the tree.
func (s *Scan) checkPage(id uint64, b []byte, v visit) (p page, elements []element, err error) {
	p, err = parsePage(b, id, false)
	if err == nil && p.n == 0 && (v.below || !p.leaf) {
		err = errPage // bbolt has no empty pages, except in a new file
	}
	if err == nil {
		elements, err = p.elements()
	}
	if err != nil {
		return p, nil, err
	}
	if end := dataEnd(elements); len(b) != max(1, (end+s.meta.pageSize-1)/s.meta.pageSize)*s.meta.pageSize &&
		len(b) != (end/s.meta.pageSize+1)*s.meta.pageSize {
		return p, nil, fmt.Errorf("has another size than its keys and values")
	}
	if len(elements) > 0 && !v.has(elements) {
		return p, nil, fmt.Errorf("has keys of another page")
	}
	switch {
	case p.leaf:
		err = s.checkLeaf(elements, v.path)
	case !s.opt.BranchesOnly:
		err = s.checkChildren(v, elements)
	}
	return p, elements, err
}

// has reports whether the keys of a page are within its bounds.
func (v visit) has(elements []element) bool {
	return bytes.Compare(elements[0].key, v.lo) >= 0 && (v.hi == nil || bytes.Compare(elements[len(elements)-1].key, v.hi) < 0)
}

// checkChildren checks that the children of a branch are pages with keys of their range. A key of the branch that has one other
// bit than the first key of the child is damage as well: when bbolt changes the child, it looks for that key in the branch.
func (s *Scan) checkChildren(v visit, elements []element) error {
	for i, e := range elements {
		b, err := s.page(e.child)
		if err != nil {
			return fmt.Errorf("refers to page %d, which %w", e.child, err)
		}
		p, err := parsePage(b, e.child, false)
		if err != nil || p.n == 0 {
			continue // found when the child is read
		}
		below, err := p.elements()
		if err != nil {
			continue
		}
		if !v.child(elements, i).has(below) || oneBitApart(e.key, below[0].key) {
			return fmt.Errorf("refers to page %d, which has other keys", e.child)
		}
	}
	return nil
}

// oneBitApart reports whether two keys differ in one bit.
func oneBitApart(a, b []byte) bool {
	n := 0
	for i := range min(len(a), len(b)) {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return len(a) == len(b) && n == 1
}

// checkLeaf checks the buckets of a leaf.
func (s *Scan) checkLeaf(elements []element, path []string) error {
	for _, e := range elements {
		switch {
		case !e.bucket:
		case len(e.value) < bucketSize:
			return fmt.Errorf("has a bucket that is cut short")
		case s.opt.Bucket != nil && !s.opt.Bucket(path, e.key, binary.LittleEndian.Uint64(e.value[8:])):
			return fmt.Errorf("has an unknown bucket %q", e.key)
		case isInline(e):
			below, err := inlineElements(e)
			if err == nil {
				err = s.checkLeaf(below, childPath(path, e))
			}
			if err != nil {
				return err
			}
		case len(e.value) != bucketSize:
			return fmt.Errorf("has a bucket that is too long")
		}
	}
	return nil
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
