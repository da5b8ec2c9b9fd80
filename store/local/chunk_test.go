package local

import (
	"bytes"
	"testing"
	"time"

	"mtagd/store"
)

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
			if err := useEvents(b, []wanted{{position{1, i}, 3}}, func(w wanted, alone chunkEvent) {
				if w.i != 3 || !bytes.Equal(alone.raw, e.raw) || !bytes.Equal(alone.series, e.series) || alone.time != e.time {
					t.Fatalf("event %d reads differently alone", i)
				}
			}); err != nil {
				t.Fatal(err)
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
