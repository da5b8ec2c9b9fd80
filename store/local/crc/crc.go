// Package crc corrects one wrong bit of data with a CRC-32C.
package crc

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CorrectBit flips the one bit of data whose flip gives data the checksum sum, a CRC-32C. It reports whether there is one.
// That other damage looks like one wrong bit has a probability of one in 500 for a MiB, and of one in 130,000 for 4 KiB.
//
// Flipping a bit changes the checksum by a value that depends only on the bit's distance from the end. So CorrectBit
// calculates these values from the end, until it finds the change that there is.
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
