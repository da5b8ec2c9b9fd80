// Package crc corrects one wrong bit of data with a CRC-32C.
package crc

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CorrectBit looks for a single wrong bit: one that must be flipped for data to have the CRC-32C sum. If there is one, it
// flips the bit and returns true. Other damage can look like a single wrong bit, in 1 of 500 cases for 1 MiB of data, and
// in 1 of 130,000 for 4 KiB.
//
// Flipping a bit changes the checksum by a value that depends only on the bit's distance from the end. So CorrectBit
// calculates this value for each bit, beginning at the end, until it is the change that sum requires.
func CorrectBit(data []byte, sum uint32) bool {
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
