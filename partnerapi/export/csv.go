package export

import (
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
	c.raw = AppendRaw(c.raw[:0], e.Raw)
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

// disarm puts an apostrophe before a muid that a spreadsheet would run as a formula. Any stranger can send such a muid, and
// quotes do not help. No other cell can begin like a formula: raw_data is a JSON object, and the rest comes from the service
// or is checked.
func disarm(muid string) string {
	if muid != "" && strings.IndexByte("=+-@\t\r\n", muid[0]) >= 0 {
		return "'" + muid
	}
	return muid
}
