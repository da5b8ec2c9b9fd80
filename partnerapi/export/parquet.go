package export

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"mtagd/store"
)

// A Parquet file has row groups, a row group has a chunk for each column, and a chunk has pages of values. Here no value is
// missing, values are written as they are (PLAIN), and pages are compressed with zstd. What a reader needs to find the pages
// follows at the end of the file, in Thrift's compact encoding. Numbers in the comments are ids in
// github.com/apache/parquet-format, parquet.thrift. A library for all that Parquet can do would be a tenth of the program.

// A row group is in memory until it is written, its full pages compressed. So it ends when it has this many events, or bytes
// of raw_data.
const (
	rowGroupEvents = 64 << 10
	rowGroupBytes  = 16 << 20
	pageBytes      = 256 << 10
)

const parquetMagic = "PAR1"

// The physical types (Type).
const (
	booleanType   = 0
	int64Type     = 2
	byteArrayType = 6
)

var parquetTypes = [...]int64{Text: byteArrayType, Time: int64Type, Flag: booleanType, JSON: byteArrayType}

// parquetWriter writes Parquet. Times are in microseconds, which the other formats do not show.
type parquetWriter struct {
	w             io.Writer
	offset        int64 // of the file
	zstd          *zstd.Encoder
	columns       []parquetColumn
	events, bytes int     // of the open row group
	groups        compact // the row groups that are written
	groupCount    int
	total         int64 // events in them
	err           error // of a write; nothing can follow it
}

// parquetColumn is a column of the open row group.
type parquetColumn struct {
	name     string
	kind     int64
	page     []byte // the values of the open page
	values   int    // how many these are
	pages    []byte // the full pages, each behind its header
	plain    int64  // the size of pages before compression
	min, max int64  // of times
}

func newParquetWriter(w io.Writer) *parquetWriter {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(pageBytes))
	p := &parquetWriter{w: w, zstd: encoder, err: err}
	for _, f := range Fields {
		p.columns = append(p.columns, parquetColumn{name: f.Name, kind: parquetTypes[f.Type]})
	}
	p.write([]byte(parquetMagic))
	return p
}

func (p *parquetWriter) Write(e *store.Received) error {
	for i := range p.columns {
		c, f := &p.columns[i], &Fields[i]
		switch f.Type {
		case Text:
			addText(c, f.text(e))
		case Time:
			c.addTime(f.time(e).UnixMicro(), p.events == 0)
		case Flag:
			c.addBool(f.flag(e))
		case JSON:
			addText(c, e.Raw)
		}
		if c.values++; len(c.page) >= pageBytes {
			c.endPage(p.zstd)
		}
	}
	p.events++
	if p.bytes += len(e.Raw); p.events >= rowGroupEvents || p.bytes >= rowGroupBytes {
		p.endGroup()
	}
	return p.err
}

func addText[T ~string | ~[]byte](c *parquetColumn, text T) {
	c.page = append(binary.LittleEndian.AppendUint32(c.page, uint32(len(text))), text...)
}

func (c *parquetColumn) addTime(t int64, first bool) {
	if first {
		c.min, c.max = t, t
	}
	c.min, c.max = min(c.min, t), max(c.max, t)
	c.page = binary.LittleEndian.AppendUint64(c.page, uint64(t))
}

// addBool adds a bit.
func (c *parquetColumn) addBool(v bool) {
	if c.values%8 == 0 {
		c.page = append(c.page, 0)
	}
	if v {
		c.page[len(c.page)-1] |= 1 << (c.values % 8)
	}
}

// endPage compresses the open page.
func (c *parquetColumn) endPage(encoder *zstd.Encoder) {
	if c.values == 0 {
		return
	}
	packed := encoder.EncodeAll(c.page, nil)
	var t compact
	t.body(func() { // PageHeader
		t.int(1, thriftI32, 0) // DATA_PAGE
		t.int(2, thriftI32, int64(len(c.page)))
		t.int(3, thriftI32, int64(len(packed)))
		t.object(5, func() { // DataPageHeader
			t.int(1, thriftI32, int64(c.values))
			t.int(2, thriftI32, 0) // PLAIN
			t.int(3, thriftI32, 3) // RLE, of levels: there are none
			t.int(4, thriftI32, 3)
		})
	})
	c.plain += int64(len(t.b) + len(c.page))
	c.pages = append(append(c.pages, t.b...), packed...)
	c.page, c.values = c.page[:0], 0
}

