package export

import (
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Encoding is how a file is compressed for sending, as the Content-Encoding header names it; empty for not at all.
type Encoding string

// The encodings.
const (
	Gzip Encoding = "gzip"
	Zstd Encoding = "zstd"
)

// Negotiate returns the encoding for an Accept-Encoding header: the one with the greatest weight, zstd before gzip.
func Negotiate(accept string) (best Encoding) {
	weight := 0.0
	for part := range strings.SplitSeq(accept, ",") {
		name, parameters, _ := strings.Cut(part, ";")
		e := Encoding(strings.ToLower(strings.TrimSpace(name)))
		if e == "x-gzip" {
			e = Gzip
		}
		if e != Gzip && e != Zstd {
			continue
		}
		q := 1.0
		if value, ok := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q="); ok {
			q, _ = strconv.ParseFloat(value, 64) // what is no number is 0: not wanted
		}
		if q > weight || q == weight && q > 0 && e == Zstd {
			best, weight = e, q
		}
	}
	return best
}

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
