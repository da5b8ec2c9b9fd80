package export

import (
	"bytes"
	"encoding/csv"
	"io"
	"strconv"
	"strings"

	"mtagd/store"
)

// columns are the names of the columns, in their order.
var columns = []string{"id", "merchantId", "tagId", "muid", "event_name", "event_time", "receivedAt", "isBot", "raw_data"}

// csvWriter writes CSV (RFC 4180, with a line feed at the end of a line): a line with the names of the columns, and a line
// for each event.
type csvWriter struct {
	w     *csv.Writer
	begun bool
	cells [9]string
	raw   []byte
}

func newCSVWriter(w io.Writer) *csvWriter { return &csvWriter{w: csv.NewWriter(w)} }

// Write implements Writer.
func (c *csvWriter) Write(e *store.Received) error {
	if err := c.begin(); err != nil {
		return err
	}
	c.raw = bytes.ReplaceAll(AppendRaw(c.raw[:0], e.Raw), []byte{';'}, semicolon)
	c.cells = [...]string{
		string(e.ID), string(e.Merchant), string(e.Tag), disarm(string(e.MUID)), e.Name,
		store.FormatTime(e.Time), store.FormatTime(e.ReceivedAt), strconv.FormatBool(e.Bot), string(c.raw),
	}
	return c.w.Write(c.cells[:])
}

// begin writes the names of the columns, once.
func (c *csvWriter) begin() error {
	if c.begun {
		return nil
	}
	c.begun = true
	return c.w.Write(columns)
}

// Close implements Writer.
func (c *csvWriter) Close() error {
	if err := c.begin(); err != nil {
		return err
	}
	c.w.Flush()
	return c.w.Error()
}

// disarm puts an apostrophe before each part of a muid that a spreadsheet would run as a formula. A spreadsheet may split cells at
// semicolons, commas, tabs or line breaks, whatever the quotes, so a part may begin behind each of these. Any stranger can send
// such a muid. Of the other cells, raw_data is a JSON object without semicolons, and the rest comes from the service or is checked.
//
// Whoever removes the first apostrophe of each part that isFormula, with that apostrophe, has the muid again.
func disarm(muid string) string {
	var b []byte
	for i, part := 0, true; i < len(muid); i++ {
		if part && isFormula(muid[i:]) {
			b = append(b, '\'')
		}
		b = append(b, muid[i])
		part = strings.IndexByte(separators, muid[i]) >= 0
	}
	return string(b)
}

const separators = ";,\t\r\n"

// isFormula reports whether a spreadsheet might run a cell. It passes over quotes and blanks at its start.
func isFormula(cell string) bool {
	cell = strings.TrimLeft(cell, "'\" \u00a0\u3000\x00")
	return cell != "" && strings.IndexAny(cell, "=+-@＝＋－＠\t\r\n") == 0
}

// semicolon stands for a semicolon in JSON. In JSON, semicolons are only in strings.
var semicolon = []byte(`\u003b`)
