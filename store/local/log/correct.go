package log

import (
	"hash/crc32"

	"mtagd/store/local/crc"
)

// maxCorrected bounds the payloads in which a wrong bit is corrected, in bytes (crc.CorrectBit).
const maxCorrected = 1 << 20

// correct corrects one wrong bit of a record behind its head.
func (h head) correct(record []byte) bool {
	end := headSize + int(h.length)
	payload := record[headSize:end]
	if crc32.Checksum(payload, castagnoli) == h.payload {
		wrong := record[end] ^ endMark
		record[end] = endMark
		return wrong&(wrong-1) == 0
	}
	return record[end] == endMark && len(payload) <= maxCorrected && crc.CorrectBit(payload, h.payload)
}

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
