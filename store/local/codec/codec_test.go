package codec

import (
	"encoding/binary"
	"testing"
)

func TestACorruptLengthAllocatesNothing(t *testing.T) {
	d := Decoder{B: binary.AppendUvarint(nil, 1<<60)}
	if b := d.Prefixed(); b != nil || d.Err("value") == nil {
		t.Errorf("a value that is only a length gives %d bytes, %v", len(b), d.Err("value"))
	}
}
