package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"mtagd/store/local/codec"
)

// The layout of a bbolt file, version 2. All numbers are little endian.
//
// The file is a sequence of pages. A page has a header of 16 bytes: its number (8), its kind (2), how many elements it has
// (2), and how many pages after it belong to it (4). Pages 0 and 1 are metas; the valid one with the higher transaction counts:
// magic (4), version (4), page size (4), flags (4), page of the root bucket (8), its sequence (8), page of the list of free
// pages (8), number of pages (8), transaction (8), FNV-1a of all that (8).
//
// A branch or leaf page has its elements after the header, 16 bytes each, and then the keys and values in the same order,
// without gaps. Element of a branch: position of the key from the element's start (4), size of the key (4), page (8). Element of
// a leaf: 1 if the value is a bucket (4), position (4), size of the key (4), size of the value (4). A value that is a bucket has
// its root page (8), its sequence (8) and, when the root page is 0, the only leaf page itself.
const (
	headerSize  = 16
	elementSize = 16
	bucketSize  = 16
	metaSize    = 64

	kindBranch   = 0x01
	kindLeaf     = 0x02
	kindFreelist = 0x10

	metaMagic   = 0xED0CDAED
	metaVersion = 2
)

// meta is what a meta page says.
type meta struct {
	pageSize         int
	root, free, size uint64
	txid             uint64
}

// parseMeta reads the meta after a page's header.
func parseMeta(b []byte) (m meta, ok bool) {
	b = b[headerSize : headerSize+metaSize]
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8]) // never fails
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	m = meta{pageSize: int(binary.LittleEndian.Uint32(b[8:])), root: u64(16), free: u64(32), size: u64(40), txid: u64(48)}
	return m, binary.LittleEndian.Uint32(b) == metaMagic && binary.LittleEndian.Uint32(b[4:]) == metaVersion &&
		u64(56) == sum.Sum64()
}

// page is a branch or leaf page, also one inside a value.
type page struct {
	b    []byte
	leaf bool
	n    int
}

// element is an element of a page.
type element struct {
	key, value []byte
	bucket     bool   // the value is a bucket
	child      uint64 // of a branch
}

var errPage = errors.New("is not a page of keys")

// parsePage reads the header of a page. inline says that it is inside a value.
func parsePage(b []byte, id uint64, inline bool) (p page, err error) {
	if len(b) < headerSize {
		return p, errPage
	}
	kind, n := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	switch {
	case binary.LittleEndian.Uint64(b) != id && !inline:
		return p, fmt.Errorf("has the number %d", binary.LittleEndian.Uint64(b))
	case kind != kindLeaf && (kind != kindBranch || inline), headerSize+n*elementSize > len(b):
		return p, errPage
	}
	return page{b: b, leaf: kind == kindLeaf, n: n}, nil
}

// elements reads all elements. It fails unless they are as bbolt writes them: in order, and without gaps.
func (p page) elements() ([]element, error) {
	all := make([]element, p.n)
	at := headerSize + p.n*elementSize
	for i := range all {
		own := headerSize + i*elementSize
		e := p.b[own : own+elementSize]
		u32 := func(at int) int { return int(binary.LittleEndian.Uint32(e[at:])) }
		pos, keySize, valueSize := u32(0), u32(4), 0
		if p.leaf {
			pos, keySize, valueSize = u32(4), u32(8), u32(12)
			all[i].bucket = u32(0) == 1
			if u32(0) > 1 {
				return nil, errPage
			}
		} else {
			all[i].child = binary.LittleEndian.Uint64(e[8:])
		}
		if own+pos != at || keySize == 0 || at+keySize+valueSize > len(p.b) {
			return nil, errPage
		}
		all[i].key = p.b[at : at+keySize : at+keySize]
		at += keySize
		all[i].value = p.b[at : at+valueSize : at+valueSize]
		at += valueSize
		if i > 0 && bytes.Compare(all[i-1].key, all[i].key) >= 0 {
			return nil, fmt.Errorf("%w: its keys are not in order", codec.ErrCorrupt)
		}
	}
	return all, nil
}

// dataEnd is where the last element's value ends.
func dataEnd(elements []element) int {
	end := headerSize + len(elements)*elementSize
	for _, e := range elements {
		end += len(e.key) + len(e.value)
	}
	return end
}

// freePages reads the numbers on a page of free pages.
func freePages(b []byte, id uint64) ([]uint64, error) {
	if binary.LittleEndian.Uint64(b) != id || binary.LittleEndian.Uint16(b[8:]) != kindFreelist {
		return nil, errors.New("is not the list of free pages")
	}
	n, at := uint64(binary.LittleEndian.Uint16(b[10:])), headerSize
	if n == 0xFFFF && len(b) >= headerSize+8 {
		n, at = binary.LittleEndian.Uint64(b[headerSize:]), headerSize+8
	}
	if n > uint64(len(b)-at)/8 {
		return nil, errors.New("is not a list of free pages")
	}
	free := make([]uint64, n)
	for i := range free {
		free[i] = binary.LittleEndian.Uint64(b[at+8*i:])
	}
	return free, nil
}
