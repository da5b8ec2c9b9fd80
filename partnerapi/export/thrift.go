package export

import "encoding/binary"

// compact is a text in Thrift's compact encoding.
type compact struct {
	b    []byte
	last int // the id of the field before, in the open struct
}

// The types of Thrift's values.
const (
	thriftTrue   = 1
	thriftI32    = 5
	thriftI64    = 6
	thriftBinary = 8
	thriftList   = 9
	thriftStruct = 12
)

// field begins a field. Ids ascend.
func (t *compact) field(id, kind int) {
	t.b = append(t.b, byte((id-t.last)<<4|kind))
	t.last = id
}

func (t *compact) int(id, kind int, v int64) {
	t.field(id, kind)
	t.b = binary.AppendVarint(t.b, v)
}

func (t *compact) text(id int, s string) {
	t.field(id, thriftBinary)
	t.bytes(s)
}

func (t *compact) bytes(s string) {
	t.b = append(binary.AppendUvarint(t.b, uint64(len(s))), s...)
}

// list begins a list. Its n values follow.
func (t *compact) list(id, kind, n int) {
	t.field(id, thriftList)
	if n < 15 {
		t.b = append(t.b, byte(n<<4|kind))
	} else {
		t.b = binary.AppendUvarint(append(t.b, byte(0xf0|kind)), uint64(n))
	}
}

func (t *compact) object(id int, fields func()) {
	t.field(id, thriftStruct)
	t.body(fields)
}

// body writes a struct.
func (t *compact) body(fields func()) {
	last := t.last
	t.last = 0
	fields()
	t.b = append(t.b, 0)
	t.last = last
}