// endGroup writes the open row group.
func (p *parquetWriter) endGroup() {
	if p.events == 0 {
		return
	}
	t := &p.groups
	t.body(func() { // RowGroup
		plain := int64(0)
		t.list(1, thriftStruct, len(p.columns))
		for i := range p.columns {
			c := &p.columns[i]
			c.endPage(p.zstd)
			plain += c.plain
			t.body(func() { // ColumnChunk
				t.int(2, thriftI64, 0)
				t.object(3, func() { c.describe(t, p.offset, p.events) })
			})
			p.write(c.pages)
			c.pages, c.plain = c.pages[:0], 0
		}
		t.int(2, thriftI64, plain)
		t.int(3, thriftI64, int64(p.events))
	})
	p.groupCount++
	p.total += int64(p.events)
	p.events, p.bytes = 0, 0
}

// describe writes the fields of a ColumnMetaData. The pages begin at an offset of the file.
func (c *parquetColumn) describe(t *compact, offset int64, values int) {
	t.int(1, thriftI32, c.kind)
	t.list(2, thriftI32, 1)
	t.b = append(t.b, 0) // PLAIN
	t.list(3, thriftBinary, 1)
	t.bytes(c.name)
	t.int(4, thriftI32, 6) // ZSTD
	t.int(5, thriftI64, int64(values))
	t.int(6, thriftI64, c.plain)
	t.int(7, thriftI64, int64(len(c.pages)))
	t.int(9, thriftI64, offset)
	if c.kind == int64Type {
		t.object(12, func() { // Statistics, by which a reader skips row groups
			t.int(3, thriftI64, 0) // nulls
			t.text(5, string(binary.LittleEndian.AppendUint64(nil, uint64(c.max))))
			t.text(6, string(binary.LittleEndian.AppendUint64(nil, uint64(c.min))))
		})
	}
}

func (p *parquetWriter) Close() error {
	p.endGroup()
	var t compact
	t.body(func() { // FileMetaData
		t.int(1, thriftI32, 1)
		t.list(2, thriftStruct, 1+len(p.columns))
		t.body(func() { // SchemaElement: the root
			t.text(4, "row")
			t.int(5, thriftI32, int64(len(p.columns)))
		})
		for _, c := range p.columns {
			t.body(func() { c.element(&t) })
		}
		t.int(3, thriftI64, p.total)
		t.list(4, thriftStruct, p.groupCount)
		t.b = append(t.b, p.groups.b...)
		t.text(6, "mtagd version 1 (build )") // the form that readers expect
		t.list(7, thriftStruct, len(p.columns))
		for range p.columns {
			t.body(func() { t.object(1, func() {}) }) // TypeDefinedOrder, for the statistics
		}
	})
	p.write(t.b)
	p.write(binary.LittleEndian.AppendUint32(nil, uint32(len(t.b))))
	p.write([]byte(parquetMagic))
	return errors.Join(p.err, p.zstd.Close())
}

// element writes the fields of a SchemaElement.
func (c *parquetColumn) element(t *compact) {
	t.int(1, thriftI32, c.kind)
	t.int(3, thriftI32, 0) // REQUIRED
	t.text(4, c.name)
	switch c.kind {
	case byteArrayType:
		t.int(6, thriftI32, 0)                          // UTF8, for old readers
		t.object(10, func() { t.object(1, func() {}) }) // STRING
	case int64Type:
		t.int(6, thriftI32, 10) // TIMESTAMP_MICROS
		t.object(10, func() {   // LogicalType
			t.object(8, func() { // TIMESTAMP
				t.field(1, thriftTrue)                         // in UTC
				t.object(2, func() { t.object(2, func() {}) }) // MICROS
			})
		})
	}
}

func (p *parquetWriter) write(b []byte) {
	if p.err == nil {
		_, p.err = p.w.Write(b)
	}
	p.offset += int64(len(b))
}
