package bench

import (
	"fmt"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// BenchmarkCompress compares compressions for the engine's chunks: time and size per event. A lone caller makes chunks
// of one event, many callers chunks of 8 KiB. Listings read chunks, and so does the engine when it starts.
func BenchmarkCompress(b *testing.B) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	for _, codec := range []struct {
		name string
		pack func(dst, chunk []byte) []byte
		open func(dst, packed []byte) ([]byte, error)
	}{
		{"s2", s2.Encode, s2.Decode},
		{"s2better", s2.EncodeBetter, s2.Decode},
		{"zstd", func(dst, chunk []byte) []byte { return encoder.EncodeAll(chunk, dst[:0]) },
			func(dst, packed []byte) ([]byte, error) { return decoder.DecodeAll(packed, dst[:0]) }},
	} {
		for _, events := range []int{1, 8 << 10 / EventSize} {
			var chunk []byte
			for n := range events {
				chunk = append(chunk, event(n*7919)...)
			}
			buf := make([]byte, s2.MaxEncodedLen(len(chunk)))
			packed := codec.pack(nil, chunk)
			perEvent := func(b *testing.B) {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
				b.ReportMetric(float64(len(packed))/float64(events), "B/event")
			}
			b.Run(fmt.Sprintf("codec=%s/events=%d/pack", codec.name, events), func(b *testing.B) {
				for b.Loop() {
					codec.pack(buf, chunk)
				}
				perEvent(b)
			})
			b.Run(fmt.Sprintf("codec=%s/events=%d/open", codec.name, events), func(b *testing.B) {
				for b.Loop() {
					if _, err := codec.open(buf, packed); err != nil {
						b.Fatal(err)
					}
				}
				perEvent(b)
			})
		}
	}
}
