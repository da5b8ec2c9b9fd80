package log

import "bytes"

// tail is the end of the last file, and what the next one begins with.
type tail struct {
	cut   int64  // where the next file continues
	chain chain  // what its first record continues
	last  []byte // its first record: the last one, written again; none after damage
	after chain  // what the record after that continues
	torn  bool   // an incomplete record follows
}

// end returns where the last record ends.
func (t tail) end() int64 { return t.cut + int64(len(t.last)) }

// findTail looks for the end of the records of a file. Replay finds damage before it. The last file must not be cut off.
func (f *file) findTail(isLast bool) (tail, error) {
	info, err := f.Stat()
	if err != nil {
		return tail{}, err
	}
	size := max(info.Size(), f.size)
	offset, next := int64(block), chain{f.chain, f.number}
	t, spare := tail{}, []byte(nil)
	for {
		h, record, err := f.record(offset, size, spare)
		if err == nil {
			spare = t.last
			t = tail{cut: offset, chain: chain{h.chain, h.number}, last: record, after: h.after()}
			offset, next = offset+h.size(), t.after
			continue
		}
		spare = record
		found, h := f.findRecord(offset+block, size)
		if found == 0 {
			break
		}
		t, offset, next = tail{}, found, chain{h.chain, h.number}
	}
	end, torn := f.classify(offset, size)
	if isLast && end == offset && info.Size() < f.size { // somebody cut it off, or the next file is missing
		end = f.size
	}
	if end > offset {
		next = chain{0, next.number + 1} // the number of a damaged record
		return tail{cut: end, chain: next, after: next}, nil
	}
	if t.cut == 0 {
		t = tail{cut: offset, chain: next, after: next}
	}
	t.torn = torn
	return t, nil
}

// classify decides what is at an offset when there is no sound record at it or behind it. It returns the end of the damage,
// or offset if there is no damage. torn reports whether there is a part of a record that was not acknowledged.
func (f *file) classify(offset, size int64) (end int64, torn bool) {
	first := make([]byte, block)
	_ = f.read(first, offset)
	lastWritten := int64(0)
	f.blocks(offset, size, func(at int64, b []byte) bool {
		if !isZero(b) {
			lastWritten = at + int64(len(bytes.TrimRight(b, "\x00"))) - 1
		}
		return true
	})
	h, valid := decodeHead(first, f.id, f.position(offset))
	switch {
	case lastWritten == 0:
		return offset, false
	case valid && offset+h.size() <= size:
		if f.hasGap(offset, int64(headSize+h.length+1)) {
			return offset, true
		}
		return offset + h.size(), false
	case !valid && (isZero(first[:sector]) || lastWritten < offset+headSize):
		return offset, true
	}
	return (lastWritten + block) &^ (block - 1), false
}

// hasGap tells whether a record lacks a sector or its end.
func (f *file) hasGap(offset, length int64) (gap bool) {
	end := offset + length
	f.blocks(offset, (end+block-1)&^(block-1), func(at int64, b []byte) bool {
		b = b[:min(block, end-at)]
		if at+int64(len(b)) == end && b[len(b)-1] == 0 {
			gap = true
		}
		for ; len(b) > 0 && !gap; b = b[min(sector, len(b)):] {
			gap = isZero(b[:min(sector, len(b))])
		}
		return !gap
	})
	return gap
}
