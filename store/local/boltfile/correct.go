package boltfile

import (
	"encoding/binary"
	"maps"
	"os"
	"slices"
)

const (
	maxCorrections = 16      // pages
	maxCorrectable = 1 << 16 // bytes of a page
)

// Corrected returns the offsets of the bytes in which one bit was wrong.
func (s *Scan) Corrected() []int64 { return slices.Sorted(maps.Keys(s.corrected)) }

// Write corrects these bytes in the file, and syncs it.
func (s *Scan) Write(f *os.File) error {
	for at, b := range s.corrected {
		if _, err := f.WriteAt([]byte{b}, at); err != nil {
			return err
		}
	}
	if len(s.corrected) == 0 {
		return nil
	}
	return f.Sync()
}

// correct finds the one bit whose flip repairs a damage, and reports whether there is one. It flips each bit of the suspects
// until the file is sound. A page that is sound by itself can only have a wrong reference to another page.
func (s *Scan) correct(e *PageError) bool {
	for _, suspect := range e.suspects {
		original := s.raw(suspect.id)
		if original == nil || len(original) > maxCorrectable || s.patched[suspect.id] != nil {
			continue
		}
		repairs, places := s.repairsPage(suspect, e), references(original)
		if suspect.id == s.meta.free {
			repairs, places = s.repairsFreeList(), everywhere(original)
		} else if e.keyAt > 0 {
			places = []int{e.keyAt}
		} else if e.value {
			places = s.unsound(original, false, suspect.path, 0)
		} else if _, err := s.page(suspect.id); err != nil || s.checkPage(suspect.id, original, suspect.visit) != nil {
			places = everywhere(original)
		}
		for _, i := range places {
			for bit := range 8 {
				b := s.flipped(suspect.id, original, i, bit)
				if b == nil || !repairs(b) {
					continue
				}
				s.patched[suspect.id] = b
				s.corrected[int64(suspect.id)*int64(s.meta.pageSize)+int64(i)] = b[i]
				return true
			}
		}
	}
	return false
}

// repairsPage returns a function that reports whether the file is sound with b in the place of a page. When the damage was only
// in values, it is enough that all values of the page are sound: their checksums match.
func (s *Scan) repairsPage(of suspect, e *PageError) func(b []byte) bool {
	return func(b []byte) bool {
		if s.checkPage(of.id, b, of.visit) != nil {
			return false
		}
		if e.value {
			return true
		}
		s.patched[of.id], s.repaired = b, of.id
		defer func() {
			delete(s.patched, of.id)
			s.repaired = 0
		}()
		return s.check() == nil
	}
}

// repairsFreeList is repairsPage for the list of free pages.
func (s *Scan) repairsFreeList() func(b []byte) bool {
	tree := walk{Scan: s, seen: map[uint64]*suspect{}}
	sound := tree.page(s.meta.root, visit{}) == nil
	return func(b []byte) bool {
		if !sound {
			return false
		}
		s.patched[s.meta.free] = b
		defer delete(s.patched, s.meta.free)
		return tree.checkFree() == nil
	}
}

func everywhere(b []byte) []int {
	all := make([]int, len(b))
	for i := range all {
		all[i] = i
	}
	return all
}

// unsound returns the places of a leaf where one bit may be wrong, when nothing but values is: the elements of unsound records, and
// the bytes in which a flip makes such a record sound. offset is added to each place.
func (s *Scan) unsound(b []byte, inline bool, path []string, offset int) (places []int) {
	p, err := parsePage(b, binary.LittleEndian.Uint64(b), inline)
	if err != nil {
		return nil
	}
	elements, err := p.elements()
	if err != nil {
		return nil
	}
	at := headerSize + p.n*elementSize
	for i, e := range elements {
		record := slices.Clone(b[at : at+len(e.key)+len(e.value)])
		key, value := record[:len(e.key)], record[len(e.key):]
		switch {
		case e.bucket && isInline(e):
			places = append(places, s.unsound(value[bucketSize:], true, childPath(path, e), offset+at+len(key)+bucketSize)...)
		case !e.bucket && !s.opt.Sound(path, key, value):
			for j := range elementSize {
				places = append(places, offset+headerSize+i*elementSize+j)
			}
			for j := range record {
				for bit := range 8 {
					record[j] ^= 1 << bit
					if s.opt.Sound(path, key, value) {
						places = append(places, offset+at+j)
					}
					record[j] ^= 1 << bit
				}
			}
		}
		at += len(record)
	}
	return places
}

// references returns the places of a page's references to other pages.
func references(b []byte) (places []int) {
	p, err := parsePage(b, binary.LittleEndian.Uint64(b), false)
	if err != nil {
		return nil
	}
	elements, err := p.elements()
	if err != nil {
		return nil
	}
	at := headerSize + p.n*elementSize
	for i, e := range elements {
		at += len(e.key)
		from := headerSize + i*elementSize + 8
		if p.leaf {
			from = at
		}
		if e.bucket || !p.leaf {
			for i := range 8 {
				places = append(places, from+i)
			}
		}
		at += len(e.value)
	}
	return places
}

// raw returns a page as far as its size is known; nil when there is no such page.
func (s *Scan) raw(id uint64) []byte {
	if b, err := s.page(id); err == nil {
		return b
	}
	if id < 2 || id >= s.meta.size {
		return nil
	}
	return s.data[int(id)*s.meta.pageSize:][:s.meta.pageSize]
}

// flipped returns a copy of a page with one bit flipped. The size of the page is as its header says then.
func (s *Scan) flipped(id uint64, original []byte, i, bit int) []byte {
	b := original
	if i >= 12 && i < headerSize {
		header := slices.Clone(original[:headerSize])
		header[i] ^= 1 << bit
		pages := 1 + uint64(binary.LittleEndian.Uint32(header[12:]))
		if id+pages > s.meta.size || pages > maxCorrectable/uint64(s.meta.pageSize) {
			return nil
		}
		b = s.data[int(id)*s.meta.pageSize:][:int(pages)*s.meta.pageSize]
	}
	b = slices.Clone(b)
	b[i] ^= 1 << bit
	return b
}
