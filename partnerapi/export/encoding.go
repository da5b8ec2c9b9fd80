package export

import (
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Encoding is how a file is compressed for sending, as the Content-Encoding header names it; empty for not at all.
type Encoding string

// The encodings, the preferred one first.
const (
	Zstd Encoding = "zstd"
	Gzip Encoding = "gzip"
)

// Encode returns a writer that compresses what is written to w. It must be closed.
func Encode(e Encoding, w io.Writer) (io.WriteCloser, error) {
	switch e {
	case Gzip:
		return gzip.NewWriterLevel(w, gzip.BestSpeed)
	case Zstd:
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(512<<10))
	}
	return plain{w}, nil
}

// plain is a writer that compresses nothing.
type plain struct{ io.Writer }

// Close implements io.Closer.
func (plain) Close() error { return nil }
