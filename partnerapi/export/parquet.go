package export

import (
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"mtagd/store"
)

// A row group is in memory until it is written. So it ends when it has this many events, or bytes of raw_data.
const (
	rowGroupEvents = 64 << 10
	rowGroupBytes  = 16 << 20
)

// row is an event in Parquet. Times are in microseconds, which the other formats do not show.
type row struct {
	ID         string `parquet:"id"`
	Merchant   string `parquet:"merchantId,dict"`
	Tag        string `parquet:"tagId,dict"`
	MUID       string `parquet:"muid"`
	Name       string `parquet:"event_name,dict"`
	Time       int64  `parquet:"event_time,timestamp(microsecond)"`
	ReceivedAt int64  `parquet:"receivedAt,timestamp(microsecond)"`
	Bot        bool   `parquet:"isBot"`
	Raw        string `parquet:"raw_data"`
}

// parquetWriter writes Parquet, compressed with zstd.
type parquetWriter struct {
	w             *parquet.GenericWriter[row]
	events, bytes int // of the open row group
}

func newParquetWriter(w io.Writer) *parquetWriter {
	return &parquetWriter{w: parquet.NewGenericWriter[row](w,
		parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
		parquet.CreatedBy("mtagd", "1", ""),
	)}
}

// Write implements Writer.
func (p *parquetWriter) Write(e *store.Received) error {
	if _, err := p.w.Write([]row{{
		ID: string(e.ID), Merchant: string(e.Merchant), Tag: string(e.Tag), MUID: string(e.MUID), Name: e.Name,
		Time: e.Time.UnixMicro(), ReceivedAt: e.ReceivedAt.UnixMicro(), Bot: e.Bot, Raw: string(e.Raw),
	}}); err != nil {
		return err
	}
	p.events++
	if p.bytes += len(e.Raw); p.events < rowGroupEvents && p.bytes < rowGroupBytes {
		return nil
	}
	p.events, p.bytes = 0, 0
	return p.w.Flush()
}

// Close implements Writer.
func (p *parquetWriter) Close() error { return p.w.Close() }
