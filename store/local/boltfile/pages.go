package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
)

// The layout of a bbolt file, version 2. All numbers are little endian.
//
// The file is a sequence of pages. A page has a header of 16 bytes: its number (8), its kind (2), how many elements it has
// (2), and how many pages after it belong to it (4). Pages 0 and 1 are metas; the valid one with the higher transaction
// counts: magic (4), version (4), page size (4), flags (4), page of the root bucket (8), its sequence (8), page of the list
// of free pages (8), number of pages (8), transaction (8), FNV-1a of all that (8).
//
// A branch or leaf page has its elements after the header, 16 bytes each, and then the keys and values in the same order,
// without gaps. Element of a branch: position of the key from the element's start (4), size of the key (4), page (8).
// Element of a leaf: 1 if the value is a bucket (4), position (4), size of the key (4), size of the value (4). A value that
// is a bucket has its root page (8), its sequence (8) and, when the root page is 0, the only leaf page itself.
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
	sum := fnv.New64a()
	sum.Write(b[:metaSize-8]) // never fails
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	m = meta{pageSize: int(binary.LittleEndian.Uint32(b[8:])), root: u64(16), free: u64(32), size: u64(40), txid: u64(48)}
	return m, binary.LittleEndian.Uint32(b) == metaMagic && binary.LittleEndian.Uint32(b[4:]) == metaVersion &&
		m.pageSize >= 1<<9 && u64(56) == sum.Sum64()
}

// page is a branch or leaf page, also one inside a value.
type page struct {
	leaf     bool
	elements []element
	end      int // of the last value
}

// element is an element of a page.
type element struct {
	key, value []byte
	bucket     bool   // the value is a bucket
	child      uint64 // of a branch
}

var errPage = errors.New("is not a page of keys as bbolt writes it")

// parsePage reads a page. Its elements must be as bbolt writes them: in order, and without gaps.
func parsePage(b []byte) (p page, err error) {
	if len(b) < headerSize {
		return p, errPage
	}
	kind, n := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	at := headerSize + n*elementSize
	if kind != kindLeaf && kind != kindBranch || at > len(b) {
		return p, errPage
	}
	p.leaf = kind == kindLeaf
	all := make([]element, n)
	for i := range all {
		own := headerSize + i*elementSize
		e := b[own : own+elementSize]
		u32 := func(at int) int { return int(binary.LittleEndian.Uint32(e[at:])) }
		pos, keySize, valueSize := u32(0), u32(4), 0
		if p.leaf {
			pos, keySize, valueSize = u32(4), u32(8), u32(12)
			all[i].bucket = u32(0) == 1
		} else {
			all[i].child = binary.LittleEndian.Uint64(e[8:])
		}
		if own+pos != at || keySize == 0 || at+keySize+valueSize > len(b) || p.leaf && u32(0) > 1 {
			return p, errPage
		}
		all[i].key = b[at : at+keySize : at+keySize]
		at += keySize
		all[i].value = b[at : at+valueSize : at+valueSize]
		at += valueSize
		if i > 0 && bytes.Compare(all[i-1].key, all[i].key) >= 0 {
			return p, errPage
		}
	}
	p.elements, p.end = all, at
	return p, nil
}

// parseBucket reads a value that is a bucket: its root page or, when that is 0, the only leaf itself.
func parseBucket(value []byte) (root uint64, inline page, err error) {
	if len(value) < bucketSize {
		return 0, inline, errPage
	}
	if root = binary.LittleEndian.Uint64(value); root == 0 {
		inline, err = parsePage(value[bucketSize:])
	}
	if err == nil && (root == 0 && !inline.leaf || bucketSize+inline.end != len(value) || binary.LittleEndian.Uint64(value[8:]) != 0) {
		err = errPage // nothing here uses sequences
	}
	return root, inline, err
}

// parseFree reads the numbers on a page of free pages.
func parseFree(b []byte) ([]uint64, error) {
	n, at := uint64(binary.LittleEndian.Uint16(b[10:])), headerSize
	if n == 0xFFFF {
		n, at = binary.LittleEndian.Uint64(b[headerSize:]), headerSize+8
	}
	if binary.LittleEndian.Uint16(b[8:]) != kindFreelist || n > uint64(len(b)-at)/8 {
		return nil, damage("the list of free pages is not a page of its type, or too long")
	}
	free := make([]uint64, n)
	for i := range free {
		free[i] = binary.LittleEndian.Uint64(b[at+8*i:])
	}
	return free, nil
}
