package store

import (
	"cmp"
	"encoding/base32"
	"encoding/binary"
	"math"
	"strings"
)

// Position is where an event is in the order of receipt: a commit, and a place in that commit. Of two events, the one that
// was received later has the greater position. All engines number commits so, that ids and cursors stay good when the data
// moves.
type Position struct {
	Seq   uint64 // of the commit: its time in µs since 1970, or a little more
	Index uint16 // place in the commit, from 0
}

// Compare returns -1, 0 or +1: p was received before o, is o, or was received after o.
func (p Position) Compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Seq, o.Seq), cmp.Compare(p.Index, o.Index))
}

// idEncoding has its digits in ASCII order, so that encoded ids sort as their bytes do.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// EventID returns the public id of the event at this position: "evt_", followed by the seq (8 bytes) and the index
// (2 bytes), both big endian, in base32. Ids sort as their positions do.
func (p Position) EventID() EventID { return EventID(p.text("evt_")) }

// cursorPrefix begins every cursor, so that an event's id is not taken for one.
const cursorPrefix = "cur_"

// Cursor returns the place after the event at this position: as EventID, with another prefix.
func (p Position) Cursor() Cursor { return Cursor(p.text(cursorPrefix)) }

// ParseCursor returns the position of a cursor; false when it is none. The empty cursor is before every position.
func ParseCursor(c Cursor) (Position, bool) {
	if c == "" {
		return Position{}, true
	}
	digits, ok := strings.CutPrefix(string(c), cursorPrefix)
	if !ok || len(digits) != idEncoding.EncodedLen(10) {
		return Position{}, false
	}
	b, err := idEncoding.DecodeString(digits)
	if err != nil || len(b) != 10 { // line breaks count as no digits
		return Position{}, false
	}
	return Position{binary.BigEndian.Uint64(b), binary.BigEndian.Uint16(b[8:])}, true
}

// Cursors returns the places before and after the event with an id; false when it is no id of an event.
func (id EventID) Cursors() (before, after Cursor, ok bool) {
	digits, ok := strings.CutPrefix(string(id), "evt_")
	at, parses := ParseCursor(Cursor(cursorPrefix + digits))
	if !ok || !parses {
		return "", "", false
	}
	if after = at.Cursor(); at.Index > 0 {
		at.Index--
	} else {
		at = EndOf(at.Seq - 1)
	}
	return at.Cursor(), after, true
}

// EndOf returns the last position that a commit can have.
func EndOf(seq uint64) Position { return Position{seq, math.MaxUint16} }

func (p Position) text(prefix string) string {
	var b [10]byte
	binary.BigEndian.PutUint64(b[:8], p.Seq)
	binary.BigEndian.PutUint16(b[8:], p.Index)
	var text [20]byte
	copy(text[:], prefix)
	idEncoding.Encode(text[len(prefix):], b[:])
	return string(text[:])
}
