package boltfile

import (
	"encoding/binary"
	"slices"
)

// Take is called with what may be a record, and reports whether it is one: only the caller knows its seal. correct says that the record may
// have a wrong bit in its key or value. The slices are valid until the scan is closed.
type Take func(key, value []byte, correct bool) bool

// A Way reads the records of a damaged file.
type Way func(take Take)

// Ways returns how the records of a damaged file can be found. None relies on what it reads; each may miss records, and the later
// ones may find records that are not of the last transaction. Only the caller can tell, by a sum over all records.
//
//  1. Go down the tree of the meta page.
//  2. Read all pages that are not in the list of free pages: also those below a page that is lost. Empty when that list is lost.
//  3. When a meta page is lost: go down from each page that may be a root.
func (s *Scan) Ways() []Way {
	ways := []Way{s.tree(s.meta.root), s.pages}
	if s.wrong == nil {
		return ways
	}
	for id := range s.meta.size {
		if b, err := s.page(id); err == nil {
			p, err := parsePage(b, id, false)
			elements, elementsErr := p.elements()
			if err == nil && elementsErr == nil && p.leaf && len(elements) > 0 &&
				!slices.ContainsFunc(elements, func(e element) bool { return !e.bucket }) {
				ways = append(ways, s.tree(id))
			}
		}
	}
	return ways
}

// tree returns the way down from a page.
func (s *Scan) tree(root uint64) Way {
	return func(take Take) {
		seen := map[uint64]bool{}
		var read func(id uint64)
		read = func(id uint64) {
			if id < 2 || id >= s.meta.size || seen[id] {
				return
			}
			seen[id] = true
			b := s.from(id)
			if binary.LittleEndian.Uint16(b[8:]) != kindBranch {
				s.recordsOfLeaf(b, take, read)
				return
			}
			for i := range s.count(b) {
				read(binary.LittleEndian.Uint64(b[headerSize+i*elementSize+8:]))
			}
		}
		read(root)
	}
}

// pages reads all leaves that are not free.
func (s *Scan) pages(take Take) {
	b, err := s.page(s.meta.free)
	if err != nil {
		return
	}
	free, err := freePages(b, s.meta.free)
	if err != nil {
		return
	}
	skip := map[uint64]bool{s.meta.free: true}
	for _, id := range free {
		skip[id] = true
	}
	for id := uint64(2); id < s.meta.size; id++ {
		if !skip[id] {
			s.recordsOfLeaf(s.from(id), take, func(uint64) {})
		}
	}
}

// maxFound bounds what is read as one page, or as one value, in bytes.
const maxFound = 1 << 16

// from returns a page and what follows it.
func (s *Scan) from(id uint64) []byte {
	b := s.data[int(id)*s.meta.pageSize:]
	return b[:min(len(b), max(maxFound, s.meta.pageSize))]
}

// count returns how many elements a page may have: as its header says, or as the place of the first key says, but not more than fit
// into a page.
func (s *Scan) count(b []byte) int {
	n := int(binary.LittleEndian.Uint16(b[10:]))
	for _, at := range []int{0, 4} { // the position in a branch and in a leaf
		if first := headerSize + at; first+4 <= len(b) {
			if of := int(binary.LittleEndian.Uint32(b[first:])); of%elementSize == 0 {
				n = max(n, min(of/elementSize, s.meta.pageSize/elementSize))
			}
		}
	}
	return min(n, (len(b)-headerSize)/elementSize, s.meta.pageSize/elementSize)
}

// recordsOfLeaf passes the records of a leaf to take, and the root pages of its buckets to below. A record or a bucket whose place or
// size is wrong in one bit is found too.
func (s *Scan) recordsOfLeaf(b []byte, take Take, below func(id uint64)) {
	next := headerSize + int(binary.LittleEndian.Uint16(b[10:]))*elementSize // where the next key is, unless something is wrong
	for i := range s.count(b) {
		own := headerSize + i*elementSize
		u32 := func(at int) int { return int(binary.LittleEndian.Uint32(b[own+at:])) }
		at, key, value := own+u32(4), u32(8), u32(12)
		// find returns the first place of a key and a value that fits.
		find := func(fits func(key, value []byte) bool) (end int) {
			try := func(at, key, value int) bool {
				if at < 0 || key <= 0 || value < 0 || key > len(b) || value > len(b) || at+key+value > len(b) || !fits(b[at:at+key], b[at+key:at+key+value]) {
					return false
				}
				end = at + key + value
				return true
			}
			for _, at := range []int{at, next} {
				if try(at, key, value) {
					return end
				}
				for bit := range 32 {
					if try(at, key^1<<bit, value) || try(at, key, value^1<<bit) {
						return end
					}
				}
			}
			return 0
		}
		if end := find(func(key, value []byte) bool { return take(key, value, false) }); end > 0 {
			next = end
			continue
		}
		isLeaf := binary.LittleEndian.Uint16(b[8:]) == kindLeaf
		if isLeaf && u32(0) == 0 && at+key+value <= len(b) && take(b[at:at+key], b[at+key:at+key+value], true) {
			next = at + key + value
			continue
		}
		bucket := func(value []byte) bool {
			if page := value[bucketSize:]; len(page) > headerSize { // its only page is in it
				s.recordsOfLeaf(page, take, below)
			} else {
				below(binary.LittleEndian.Uint64(value))
			}
			return true
		}
		end := find(func(name, value []byte) bool {
			return len(value) >= bucketSize && s.opt.Bucket != nil && s.opt.Bucket(nil, name, 0) && bucket(value)
		})
		if isLeaf && end == 0 && u32(0) == 1 && value >= bucketSize && at+key+value <= len(b) { // the wrong bit is in its name
			bucket(b[at+key : at+key+value])
		}
		if next = end; end == 0 {
			next = at + key + value
		}
	}
}
