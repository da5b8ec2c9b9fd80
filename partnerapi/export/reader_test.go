package export

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"mtagd/store"
)

var columns = []string{"id", "merchantId", "tagId", "muid", "event_name", "event_time", "receivedAt", "isBot", "raw_data"}

// wanted returns the columns that a file must have for an event, as text. With exact times are as Parquet has them.
func wanted(e *store.Received) []string {
	raw := strings.NewReplacer("\r", " ", "\n", " ", "\t", " ").Replace(string(e.Raw))
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
		got := records[i+1]
		got[3] = arm(got[3])
		if !sameJSON(t, got[8], want[8]) {
			t.Errorf("event %d has the raw_data %q, want %q", i, got[8], want[8])
		}
		got[8] = want[8]
		compare(t, i, got, want)
	}
}

// arm is the opposite of disarm.
func arm(muid string) string {
	var b []byte
	for i, part := 0, true; i < len(muid); i++ {
		if !part || muid[i] != '\'' || !isFormula(muid[i:]) {
			b = append(b, muid[i])
			part = strings.IndexByte(separators, muid[i]) >= 0
			continue
		}
		part = false
	}
	return string(b)
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var first, second any
	if err := errors.Join(json.Unmarshal([]byte(a), &first), json.Unmarshal([]byte(b), &second)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(first, second)
}

// spreadsheetCells are the cells that a spreadsheet makes of a file. Quotes count only around a whole cell: they begin and
// end it, and a doubled one stands for one. What follows the end of a quoted cell is appended to it.
func spreadsheetCells(file string, separators string) (cells []string) {
	for rest := file; rest != ""; {
		var cell []byte
		if rest[0] == '"' {
			rest = rest[1:]
			for rest != "" {
				if rest[0] == '"' {
					if !strings.HasPrefix(rest, `""`) {
						rest = rest[1:]
						break
					}
					rest = rest[1:]
				}
				cell, rest = append(cell, rest[0]), rest[1:]
			}
		}
		end := strings.IndexAny(rest, separators+"\r\n")
		if end < 0 {
			end = len(rest)
		}
		cells = append(cells, string(cell)+rest[:end])
		rest = rest[min(end+1, len(rest)):]
	}
	return cells
}

// A spreadsheet runs a cell as a formula that begins with one of these characters, perhaps behind blanks.
func FuzzNoCellOfCSVIsAFormula(f *testing.F) {
	for _, muid := range []string{"=1", "a;=1+1;b", `a;"=1+1"`, "a\n=1", "a\"\n\"=1", "a\t@x", "';=1", "; ＝1", `";""=1`, ";\t=1", "a,=1", `"=1`} {
		f.Add(muid, `{"x":"a;=1+1;b"}`)
	}
	f.Add("m", "{\t\"x\"\t:\n-1}")
	f.Add("m", `{"x;=1":";\"=1"}`)
	f.Fuzz(func(t *testing.T, muid, raw string) {
		if !json.Valid([]byte(raw)) || raw[0] != '{' {
			return
		}
		if got := arm(disarm(muid)); got != muid {
			t.Errorf("%q is read back as %q", muid, got)
		}
		file := string(write(t, CSV, []store.Received{{Event: store.Event{ID: "evt_x", MUID: store.MUID(muid), Name: "A", Raw: []byte(raw)}, Merchant: "m", Tag: "cs_x"}}))
		for _, separators := range []string{",", ";", "\t", ",;\t"} {
			for _, cell := range spreadsheetCells(file, separators) {
				if strings.IndexAny(strings.TrimLeft(cell, " "), "=+-@＝＋－＠\t") == 0 {
					t.Errorf("split at %q, a cell is %q in %q", separators, cell, file)
				}
			}
		}
	})
}

func TestAFileWithoutEventsHasItsColumns(t *testing.T) {
	if got := string(write(t, CSV, nil)); got != strings.Join(columns, ",")+"\n" {
		t.Errorf("CSV without events is %q", got)
	}
	if got := readParquet(t, write(t, Parquet, nil)); len(got) != 0 {
		t.Errorf("Parquet without events has %d", len(got))
	}
}

// Apache Arrow's implementation reads what the writer has written.
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
		if compare(t, i, rows[i], want); t.Failed() {
			return // one event says enough
		}
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
			chunk, err := group.MetaData().ColumnChunk(i)
			if err != nil {
				t.Fatal(err)
			}
			statistics, err := chunk.Statistics()
			if err != nil {
				t.Fatal(err)
			}
			least, most := int64(math.MaxInt64), int64(math.MinInt64)
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
						least, most = min(least, v), max(most, v)
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
			if s, ok := statistics.(*metadata.Int64Statistics); ok != (least <= most) || ok && (s.Min() != least || s.Max() != most) {
				t.Errorf("the statistics of %s are %v, want %d and %d", columns[i], statistics, least, most)
			}
		}
	}
	return rows
}
