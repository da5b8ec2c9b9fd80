package export

import (
	"bytes"
	"encoding/csv"
	"io"
	"strconv"
	"strings"

	"mtagd/store"
)

// csvWriter writes CSV (RFC 4180, with a line feed at the end of a line): a line with the names of the columns, and a line
// for each event.
type csvWriter struct {
	w     *csv.Writer
	cells []string
	raw   []byte
}

func newCSVWriter(w io.Writer) *csvWriter {
	c := &csvWriter{w: csv.NewWriter(w)}
	for _, f := range Fields {
		c.cells = append(c.cells, f.Name)
	}
	_ = c.w.Write(c.cells) // after an error, Close has one too
	return c
}

func (c *csvWriter) Write(e *store.Received) error {
	c.cells = c.cells[:0]
	for i := range Fields {
		var cell string
		switch f := &Fields[i]; f.Type {
		case Text:
			cell = disarm(f.text(e))
		case Time:
			cell = store.FormatTime(f.time(e))
		case Flag:
			cell = strconv.FormatBool(f.flag(e))
		case JSON:
			c.raw = bytes.ReplaceAll(AppendRaw(c.raw[:0], e.Raw), []byte{';'}, semicolon)
			cell = string(c.raw)
		}
		c.cells = append(c.cells, cell)
	}
	return c.w.Write(c.cells)
}

func (c *csvWriter) Close() error {
	c.w.Flush()
	return c.w.Error()
}

// disarm puts an apostrophe before each part of a text that a spreadsheet would run as a formula. A spreadsheet may split
// cells at semicolons, commas, tabs or line breaks, whatever the quotes, so a part may begin behind each of these. Any
// stranger can send such a muid. The other texts come from the service or are checked, and raw_data is a JSON object without
// semicolons.
//
// To restore the text, remove the first apostrophe of each part for which isFormula is true.
func disarm(text string) string {
	var b []byte
	from := 0 // the text before it is already in b
	for i, part := 0, true; i < len(text); i++ {
		if part && isFormula(text[i:]) {
			b = append(append(b, text[from:i]...), '\'')
			from = i
		}
		part = strings.IndexByte(separators, text[i]) >= 0
	}
	if b == nil { // the common case
		return text
	}
	return string(append(b, text[from:]...))
}

const separators = ";,\t\r\n"

// isFormula reports whether a spreadsheet might run a cell. It passes over quotes and blanks at its start.
func isFormula(cell string) bool {
	if c := cell[0]; '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' { // the common case
		return false
	}
	cell = strings.TrimLeft(cell, "'\" \u00a0\u3000\x00")
	return cell != "" && strings.IndexAny(cell, "=+-@＝＋－＠\t\r\n") == 0
}

// semicolon stands for a semicolon in JSON. In JSON, semicolons are only in strings.
var semicolon = []byte(`\u003b`)
