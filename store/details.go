package store

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Details are the fields of an event that engines only store and return: no query counts events by them or selects by them.
//
// A new one is a bool or bytes, because PostgreSQL stores no zero byte in a text. It needs a field here, a line in each of
// what follows, a column (package store/postgres/schema), and its place in writeEvents (package store/postgres/write). Then
// both engines store, return and move it. If it is from the body of an event, it also needs a line in eventjson.Fields and in
// readMark (package edge/tag). Package export says where the service shows it.
type Details struct {
	ByClaim bool // the sender gave only identifiers, of which a link that did not come with the merchant's secret led to the muid (Person)

	// Client is the address and the user agent of the browser that has sent the event, encrypted by package delivery
	// with a key that lasts for ClientLife and is in no backup. nil: none. It does not move to another engine.
	Client []byte
}

// The numbers of details in the embedded engine. They are less than any byte that begins a JSON text.
const (
	byClaimNumber = 1
	clientNumber  = 2
	maxNumber     = 8
)

// DetailColumns are the columns of details in PostgreSQL, in the order of Values.
var DetailColumns = []string{"by_claim", "client"}

// Values returns where details are: a *bool or a *[]byte for each of DetailColumns.
func (d *Details) Values() []any { return []any{&d.ByClaim, &d.Client} }

// Bytes is about how many bytes details take.
func (d *Details) Bytes() int { return len(d.Client) }

// Clone returns a copy that shares no bytes with d.
func (d *Details) Clone() Details {
	c := *d
	c.Client = bytes.Clone(d.Client)
	return c
}

// Append appends details as the embedded engine stores them before the JSON of an event: the number of each that is
// set, and for bytes their length and the bytes themselves.
func (d *Details) Append(b []byte) []byte {
	if d.ByClaim {
		b = append(b, byClaimNumber)
	}
	if len(d.Client) > 0 {
		b = append(binary.AppendUvarint(append(b, clientNumber), uint64(len(d.Client))), d.Client...)
	}
	return b
}

// Cut reads what Append has written, and returns what follows. The details share its bytes. ok is false for what Append does
// not write.
func (d *Details) Cut(b []byte) (rest []byte, ok bool) {
	for len(b) > 0 && b[0] <= maxNumber {
		number := b[0]
		b = b[1:]
		switch number {
		case byClaimNumber:
			d.ByClaim = true
		case clientNumber:
			if d.Client, b, ok = cutBytes(b); !ok {
				return nil, false
			}
		default: // of a newer version
			return nil, false
		}
	}
	return b, true
}

func cutBytes(b []byte) (value, rest []byte, ok bool) {
	n, width := binary.Uvarint(b)
	if width <= 0 || n > uint64(len(b)-width) {
		return nil, nil, false
	}
	b = b[width:]
	return slices.Clip(b[:n]), b[n:], true
}
