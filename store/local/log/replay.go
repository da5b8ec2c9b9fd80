package log

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sort"
)

// ErrDamaged is what errors.Is finds in a *Damage.
var ErrDamaged = errors.New("log: damaged")

// ErrNotFound is the error of Read for a position that the log does not have: trimmed, or not yet written.
var ErrNotFound = errors.New("log: no such record")

// Damage is a part of the log that was acknowledged and cannot be read. The records before Position are sound.
type Damage struct {
	File     string
	Offset   int64 // in the file, bytes
	Position Position
	Next     Position // the next sound record, or the end of the log. Only Replay looks for it
	Lost     uint64   // how many records are between, 0 if that is not known
	Err      error    // what is wrong
}

func (d *Damage) Error() string {
	return fmt.Sprintf("log: %s is damaged at byte %d: %v", d.File, d.Offset, d.Err)
}

// Unwrap returns ErrDamaged and what is wrong.
func (d *Damage) Unwrap() []error { return []error{ErrDamaged, d.Err} }

func (f *file) damage(offset int64, err error) *Damage {
	return &Damage{File: f.Name(), Offset: offset, Position: f.position(max(offset, block)), Err: err}
}

// Replay calls visit with each record from a position on that was there when Replay began. The payload may be used until
// visit returns. Replay returns the error of visit, or a *Damage: to go on behind that, replay again, from Next. Each record
// is checked to continue the one before, but not the first one. Nobody may trim records that are still to be visited.
func (l *Log) Replay(from Position, visit func(at Position, payload []byte) error) error {
	files, end := *l.files.Load(), l.End()
	if len(files) == 0 {
		if from > end {
			return &Damage{File: l.dir, Position: end, Next: end, Err: errors.New("its files are missing")}
		}
		return nil
	}
	defer l.logCorrected(files)
	if first := files[0].first; from < first {
		d := files[0].damage(0, fmt.Errorf("the log begins at %d, not at %d: files are missing", first, from))
		d.Position, d.Next = from, first
		return d
	}
	if from > end {
		f := files[len(files)-1]
		d := f.damage(f.offset(end), fmt.Errorf("the log ends at %d, before %d: files are missing, or are older ones", end, from))
		d.Next = end
		return d
	}
	start := from // what its record continues is not known, but its number may be
	next, buffer := chain{}, []byte(nil)
	for i, f := range files {
		limit := end
		if i+1 < len(files) {
			limit = min(end, files[i+1].first)
		}
		if from == f.first && from > start && (f.number != next.number || f.chain != next.sum && f.chain != 0) {
			d := f.damage(0, errChain)
			d.Next = from
			return d
		}
		for from >= f.first && from < limit {
			if from == f.first {
				next = chain{f.chain, f.number}
			}
			h, record, err := f.record(f.offset(from), f.offset(limit), buffer)
			if err == nil && from > start && next != (chain{h.chain, h.number}) {
				err = errChain
			}
			if err != nil {
				d := f.damage(f.offset(from), err)
				d.Next = limit
				number := uint64(0) // of the record at d.Next, if that is known
				search := d.Offset
				if err != errChain { // then the record is sound, but another one
					search += block
				}
				if found, h := f.findRecord(search, f.offset(limit)); found > 0 {
					d.Next, number = h.position, h.number
				} else if i+1 < len(files) {
					number = files[i+1].number
				}
				if next.number > 0 && number > next.number {
					d.Lost = number - next.number
				}
				return d
			}
			if err := visit(from, record[headSize:headSize+h.length]); err != nil {
				return err
			}
			buffer, next = record, h.after()
			from += Position(h.size())
		}
	}
	return nil
}

// logCorrected logs where a wrong bit was corrected.
func (l *Log) logCorrected(files []*file) {
	for _, f := range files {
		if f.corrected.Swap(false) {
			l.logger.Warn("log: a wrong bit was corrected in memory: check the disk", "file", f.Name())
		}
	}
}

// Read reads the payload of one record, into buffer if it is large enough. It returns ErrNotFound, or a *Damage.
func (l *Log) Read(at Position, buffer []byte) ([]byte, error) {
	h, record, err := l.recordAt(at, buffer)
	if err != nil {
		return nil, err
	}
	return record[headSize : headSize+h.length], nil
}

// Before returns the checksum of the record before a position; 0 when that was damaged or there is none. It stands for
// all records before the position, because each has that of the one before. Its errors are those of Read.
func (l *Log) Before(at Position) (sum uint32, err error) {
	l.writing.Lock()
	end, last := l.End(), l.chain.sum
	l.writing.Unlock()
	if at == end {
		return last, nil
	}
	h, _, err := l.recordAt(at, nil)
	return h.chain, err
}

func (l *Log) recordAt(at Position, buffer []byte) (head, []byte, error) {
	files, end := *l.files.Load(), l.End()
	i := sort.Search(len(files), func(i int) bool { return files[i].first > at })
	if i == 0 || at >= end {
		return head{}, nil, ErrNotFound
	}
	f := files[i-1]
	h, record, err := f.record(f.offset(at), f.offset(end), buffer)
	switch {
	case errors.Is(err, os.ErrClosed): // trimmed in the meantime
		return head{}, nil, ErrNotFound
	case err != nil:
		return head{}, nil, f.damage(f.offset(at), err)
	}
	return h, record, nil
}

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
