// Package export writes events in the order of receipt as files: NDJSON, CSV, Parquet. It has no part of the HTTP
// protocol.
//
//	format.go   the formats; compresses what a Writer writes
//	fields.go   the fields of an event
//	json.go     NDJSON; an event as one line of JSON, as the feed has it too
//	csv.go      CSV
//	parquet.go  Parquet
//	thrift.go   the encoding of its metadata
//
// All formats have the same columns: Fields.
package export

import (
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"mtagd/store"
)

// Format is a format of files, as clients and operators name it.
type Format string

// The formats.
const (
	NDJSON  Format = "ndjson"
	CSV     Format = "csv"
	Parquet Format = "parquet"
)

// Formats has the names of all formats. The first one is the default.
var Formats = []string{string(NDJSON), string(CSV), string(Parquet)}

// ContentType returns the media type of a format.
func (f Format) ContentType() string {
	switch f {
	case CSV:
		return "text/csv; charset=utf-8; header=present"
	case Parquet:
		return "application/vnd.apache.parquet"
	default:
		return "application/x-ndjson"
	}
}

// IsCompressed reports whether files of the format are compressed in themselves.
func (f Format) IsCompressed() bool { return f == Parquet }

// Writer writes events in one format. It holds as much memory as one batch, or one row group of Parquet.
type Writer interface {
	// Write writes an event. It may use the event only until it returns.
	Write(e *store.Received) error
	// Close writes what is left. It does not close what it writes to. A file without it is not complete.
	Close() error
}

// NewWriter returns a Writer that writes to w.
func NewWriter(f Format, w io.Writer) Writer {
	switch f {
	case CSV:
		return newCSVWriter(w)
	case Parquet:
		return newParquetWriter(w)
	default:
		return &jsonWriter{w: w}
	}
}

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
