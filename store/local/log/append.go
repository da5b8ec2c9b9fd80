package log

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"

	"mtagd/store/local/durable"
)

// Errors of Append, beside those for wrong arguments. errors.Is also finds what the system said.
var (
	// ErrNoRoom: nothing was written, because no file could be allocated. A later attempt may succeed.
	ErrNoRoom = errors.New("log: no room for another file")
	// ErrUncertain: the record was written or synced with an error. After a restart it may be there or not. Once another
	// Append has succeeded it is not in the log.
	ErrUncertain = errors.New("log: the record may be on disk, or not")
	// ErrClosed: the log is closed.
	ErrClosed = errors.New("log: closed")
)

// Append writes a record, and returns its position once it is on disk. The payload has 1 to MaxRecord bytes, and is not
// kept.
func (l *Log) Append(payload []byte) (Position, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed || l.readOnly {
		return 0, ErrClosed
	}
	if len(payload) < 1 || len(payload) > MaxRecord {
		return 0, fmt.Errorf("log: payload of %d bytes, must have 1 to %d", len(payload), MaxRecord)
	}
	at := l.End()
	head := l.encode(at, payload)
	if err := l.write(l.buffer[block:]); err != nil {
		return 0, err
	}
	l.chain = head.after()
	l.end.Store(uint64(at) + uint64(head.size()))
	return at, nil
}

// encode makes the record, behind the block for a header in the buffer.
func (l *Log) encode(at Position, payload []byte) head {
	h := head{length: uint32(len(payload)), position: at, number: l.chain.number, chain: l.chain.sum, payload: crc32.Checksum(payload, castagnoli)}
	b := append(append(slices.Grow(l.buffer[:0], block+int(h.size())), zeros[:block+headSize]...), payload...)
	h.sum = h.encode(b[block:], l.id)
	b = append(b, endMark)
	end := len(b)
	b = b[:block+h.size()]
	clear(b[end:])
	l.buffer = b
	return h
}

// write writes and syncs a record, to the last file if it has room and never failed, else to a new one. No file is filled to
// its end, so that each can be cut off (writeToNew).
func (l *Log) write(record []byte) error {
	files := *l.files.Load()
	last := files[len(files)-1]
	if size := int64(len(record)); l.failed || l.offset+size >= last.size {
		return l.writeToNew(last)
	}
	if err := last.write(record, l.offset); err != nil {
		l.failed = true
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	l.offset += int64(len(record))
	return nil
}

// writeToNew writes and syncs what is in the buffer to a new file, with its header.
func (l *Log) writeToNew(last *file) error {
	f, err := l.spares.take(int64(len(l.buffer)) + block)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	f.header = header{chain: l.chain.sum, id: l.id, first: l.End(), number: l.chain.number, size: f.size}
	f.header.encode(l.buffer)
	if err := f.write(l.buffer, 0); err != nil {
		l.failed = true
		l.discard(f)
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	l.listing.Lock()
	files := slices.Clone(*l.files.Load())
	if last.first == f.first {
		files[len(files)-1] = f
		l.leftover = append(l.leftover, last)
	} else {
		files = append(files, f)
	}
	l.files.Store(&files)
	l.listing.Unlock()
	// What is behind does not count. Without the new file, the end of this one will tell that there was one.
	_ = os.Truncate(last.Name(), l.offset)
	l.failed = false
	l.offset = int64(len(l.buffer))
	_ = l.removeLeftover() // tried again by Trim
	return nil
}

// discard notes files that are to be removed.
func (l *Log) discard(files ...*file) {
	l.listing.Lock()
	defer l.listing.Unlock()
	l.leftover = append(l.leftover, files...)
}

// removeLeftover removes the files that hold nothing that counts. What cannot be removed is tried again the next time.
func (l *Log) removeLeftover() error {
	l.listing.Lock()
	files := l.leftover
	l.leftover = nil
	l.listing.Unlock()
	if len(files) == 0 {
		return nil
	}
	var errs []error
	for _, f := range files {
		if err := f.remove(); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
			l.discard(f)
		}
	}
	return errors.Join(append(errs, durable.SyncPath(l.dir))...)
}

// Trim removes the files that have only records before a position. The last file stays. Right after Roll it has no records.
func (l *Log) Trim(before Position) error {
	if l.readOnly {
		return ErrClosed
	}
	l.listing.Lock()
	files := *l.files.Load()
	n := 0
	for n+1 < len(files) && files[n+1].first <= before {
		n++
	}
	kept := files[n:]
	l.files.Store(&kept)
	l.leftover = append(l.leftover, files[:n]...)
	l.listing.Unlock()
	return l.removeLeftover()
}

// Roll begins a new file, unless the last one has no records.
func (l *Log) Roll() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed || l.readOnly {
		return ErrClosed
	}
	if l.offset == block && !l.failed {
		return nil
	}
	files := *l.files.Load()
	l.buffer = append(l.buffer[:0], zeros[:block]...)
	return l.writeToNew(files[len(files)-1])
}
