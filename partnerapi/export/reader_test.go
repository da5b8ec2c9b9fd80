package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"mtagd/store"
)

// wanted returns the columns that a file must have for an event, as text. With exact times are as Parquet has them.
func wanted(e *store.Received) []string {
	raw := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(e.Raw))
	return []string{
		string(e.ID), string(e.Merchant), string(e.Tag), string(e.MUID), e.Name,
		e.Time.Format("2006-01-02T15:04:05Z"), e.ReceivedAt.Format("2006-01-02T15:04:05Z"),
		strconv.FormatBool(e.Bot), raw,
	}
}

func compare(t *testing.T, event int, got, want []string) {
	t.Helper()
	for i, name := range columns {
		if got[i] != want[i] {
			t.Errorf("event %d has the %s %q, want %q", event, name, got[i], want[i])
		}
	}
}

func TestNDJSONHasOneObjectALine(t *testing.T) {
	events := randomEvents(3000)
	lines := strings.SplitAfter(string(write(t, NDJSON, events)), "\n")
	if len(lines) != len(events)+1 || lines[len(events)] != "" {
		t.Fatalf("%d lines for %d events", len(lines)-1, len(events))
	}
	for i := range events {
		var got map[string]json.RawMessage
		if err := json.Unmarshal([]byte(lines[i]), &got); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		var cells []string
		for _, name := range columns {
			var text string
			if name == "raw_data" || name == "isBot" {
				text = string(got[name])
			} else if err := json.Unmarshal(got[name], &text); err != nil {
				t.Fatal(err)
			}
			cells = append(cells, text)
		}
		compare(t, i, cells, wanted(&events[i]))
	}
}

func TestCSVIsReadBack(t *testing.T) {
	events := randomEvents(3000)
	records, err := csv.NewReader(bytes.NewReader(write(t, CSV, events))).ReadAll()
	if err != nil || len(records) != len(events)+1 {
		t.Fatalf("%d records: %v", len(records), err)
	}
	compare(t, -1, records[0], columns)
	for i := range events {
		want := wanted(&events[i])
		want[3] = strings.ReplaceAll(want[3], "\r\n", "\n") // encoding/csv reads them so
		got := records[i+1]
		got[3] = strings.TrimPrefix(got[3], "'")
		want[3] = strings.TrimPrefix(want[3], "'")
		compare(t, i, got, want)
	}
}

// A spreadsheet runs a cell as a formula that begins with one of these characters.
func TestNoCellOfCSVIsAFormula(t *testing.T) {
	records, err := csv.NewReader(bytes.NewReader(write(t, CSV, randomEvents(3000)))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, record := range records {
		for _, cell := range record {
			if strings.IndexAny(cell, "=+-@\t\r\n") == 0 {
				t.Errorf("a cell of line %d is %q", i, cell)
			}
		}
	}
}

func TestAFileWithoutEventsHasItsColumns(t *testing.T) {
	if got := string(write(t, CSV, nil)); got != strings.Join(columns, ",")+"\n" {
		t.Errorf("CSV without events is %q", got)
	}
	if got := readParquet(t, write(t, Parquet, nil)); len(got) != 0 {
		t.Errorf("Parquet without events has %d", len(got))
	}
}

// Apache Arrow's implementation reads what parquet-go has written.
func TestParquetIsReadByAnotherImplementation(t *testing.T) {
	events := randomEvents(rowGroupEvents + 1000)
	rows := readParquet(t, write(t, Parquet, events))
	if len(rows) != len(events) {
		t.Fatalf("%d rows, want %d", len(rows), len(events))
	}
	for i := range events {
		want := wanted(&events[i])
		want[5], want[6] = events[i].Time.Format(time.RFC3339Nano), events[i].ReceivedAt.Format(time.RFC3339Nano)
		want[8] = string(events[i].Raw)
		compare(t, i, rows[i], want)
	}
}

// readParquet returns the rows of a file, and checks its columns.
func readParquet(t *testing.T, b []byte) (rows [][]string) {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i, name := range columns {
		c := r.MetaData().Schema.Column(i)
		_, isText := c.LogicalType().(schema.StringLogicalType)
		at, isTime := c.LogicalType().(schema.TimestampLogicalType)
		isBool := c.PhysicalType() == parquet.Types.Boolean
		if c.Name() != name || c.MaxDefinitionLevel() != 0 || isBool != (name == "isBot") || !isBool && isText == isTime ||
			isTime && (!at.IsAdjustedToUTC() || at.TimeUnit() != schema.TimeUnitMicros) {
			t.Errorf("column %d is %s", i, c)
		}
	}
	for g := range r.NumRowGroups() {
		group := r.RowGroup(g)
		first := len(rows)
		rows = append(rows, make([][]string, group.NumRows())...)
		for i := range columns {
			c, err := group.Column(i)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			add := func(text string) {
				rows[first+n] = append(rows[first+n], text)
				n++
			}
			for c.HasNext() {
				switch c := c.(type) {
				case *file.ByteArrayColumnChunkReader:
					values := make([]parquet.ByteArray, 1000)
					_, got, err := c.ReadBatch(1000, values, nil, nil)
					if err != nil && err != io.EOF {
						t.Fatal(err)
					}
					for _, v := range values[:got] {
						add(string(v))
					}
				case *file.Int64ColumnChunkReader:
					values := make([]int64, 1000)
					_, got, err := c.ReadBatch(1000, values, nil, nil)
					if err != nil && err != io.EOF {
						t.Fatal(err)
					}
					for _, v := range values[:got] {
						add(time.UnixMicro(v).UTC().Format(time.RFC3339Nano))
					}
				case *file.BooleanColumnChunkReader:
					values := make([]bool, 1000)
					_, got, err := c.ReadBatch(1000, values, nil, nil)
					if err != nil && err != io.EOF {
						t.Fatal(err)
					}
					for _, v := range values[:got] {
						add(strconv.FormatBool(v))
					}
				default:
					t.Fatalf("column %s is %T", columns[i], c)
				}
			}
		}
	}
	return rows
}

func TestEncodings(t *testing.T) {
	for accept, want := range map[string]Encoding{
		"":                             "",
		"gzip":                         Gzip,
		"gzip, deflate, br, zstd":      Zstd,
		"zstd;q=0.5, gzip":             Gzip,
		"zstd;q=0, gzip;q=0":           "",
		"GZIP ; q=0.3":                 Gzip,
		"identity, br":                 "",
		"x-gzip":                       Gzip,
		"gzip;q=much":                  "",
		"gzip;q=0.8,zstd;q=0.8,br;q=1": Zstd,
	} {
		if got := Negotiate(accept); got != want {
			t.Errorf("for %q the encoding is %q, want %q", accept, got, want)
		}
	}
}
