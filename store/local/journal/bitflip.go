package journal

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// correctBit flips the one bit of data whose flip gives data the checksum sum, a CRC-32C. It reports whether there is one.
// A CRC-32C finds the place of a single wrong bit in up to 256 MB. That other damage looks like a single wrong bit has a
// probability of one in 500,000 for a record of 1 KB.
//
// Flipping a bit changes the checksum by a value that depends only on the bit's distance from the end. So correctBit
// calculates these values from the end, until it finds the change that there is.
func correctBit(data []byte, sum uint32) bool {
	change := crc32.Checksum(data, castagnoli) ^ sum
	var changes [8]uint32
	for bit := range changes {
		changes[bit] = castagnoli[1<<bit]
	}
	for i := len(data) - 1; i >= 0; i-- {
		for bit, c := range changes {
			if c == change {
				data[i] ^= 1 << bit
				return true
			}
			changes[bit] = castagnoli[c&0xff] ^ c>>8
		}
	}
	return false
}

// tryBits flips each bit of b in turn until sound returns true, and reports whether it did. It is for the few bytes of a
// checksum, and of the sizes that say where it is.
func tryBits(b []byte, sound func() bool) bool {
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if sound() {
				return true
			}
			b[i] ^= 1 << bit
		}
	}
	return false
}

// parseChecksum reads the checksum of a table's block or index: Badger's message pb.Checksum, of which only the CRC-32C is
// used.
func parseChecksum(b []byte) (sum uint32, ok bool) {
	if len(b) == 0 {
		return 0, true
	}
	if b[0] != 2<<3 { // field 2, a varint
		return 0, false
	}
	v, n := binary.Uvarint(b[1:])
	return uint32(v), n == len(b)-1 && v == uint64(uint32(v))
}
