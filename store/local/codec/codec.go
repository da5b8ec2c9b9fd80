// Package codec has what the packages of the embedded engine share: byte forms that their files have in common, and the
// values that they pass to each other. All byte forms are part of the data format: a change needs a new format version.
//
//	codec.go     Event and Entry; values with a checksum
//	series.go    a series: the tag and name of an event, as bytes
//	decoder.go   varints and length-prefixed strings; the errors of corrupt values and unknown formats
package codec

import (
	"encoding/binary"
	"hash/crc32"

	"mtagd/store"
)

// Event is what the index needs to know about an event.
type Event struct {
	Merchant store.MerchantKey
	store.Position
	Time   int64  // µs since 1970
	Series []byte // as AppendSeries appends it
	Size   uint32 // bytes of the event in its chunk, before compression
}

// Entry is an entry of the journal as it travels: in a backup, and between the journal and what makes one.
type Entry struct {
	Key, Value []byte
	Version    uint64 // of the commit that wrote it
	ExpiresAt  uint64 // s since 1970; 0: never
	Deleted    bool   // it says that the key was deleted
}

// AppendEntry appends an entry: key and value (each length-prefixed), version, expiry, and 1 if it is a deletion, else 0
// (uvarints).
func AppendEntry(b []byte, e Entry) []byte {
	b = AppendPrefixed(b, e.Key)
	b = AppendPrefixed(b, e.Value)
	b = binary.AppendUvarint(b, e.Version)
	b = binary.AppendUvarint(b, e.ExpiresAt)
	if e.Deleted {
		return append(b, 1)
	}
	return append(b, 0)
}

// EntryTrailerSize returns the number of bytes after the value in an encoded entry.
func EntryTrailerSize(e Entry) int {
	var b [2 * binary.MaxVarintLen64]byte
	n := binary.PutUvarint(b[:], e.Version)
	return n + binary.PutUvarint(b[n:], e.ExpiresAt) + 1
}

// Entry reads an entry. Its slices alias B.
func (d *Decoder) Entry() Entry {
	e := Entry{Key: d.Prefixed(), Value: d.Prefixed(), Version: d.Uvarint(), ExpiresAt: d.Uvarint()}
	switch d.Uvarint() {
	case 0:
	case 1:
		e.Deleted = true
	default:
		d.Fail()
	}
	return e
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal appends the CRC-32C of key and b (4 bytes, big endian) to b. So the value of another key is not taken for that key's.
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
