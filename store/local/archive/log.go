package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// The blocks of all pack files, in the order in which they were written, are a log. A block says: of this merchant, these are
// all events from the first position to the last. It replaces all older blocks that end within that range. A block without
// events says that there are none: a gap. So a copy of a part of the log, behind a copy of everything before, is a copy of the
// archive, and the directory can be made of the log (Writer).
//
// When blocks are moved to the end of the log, and the file they were in is removed, that stays true. Gaps are not moved, as
// they would replace what was written behind them: a file with gaps is removed only when no older file has anything that a
// gap may replace. Who has a copy of the log up to a place before that needs a new one.

// LogPosition is a place in the log: the number of a file, and an offset in it.
type LogPosition uint64

func logPosition(file uint32, offset int64) LogPosition {
	return LogPosition(uint64(file)<<32 | uint64(offset))
}

func (p LogPosition) file() uint32  { return uint32(p >> 32) }
func (p LogPosition) offset() int64 { return int64(p & (1<<32 - 1)) }

// Snapshot is the archive as of a moment. No pack file is removed until Close.
type Snapshot struct {
	Boundary uint64
	End      LogPosition // of the log
	From     LogPosition // a copy up to an earlier place cannot be continued
	a        *Archive
	files    map[uint32]fileRecord
}

// Snapshot returns the archive as of now. It waits for a change that is being made.
func (a *Archive) Snapshot() (s Snapshot, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	s = Snapshot{Boundary: a.Boundary(), a: a}
	err = a.view(func(tx *bolt.Tx) (err error) {
		if s.files, err = loadFiles(tx); err == nil {
			s.From, err = loadGapsLost(tx)
		}
		return err
	})
	for id, r := range s.files {
		s.End = max(s.End, logPosition(id, r.end))
	}
	if err == nil {
		a.snapshots++
	}
	return s, err
}

// Close lets files be removed. It does nothing for the zero value.
func (s Snapshot) Close() {
	if s.a != nil {
		s.a.writing.Lock()
		defer s.a.writing.Unlock()
		s.a.snapshots--
	}
}

// Size returns how many bytes the log has after a place.
func (s Snapshot) Size(since LogPosition) (bytes int64) {
	for id, r := range s.files {
		if id >= since.file() {
			bytes += r.end
		}
	}
	return bytes
}

// Log calls use with the stored blocks after a place in the log, in their order. A block is valid until use returns. What
// cannot be read is passed to damaged.
func (s Snapshot) Log(ctx context.Context, since LogPosition, use func(at LogPosition, stored []byte) error, damaged func(error)) error {
	ids := make([]uint32, 0, len(s.files))
	for id := range s.files {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		from := int64(0)
		if id < since.file() {
			continue
		} else if id == since.file() {
			from = since.offset()
		}
		f, err := os.Open(s.a.files.path(id))
		if err != nil {
			damaged(err)
			continue
		}
		err = eachStored(io.NewSectionReader(f, 0, s.files[id].end), from, func(offset int64, stored []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return use(logPosition(id, offset), stored)
		}, func(offset, length int64) {
			damaged(damagedBytes(s.a.files.path(id), offset, length))
		})
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func damagedBytes(path string, offset, length int64) error {
	return fmt.Errorf("%w: %d bytes of %s, from %d on, cannot be read", codec.ErrCorrupt, length, filepath.Base(path), offset)
}

// eachStored calls use with each stored block of a file from an offset on. Behind damage it looks for the next sound block;
// damaged gets what is in between.
func eachStored(r *io.SectionReader, from int64, use func(offset int64, stored []byte) error, damaged func(offset, length int64)) error {
	w := window{r: r, at: from}
	for lost := int64(0); ; {
		stored, err := w.block()
		switch {
		case err == nil:
			if lost > 0 {
				damaged(w.at-lost, lost)
				lost = 0
			}
			if err := use(w.at, stored); err != nil {
				return err
			}
			w.at += int64(len(stored))
		case w.at >= r.Size():
			if lost > 0 {
				damaged(w.at-lost, lost)
			}
			return nil
		default:
			lost++
			w.at++
		}
	}
}

// window is the part of a file that is in memory.
type window struct {
	r    *io.SectionReader
	at   int64 // the next block begins here
	from int64 // buf begins here
	buf  []byte
}

// block returns the block at w.at, if there is a sound one.
func (w *window) block() ([]byte, error) {
	header, err := w.bytes(4)
	if err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(header))
	if n < int64(blockHeader+blockTrailer) || n > maxStored {
		return nil, codec.ErrCorrupt
	}
	stored, err := w.bytes(n)
	if err == nil && codec.Unseal(stored) == nil {
		err = codec.ErrCorrupt
	}
	return stored, err
}

// bytes returns n bytes from w.at on.
func (w *window) bytes(n int64) ([]byte, error) {
	if w.at+n > w.r.Size() {
		return nil, io.ErrUnexpectedEOF
	}
	if w.at < w.from || w.at+n > w.from+int64(len(w.buf)) {
		size := min(max(n, writeBytes), w.r.Size()-w.at)
		if int64(cap(w.buf)) < size {
			w.buf = make([]byte, size)
		}
		w.from, w.buf = w.at, w.buf[:size]
		if _, err := w.r.ReadAt(w.buf, w.from); err != nil {
			w.buf = w.buf[:0]
			return nil, err
		}
	}
	return w.buf[w.at-w.from:][:n], nil
}

// CheckStored decodes a stored block, and returns its number of events.
func CheckStored(stored []byte) (events int, err error) {
	c, err := checker()
	if err != nil {
		return 0, err
	}
	b, err := c.unpack(nil, stored)
	if err == nil {
		err = b.each(func(Event) bool { return true })
	}
	return b.events, err
}

// checker unpacks blocks that are in no archive.
var checker = sync.OnceValues(newCoder)

// keyGapsLost has the end of the log when a gap was last lost.
var keyGapsLost = []byte("gaps lost")

func loadGapsLost(tx *bolt.Tx) (LogPosition, error) {
	v := tx.Bucket(boltfile.BucketMeta).Get(keyGapsLost)
	if v == nil {
		return 0, nil
	}
	b := codec.Unseal(v)
	if len(b) != 8 {
		return 0, fmt.Errorf("%s: %w: gaps lost", directoryName, codec.ErrCorrupt)
	}
	return LogPosition(binary.BigEndian.Uint64(b)), nil
}

func storeGapsLost(tx *bolt.Tx, p LogPosition) error {
	return tx.Bucket(boltfile.BucketMeta).Put(keyGapsLost, codec.Seal(binary.BigEndian.AppendUint64(nil, uint64(p))))
}
