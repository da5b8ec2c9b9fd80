package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/dgraph-io/badger/v4/fb"

	"mtagd/store/local/codec"
)

// A table of Badger is its blocks, and a footer:
//
//	index | size of the index (4) | checksum of the index | size of the checksum (4)
//
// A block ends with a checksum of the block, and the size of the checksum (4). Sizes are big endian.

// checkTable checks all checksums of a table, and corrects single wrong bits in it. It reports whether it did. Of a
// compressed table, which the journal does not write, it checks only the index.
func checkTable(table []byte, compressed bool) (corrected bool, err error) {
	index, fixed, err := tableIndex(table)
	if err != nil {
		return false, err
	}
	root := fb.GetRootAsTableIndex(index, 0)
	if root.OffsetsLength() == 0 {
		return false, fmt.Errorf("%w: it has no blocks", codec.ErrCorrupt)
	}
	corrected = fixed
	var at fb.BlockOffset
	for i := range root.OffsetsLength() {
		if !root.Offsets(&at, i) || uint64(at.Offset())+uint64(at.Len()) > uint64(len(table)) {
			return false, fmt.Errorf("%w: block %d is outside", codec.ErrCorrupt, i)
		}
		if compressed {
			continue
		}
		fixed, err := checkBlock(table[at.Offset():][:at.Len()])
		if err != nil {
			return false, fmt.Errorf("block %d at byte %d: %w", i, at.Offset(), err)
		}
		corrected = corrected || fixed
	}
	return corrected, nil
}

var errChecksum = fmt.Errorf("%w: wrong checksum", codec.ErrCorrupt)

// tableIndex returns the index of a table, and reports whether it had to be corrected.
func tableIndex(table []byte) (index []byte, corrected bool, err error) {
	read := func() (index []byte, sum uint32, ok bool) {
		rest, sum, ok := cutChecksum(table)
		if !ok || len(rest) < 4 {
			return nil, 0, false
		}
		rest, size := rest[:len(rest)-4], binary.BigEndian.Uint32(rest[len(rest)-4:])
		if size == 0 || uint64(size) > uint64(len(rest)) {
			return nil, 0, false
		}
		return rest[len(rest)-int(size):], sum, true
	}
	sound := func() bool {
		index, sum, ok := read()
		return ok && crc32.Checksum(index, castagnoli) == sum
	}
	if !sound() {
		corrected = true
		if !tryBits(table[max(0, len(table)-maxTrailer-4):], sound) {
			if index, sum, ok := read(); !ok || !correctBit(index, sum) {
				return nil, false, fmt.Errorf("index: %w", errChecksum)
			}
		}
	}
	index, _, ok := read()
	if !ok {
		return nil, false, errors.New("index")
	}
	return index, corrected, nil
}

// checkBlock checks the checksum of a block, corrects a wrong bit, and reports whether it did.
func checkBlock(block []byte) (corrected bool, err error) {
	sound := func() bool {
		data, sum, ok := cutChecksum(block)
		return ok && crc32.Checksum(data, castagnoli) == sum
	}
	if sound() {
		return false, nil
	}
	// The trailer first: with a wrong bit in a size, correctBit would look at the wrong bytes.
	if tryBits(block[max(0, len(block)-maxTrailer):], sound) {
		return true, nil
	}
	if data, sum, ok := cutChecksum(block); ok && correctBit(data, sum) {
		return true, nil
	}
	return false, errChecksum
}

// maxTrailer is the size of the largest checksum, and of its size.
const maxTrailer = 6 + 4

// cutChecksum cuts a checksum and its size off the end of b.
func cutChecksum(b []byte) (rest []byte, sum uint32, ok bool) {
	if len(b) < 4 {
		return nil, 0, false
	}
	b, size := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if size > maxTrailer-4 || int(size) > len(b) {
		return nil, 0, false
	}
	rest = b[:len(b)-int(size)]
	sum, ok = parseChecksum(b[len(rest):])
	return rest, sum, ok
}
