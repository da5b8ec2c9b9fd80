package codec

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal appends the CRC-32C of b (4 bytes, big endian) to b.
func Seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) }

// Unseal checks a sealed value and returns it without its checksum. When the value is damaged or missing, it returns nil,
// which every decoder refuses.
func Unseal(b []byte) []byte {
	n := len(b) - crc32.Size
	if n < 0 || crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return nil
	}
	return b[:n]
}
