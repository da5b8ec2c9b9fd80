package log

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"mtagd/store/local/crc"
)

const (
	block      = 4096 // what the page cache writes: no two records share one
	sector     = 512  // what a disk writes as a whole
	headSize   = 40   // of a record
	endMark    = 0xa5 // the last byte of a record
	suffix     = ".log"
	magic      = "mtag log"
	version    = 1
	headerSize = 53
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeros      [256 << 10]byte
)

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// header is what the first block of a file says.
type header struct {
	chain  uint32
	id     uint64
	first  Position
	number uint64 // of the first record
	size   int64
}

func (h header) encode(b []byte) {
	clear(b[:block])
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], h.chain)
	binary.LittleEndian.PutUint64(b[16:], h.id)
	binary.LittleEndian.PutUint64(b[24:], uint64(h.first))
	binary.LittleEndian.PutUint64(b[32:], h.number)
	binary.LittleEndian.PutUint64(b[40:], uint64(h.size))
	binary.LittleEndian.PutUint32(b[48:], crc32.Checksum(b[:48], castagnoli))
	b[52] = endMark
}

func decodeHeader(b []byte) (h header, valid bool) {
	h = header{
		chain:  binary.LittleEndian.Uint32(b[12:]),
		id:     binary.LittleEndian.Uint64(b[16:]),
		first:  Position(binary.LittleEndian.Uint64(b[24:])),
		number: binary.LittleEndian.Uint64(b[32:]),
		size:   int64(binary.LittleEndian.Uint64(b[40:])),
	}
	return h, string(b[:8]) == magic && b[52] == endMark && binary.LittleEndian.Uint32(b[48:]) == crc32.Checksum(b[:48], castagnoli)
}

// head is what precedes the payload of a record.
type head struct {
	sum      uint32
	length   uint32
	position Position
	number   uint64
	chain    uint32
	payload  uint32 // checksum
}

// recordSize returns the bytes of a record in its file.
func recordSize(payload int) int64 { return (headSize + int64(payload) + 1 + block - 1) &^ (block - 1) }

func (h head) size() int64 { return recordSize(int(h.length)) }

// encode writes the head, and returns its checksum.
func (h head) encode(b []byte, id uint64) uint32 {
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint64(b[8:], uint64(h.position))
	binary.LittleEndian.PutUint64(b[16:], h.number)
	binary.LittleEndian.PutUint32(b[24:], h.chain)
	binary.LittleEndian.PutUint32(b[28:], h.payload)
	binary.LittleEndian.PutUint64(b[32:], id)
	sum := crc32.Checksum(b[4:headSize], castagnoli)
	binary.LittleEndian.PutUint32(b, sum)
	return sum
}

// decodeHead tells whether b begins with the head of the record at a position.
func decodeHead(b []byte, id uint64, at Position) (h head, valid bool) {
	h = head{
		sum:      binary.LittleEndian.Uint32(b),
		length:   binary.LittleEndian.Uint32(b[4:]),
		position: Position(binary.LittleEndian.Uint64(b[8:])),
		number:   binary.LittleEndian.Uint64(b[16:]),
		chain:    binary.LittleEndian.Uint32(b[24:]),
		payload:  binary.LittleEndian.Uint32(b[28:]),
	}
	return h, h.position == at && h.length > 0 && h.length <= MaxRecord &&
		binary.LittleEndian.Uint64(b[32:]) == id && h.sum == crc32.Checksum(b[4:headSize], castagnoli)
}

// correct tells whether a record is sound behind its head. It corrects one wrong bit.
func (h head) correct(record []byte) (sound, corrected bool) {
	end := headSize + int(h.length)
	payload, wrong := record[headSize:end], record[end]^endMark
	if crc32.Checksum(payload, castagnoli) == h.payload {
		record[end] = endMark
		return wrong&(wrong-1) == 0, wrong != 0
	}
	corrected = wrong == 0 && len(payload) <= maxCorrected && crc.CorrectBit(payload, h.payload)
	return corrected, corrected
}

