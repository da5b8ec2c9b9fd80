package codec

import (
	"cmp"
	"encoding/base32"
	"encoding/binary"

	"mtagd/store"
)

// Position says where an event is stored: in which chunk of the journal, and at which place in the chunk.
// Positions grow in the order of receipt.
type Position struct {
	Seq   uint64 // number of the chunk
	Index uint16 // place in the chunk, from 0
}

// Compare returns -1, 0 or +1, for the order of receipt.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Seq, o.Seq), cmp.Compare(p.Index, o.Index))
}

// Digits in ASCII order, so that encoded ids sort as their bytes do.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// EventID returns the public form of a position: "evt_" and the seq (8 bytes) and index (2 bytes), big endian, in
// base32. Ids sort as their positions do.
func (p Position) EventID() store.EventID {
	var b [10]byte
	binary.BigEndian.PutUint64(b[:8], p.Seq)
	binary.BigEndian.PutUint16(b[8:], p.Index)
	return store.EventID("evt_" + idEncoding.EncodeToString(b[:]))
}
