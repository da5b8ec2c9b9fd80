package local

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"testing"
	"time"

	"mtagd/store"
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

// A key that sorts before the chunks, in a table with new chunks, would span all the old ones.
func TestChunksSortBeforeAllElse(t *testing.T) {
	for _, prefix := range []byte{prefixFormat, prefixCheckpoint, prefixLink, prefixDedupe, prefixRoot, prefixNode} {
		if prefix <= prefixChunk {
			t.Errorf("keys with %q sort before the chunks'", prefix)
		}
	}
}

func FuzzChunk(f *testing.F) {
	mark := store.Mark{Tag: "cs_x", Name: "Purchase", Time: time.UnixMicro(-5), Raw: []byte(`{}`)}
	f.Add(appendEvent(appendEvent(nil, merchantKey{1}, &mark, "u-1"), merchantKey{2}, &mark, "u-2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{b: b}
		for i := uint16(0); len(d.b) > 0; i++ {
			e := d.next()
			if d.err("chunk") != nil {
				return
			}
			again, err := chunkEventAt(b, position{1, i})
			if err != nil || !bytes.Equal(again.raw, e.raw) || !bytes.Equal(again.series, e.series) || again.time != e.time {
				t.Fatalf("event %d reads differently alone: %v", i, err)
			}
			tag, name := splitSeries(e.series)
			rewritten := appendEvent(nil, e.merchant, &store.Mark{Tag: tag, Name: name, Time: time.UnixMicro(e.time), Raw: e.raw}, store.MUID(e.muid))
			read := decoder{b: rewritten}
			if got := read.next(); !bytes.Equal(got.muid, e.muid) || got.time != e.time || got.merchant != e.merchant {
				t.Fatalf("event %d was rewritten as another", i)
			}
		}
	})
}

func TestClockNeverRepeatsOrGoesBack(t *testing.T) {
	now := time.UnixMicro(1000)
	c := &clock{now: func() time.Time { return now }, last: 500}
	for _, step := range []struct {
		now  int64
		want uint64
	}{{1000, 1000}, {1000, 1001}, {900, 1002}, {2000, 2000}} {
		now = time.UnixMicro(step.now)
		if got := c.next(); got != step.want {
			t.Errorf("at %d the clock gives %d, want %d", step.now, got, step.want)
		}
	}
}

func TestACorruptLengthAsksForNoMemory(t *testing.T) {
	d := decoder{b: binary.AppendUvarint(nil, 1<<60)}
	if b := d.prefixed(); b != nil || d.err("value") == nil {
		t.Errorf("read %d bytes of a value that has none", len(b))
	}
}