// maxCorrected bounds the payloads in which a wrong bit is corrected, in bytes (crc.CorrectBit).
const maxCorrected = 1 << 20

// correctHead corrects one wrong bit of a head, and returns the head. A bit of the checksum counts too.
func correctHead(b []byte, id uint64, at Position) (h head, corrected bool) {
	for bit := range 8 * headSize {
		b[bit/8] ^= 1 << (bit % 8)
		if h, corrected = decodeHead(b, id, at); corrected {
			return h, true
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	return head{}, false
}

// after returns what the next record continues.
func (h head) after() chain { return chain{h.sum, h.number + 1} }

// file is a file of the log.
type file struct {
	*os.File
	count uint64 // from its name
	header
	corrected atomic.Bool // a wrong bit was corrected, and not logged yet
}

// openFile opens a file whose name has its count and the id of its log.
func openFile(name string) (*file, error) {
	f := new(file)
	if n, err := fmt.Sscanf(filepath.Base(name), "%x-%x"+suffix, &f.count, &f.id); n != 2 || filepath.Base(name) != fileName(f.count, f.id) {
		return nil, fmt.Errorf("%s is not named like a file of a log: %w", name, err)
	}
	var err error
	f.File, err = os.Open(name)
	return f, err
}

func fileName(count, id uint64) string { return fmt.Sprintf("%08x-%016x%s", count, id, suffix) }

// readHeader tells whether the file is in use. If its header is damaged, any record has the same facts. Without one, the
// number of the file's first record stays 0: place finds the facts elsewhere.
func (f *file) readHeader() (used bool, err error) {
	b := make([]byte, block)
	_ = f.read(b, 0) // what cannot be read is damaged
	h, valid := decodeHeader(b)
	if v := binary.LittleEndian.Uint32(b[8:]); valid && v != version {
		return true, fmt.Errorf("%s has version %d of the format; this program knows version %d", f.Name(), v, version)
	}
	if valid && h.id == f.id {
		f.header = h
		return true, nil
	}
	info, err := f.Stat()
	if err != nil {
		return true, err
	}
	f.size = info.Size()
	// A header that lacks its end was never written whole. But a record in the file proves that the header was.
	if at, h := f.findRecord(block, f.size); at > 0 {
		f.first, f.number = h.position-Position(at-block), h.number // Replay finds what is lost before it
		if at == block {
			f.chain = h.chain
		}
		return true, nil
	}
	if b[headerSize-1] == 0 {
		return false, nil
	}
	end, _ := f.classify(block, f.size)
	return end > block, nil // else it has no record: whatever is wrong with its header, nothing is lost
}

// place puts a file of which neither the header nor a record is sound among the others, in the order of their numbers. It
// begins where the one before ends. So Replay reports its records as damage, and no position is used twice.
func place(f *file, files []*file) ([]*file, error) {
	i := 0
	for i < len(files) && files[i].count < f.count {
		i++
	}
	if i > 0 {
		t, err := files[i-1].findTail(false)
		if err != nil {
			return files, err
		}
		f.first, f.chain, f.number = files[i-1].position(t.end()), t.after.sum, t.after.number
	}
	if i < len(files) {
		next := files[i].first
		if i == 0 {
			end, _ := f.classify(block, f.size)
			f.first = next - min(next, Position(end-block))
		}
		f.first = min(f.first, next)
	}
	return slices.Insert(files, i, f), nil
}

// offset returns where a position is in the file.
func (h header) offset(p Position) int64 { return block + int64(p-h.first) }

// position returns the position of an offset.
func (h header) position(offset int64) Position { return h.first + Position(offset-block) }

// read reads like ReadAt, but always fills b: with zeros behind the end of the file, and with bytes that are part of no
// record where the disk cannot read. It returns the error of the disk.
func (f *file) read(b []byte, offset int64) (failure error) {
	n, err := f.ReadAt(b, offset)
	if err == nil {
		return nil
	}
	for n &^= block - 1; n < len(b); n += block {
		part := b[n:min(n+block, len(b))]
		if m, err := f.ReadAt(part, offset+int64(n)); err == io.EOF {
			clear(part[m:])
		} else if err != nil {
			failure = err
			for i := range part {
				part[i] = 0xff
			}
		}
	}
	return failure
}

// What is wrong with a record.
var (
	errNoHead   = errors.New("there is no head of a record")
	errTooLong  = errors.New("the record does not fit between its neighbours")
	errChecksum = errors.New("the payload does not match its checksum")
	errChain    = errors.New("it does not continue what is before it: something is missing, or was exchanged")
)

// record reads the record at an offset, whole blocks of it, into buffer or a larger one. It corrects one wrong bit, in
// memory. An error says that the record is not sound.
func (f *file) record(offset, limit int64, buffer []byte) (h head, record []byte, err error) {
	record = slices.Grow(buffer[:0], block)[:block]
	if err := f.read(record, offset); err != nil {
		return head{}, record, err
	}
	h, valid := decodeHead(record, f.id, f.position(offset))
	if !valid {
		if h, valid = correctHead(record, f.id, f.position(offset)); !valid {
			return head{}, record, errNoHead
		}
		f.corrected.Store(true)
	}
	if offset+h.size() > limit {
		return h, record, errTooLong
	}
	record = slices.Grow(record, int(h.size())-block)[:h.size()]
	if err := f.read(record[block:], offset+block); err != nil {
		return h, record, err
	}
	sound, corrected := h.correct(record)
	if !sound {
		return h, record, errChecksum
	}
	if corrected {
		f.corrected.Store(true)
	}
	return h, record, nil
}

// blocks calls visit with each block between two offsets, until it returns false.
func (f *file) blocks(from, to int64, visit func(offset int64, b []byte) bool) {
	b := make([]byte, len(zeros))
	for ; from < to; from += int64(len(b)) {
		b = b[:min(int64(len(b)), to-from)]
		_ = f.read(b, from)
		for i := 0; i+block <= len(b); i += block {
			if !visit(from+int64(i), b[i:i+block]) {
				return
			}
		}
	}
}

// findRecord returns the offset of the first head of a record, or 0. In a file of unknown position, any one counts.
func (f *file) findRecord(from, to int64) (found int64, h head) {
	f.blocks(from, to, func(offset int64, b []byte) bool {
		at := f.position(offset)
		if f.number == 0 {
			at = Position(binary.LittleEndian.Uint64(b[8:]))
		}
		var valid bool
		if h, valid = decodeHead(b, f.id, at); valid {
			found = offset
		}
		return !valid
	})
	return found, h
}

// begin writes a record, unless it is empty, and then the header. So the file is in use only once it has the record.
func (f *file) begin(h header, record []byte) error {
	h.size = f.size
	f.header = h
	if len(record) > 0 {
		if err := f.write(record, block); err != nil {
			return err
		}
	}
	b := make([]byte, block)
	h.encode(b)
	return f.write(b, 0)
}

// write writes and syncs.
func (f *file) write(b []byte, offset int64) error {
	if _, err := f.WriteAt(b, offset); err != nil {
		return err
	}
	return f.sync()
}

// sync makes the content durable.
func (f *file) sync() error {
	return retry("fdatasync", func() error { return unix.Fdatasync(int(f.Fd())) })
}

// allocate makes the file as long as size, with room on the disk.
func (f *file) allocate(size int64) error {
	return retry("fallocate", func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
}

// retry repeats a system call that a signal interrupts.
func retry(name string, call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return os.NewSyscallError(name, err)
		}
	}
}

func (f *file) remove() error {
	_ = f.Close()
	return os.Remove(f.Name())
}
