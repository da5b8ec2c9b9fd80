package journal

import (
	"bytes"
	"cmp"
	"reflect"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

func FuzzChunk(f *testing.F) {
	mark := store.Mark{Tag: "cs_x", Name: "Purchase", Time: time.UnixMicro(-5), Raw: []byte(`{}`)}
	first, _ := appendEvent(nil, store.MerchantKey{1}, &mark, "u-1")
	mark.ByClaim, mark.Client = true, []byte("sealed")
	both, _ := appendEvent(first, store.MerchantKey{2}, &mark, "u-2")
	f.Add(both)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := codec.Decoder{B: b}
		for i := uint16(0); len(d.B) > 0; i++ {
			at := store.Position{Seq: 1, Index: i}
			e := decodeEvent(&d, at)
			if d.Err("chunk") != nil {
				return
			}
			if err := pickEvents(b, []store.Position{{}, at}, 1, func(n int, picked Event) {
				if n != 1 || !bytes.Equal(picked.Raw, e.Raw) || !bytes.Equal(picked.Series, e.Series) ||
					picked.Time != e.Time || picked.Position != at {
					t.Fatalf("pickEvents decodes event %d differently", i)
				}
			}); err != nil {
				t.Fatal(err)
			}
			tag, name := codec.SplitSeries(e.Series)
			again := store.Mark{Tag: store.TagID(tag), Name: string(name), Time: time.UnixMicro(e.Time), Raw: e.Raw, Details: e.Details}
			encoded, series := appendEvent(nil, e.Merchant, &again, store.MUID(e.MUID))
			got := decodeEvent(&codec.Decoder{B: encoded}, at)
			if !bytes.Equal(got.MUID, e.MUID) || got.Time != e.Time || got.Merchant != e.Merchant || !reflect.DeepEqual(got.Details, e.Details) || !bytes.Equal(got.Raw, e.Raw) || !bytes.Equal(got.Series, series) {
				t.Fatalf("event %d changed when it was encoded and decoded again", i)
			}
		}
	})
}

func FuzzChunkKeysSortAsNumbers(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Add(uint64(255), uint64(256))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		if got := bytes.Compare(appendChunkKey(nil, a), appendChunkKey(nil, b)); got != cmp.Compare(a, b) {
			t.Errorf("the keys of chunks %d and %d compare %d", a, b, got)
		}
		if seq, err := parseChunkKey(appendChunkKey(nil, a)); err != nil || seq != a {
			t.Errorf("the key of chunk %d reads as %d, %v", a, seq, err)
		}
	})
}
