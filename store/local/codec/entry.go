package codec

import "encoding/binary"

// Entry is an entry of the journal as it travels: in a backup, and between the journal and what makes one.
type Entry struct {
	Key, Value []byte
	Version    uint64 // of the commit that wrote it
	ExpiresAt  uint64 // s since 1970; 0: never
	Deleted    bool   // it says that the key was deleted
}

// AppendEntry appends the byte form of an entry: key and value (each length-prefixed), version, expiry, and 1 if the key
// was deleted, else 0 (uvarints).
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
