package codec

import (
	"cmp"
	"encoding/base32"
	"encoding/binary"

	"mtagd/store"
)

// Position is where an event is stored: a chunk of the journal, and a place in that chunk. Of two events, the one that
// was received later has the greater position.
type Position struct {
	Seq   uint64 // number of the chunk
	Index uint16 // place in the chunk, from 0
}

// Compare returns -1, 0 or +1: p was received before o, is o, or was received after o.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Seq, o.Seq), cmp.Compare(p.Index, o.Index))
}

// idEncoding has its digits in ASCII order, so that encoded ids sort as their bytes do.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// EventID returns the public id of the event at this position: "evt_", followed by the seq (8 bytes) and the index
// (2 bytes), both big endian, in base32. Ids sort as their positions do.
func (p Position) EventID() store.EventID {
	var b [10]byte
	binary.BigEndian.PutUint64(b[:8], p.Seq)
	binary.BigEndian.PutUint16(b[8:], p.Index)
	return store.EventID("evt_" + idEncoding.EncodeToString(b[:]))
}
