package export

import (
	"bytes"
	"io"

	"github.com/goccy/go-json/jsontext"

	"mtagd/store"
)

// AppendJSON appends an event as a JSON object on one line. The body is as it was sent, except that line breaks between
// its values are spaces.
func AppendJSON(b []byte, e *store.Received) []byte {
	return append(AppendRaw(AppendMembers(append(b, '{'), e, Feed), e.Raw), '}')
}

// AppendRaw appends the body of an event as one line. Whoever may send events decides where a body has line breaks, and
// could otherwise write lines of their own into an answer.
func AppendRaw(b, raw []byte) []byte {
	b = append(b, raw...)
	added := b[len(b)-len(raw):]
	for i := bytes.IndexAny(added, "\r\n\t"); i >= 0; i = bytes.IndexAny(added, "\r\n\t") { // not in strings: JSON escapes them there
		added[i] = ' '
		added = added[i+1:]
	}
	return b
}

// AppendString appends s as a JSON string.
func AppendString(b []byte, s string) []byte {
	// The only possible error is invalid UTF-8, which AppendQuote replaces by U+FFFD.
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// jsonWriter writes one object a line.
type jsonWriter struct {
	w    io.Writer
	line []byte
}

func (j *jsonWriter) Write(e *store.Received) error {
	j.line = append(AppendJSON(j.line[:0], e), '\n')
	_, err := j.w.Write(j.line)
	return err
}

func (j *jsonWriter) Close() error { return nil }
