package local

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"testing"
)

// Keys and ids must sort as what they stand for does, whatever the values.
func FuzzKeysSortAsTheirValues(f *testing.F) {
	f.Add(uint64(1), uint16(0), uint64(2), uint16(0))
	f.Add(uint64(255), uint16(65535), uint64(256), uint16(1))
	f.Fuzz(func(t *testing.T, seqA uint64, indexA uint16, seqB uint64, indexB uint16) {
		a, b := position{seqA, indexA}, position{seqB, indexB}
		want := cmp.Or(cmp.Compare(seqA, seqB), cmp.Compare(indexA, indexB))
		if got := cmp.Compare(a.eventID(), b.eventID()); got != want {
			t.Errorf("ids %s and %s compare %d, want %d", a.eventID(), b.eventID(), got, want)
		}
		if n := len(a.eventID()); n != 20 {
			t.Errorf("an id has %d characters", n)
		}
		if got := bytes.Compare(appendChunkKey(nil, seqA), appendChunkKey(nil, seqB)); got != cmp.Compare(seqA, seqB) {
			t.Errorf("chunk keys of %d and %d compare %d", seqA, seqB, got)
		}
		if seq, err := parseChunkKey(appendChunkKey(nil, seqA)); err != nil || seq != seqA {
			t.Errorf("chunk key of %d reads as %d, %v", seqA, seq, err)
		}
	})
}

func TestACorruptLengthAsksForNoMemory(t *testing.T) {
	d := decoder{b: binary.AppendUvarint(nil, 1<<60)}
	if b := d.prefixed(); b != nil || d.err("value") == nil {
		t.Errorf("read %d bytes of a value that has none", len(b))
	}
}
