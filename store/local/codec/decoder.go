package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrCorrupt is the error for a stored value that cannot be decoded, or that is damaged.
var ErrCorrupt = errors.New("corrupt value")

// UnknownFormat is the error for a file whose format version this build does not read.
type UnknownFormat struct {
	Found string
	Known string // the one that it reads
}

func (e UnknownFormat) Error() string {
	return fmt.Sprintf("format %q is not known to this version, which reads %q", e.Found, e.Known)
}

// Decoder reads varints and prefixed strings from B, and removes them. After a failure its methods return zeroes, and Err
// says so.
type Decoder struct {
	B      []byte // what is left to read
	failed bool
}

// Fail makes Err return an error. Callers use it when they have read a value that cannot be right.
func (d *Decoder) Fail() { d.failed, d.B = true, nil }

// Err returns an error that wraps ErrCorrupt when something could not be read; what names the value in it.
func (d *Decoder) Err(what string) error {
	if d.failed {
		return fmt.Errorf("%w: %s", ErrCorrupt, what)
	}
	return nil
}

// Uvarint reads an unsigned varint.
func (d *Decoder) Uvarint() uint64 {
	if len(d.B) > 0 && d.B[0] < 0x80 { // the common case
		v := d.B[0]
		d.B = d.B[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(d.B)
	d.skip(n)
	return v
}

// Varint reads a signed varint.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.B)
	d.skip(n)
	return v
}

// skip removes the n bytes of a varint. encoding/binary returns an n ≤ 0 when there is no varint.
func (d *Decoder) skip(n int) {
	if n <= 0 {
		d.Fail()
		return
	}
	d.B = d.B[n:]
}

// Count reads the number of items that follow. Each item takes at least one byte. So a number above the bytes that are
// left is corrupt, and callers may safely allocate as many items as Count returns.
func (d *Decoder) Count() int {
	n := d.Uvarint()
	if n > uint64(len(d.B)) {
		d.Fail()
		return 0
	}
	return int(n)
}

// Bytes reads n bytes. The result aliases B.
func (d *Decoder) Bytes(n int) []byte {
	if n > len(d.B) {
		d.Fail()
		return nil
	}
	v := d.B[:n:n]
	d.B = d.B[n:]
	return v
}

// Prefixed reads length-prefixed bytes. The result aliases B.
func (d *Decoder) Prefixed() []byte { return d.Bytes(d.Count()) }

// AppendPrefixed appends the length of v (uvarint), and then v.
func AppendPrefixed[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}
