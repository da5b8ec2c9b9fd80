package codec

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal appends the CRC-32C of key and b (4 bytes, big endian) to b. So a value that damage has put under another key is not
// taken for that key's.
func Seal(key, b []byte) []byte { return binary.BigEndian.AppendUint32(b, checksum(key, b)) }

// Unseal checks the sealed value of a key, and returns it without its checksum. When the value is damaged or missing,
// it returns nil, which every decoder refuses.
func Unseal(key, b []byte) []byte {
	n := len(b) - crc32.Size
	if n < 0 || checksum(key, b[:n]) != binary.BigEndian.Uint32(b[n:]) {
		return nil
	}
	return b[:n]
}

func checksum(key, b []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, b)
}
