package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

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
