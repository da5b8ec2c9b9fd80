package edge

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/goccy/go-json/jsontext"
	json "github.com/goccy/go-json/v2"

	"mtagd/store"
)

// fields are the few fields of an event that routing needs; all others are stored unseen with the
// body. Names are compared by their exact case, and the last of several equal names counts. A field
// is raw JSON, empty where the event has none.
type fields struct {
	MUID      jsontext.Value `json:"muid"`
	Email     jsontext.Value `json:"email"`
	Phone     jsontext.Value `json:"phone"`
	DeviceID  jsontext.Value `json:"deviceId"`
	Event     jsontext.Value `json:"event"`
	Type      jsontext.Value `json:"type"`
	EventTime jsontext.Value `json:"event_time"`
	EventID   jsontext.Value `json:"event_id"`
}

// lenient accepts what senders are known to send: repeated names, and the escape of half an
// emoji (\ud83d) where a browser cut a page title.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// reset empties the fields and keeps their memory for the next event.
func (f *fields) reset() {
	for _, v := range [...]*jsontext.Value{&f.MUID, &f.Email, &f.Phone, &f.DeviceID, &f.Event, &f.Type, &f.EventTime, &f.EventID} {
		*v = (*v)[:0]
	}
}

// decode reads the fields of one event.
func (f *fields) decode(object []byte) *answer {
	f.reset()
	switch {
	case len(object) > store.MaxEventBytes:
		return bodyTooLarge
	case !utf8.Valid(object):
		return bodyNotUTF8
	// The decoder takes null for an empty object, and stops at another type before it has seen the rest.
	case len(object) == 0 || object[0] != '{' || json.UnmarshalOf(object, f, lenient) != nil:
		return bodyNotObject
	}
	return nil
}

// identity is whose event it is; cookie is the muid of the request's cookie, which stands in for a
// muid that the body does not have. Identifiers that are not strings identify nobody. The result aliases
// the fields.
func (f *fields) identity(cookie string) (store.Identity, *answer) {
	var id store.Identity
	if muid, ok := text(f.MUID); ok && strings.TrimSpace(muid) != "" {
		id.MUID = store.MUID(muid)
	} else {
		id.MUID = store.MUID(cookie)
	}
	if len(id.MUID) > store.MaxMUIDLength {
		return id, muidTooLong
	}
	if email, ok := text(f.Email); ok {
		id.Add(store.Email, email)
	}
	if phone, ok := text(f.Phone); ok {
		id.Add(store.Phone, phone)
	}
	if device, ok := text(f.DeviceID); ok {
		id.Add(store.DeviceID, device)
	}
	if id.IsZero() {
		return id, noIdentifier
	}
	return id, nil
}

// name is the event's name; type stands for event where event is absent. The result aliases the fields.
func (f *fields) name() (string, *answer) {
	v := f.Event
	if isAbsent(v) {
		v = f.Type
	}
	if isAbsent(v) {
		return "", eventMissing
	}
	name, ok := text(v)
	if !ok || !isPascalCase(name) {
		return "", eventMalformed
	}
	return name, nil
}

// isPascalCase is the rule ^[A-Z][A-Za-z0-9]{0,63}$.
func isPascalCase(s string) bool {
	if s == "" || len(s) > 64 || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}

// dedupeID is the event's event_id, "" where it has none. The result aliases the fields.
func (f *fields) dedupeID() (string, *answer) {
	if isAbsent(f.EventID) {
		return "", nil
	}
	id, ok := text(f.EventID)
	switch {
	case !ok:
		return "", eventIDNoString
	case len(id) > store.MaxDedupeIDLength:
		return "", eventIDTooLong
	}
	return id, nil
}

// maxClockLead is how far ahead of the server a sender's clock may be.
const maxClockLead = 5 * time.Minute

// time is when the event occurred: its event_time where that is a time and not in the future, else
// the time of receipt.
func (f *fields) time(now time.Time) time.Time {
	s, ok := text(f.EventTime)
	if !ok {
		return now
	}
	t, ok := store.ParseTime(s)
	// An offset can push the first hours of year 0 before every year that RFC 3339 can write.
	if !ok || t.Year() < 0 || t.After(now.Add(maxClockLead)) {
		return now
	}
	return t
}

func isAbsent(v jsontext.Value) bool { return len(v) == 0 || v[0] == 'n' }

// text is the value of a JSON string, false for any other value. It aliases v unless that has escapes.
func text(v jsontext.Value) (string, bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return view(v[1 : len(v)-1]), true
	}
	// The error can only be half of a surrogate pair, which was replaced by U+FFFD: v was decoded before.
	s, _ := jsontext.AppendUnquote(nil, []byte(v))
	return view(s), true
}

// view is a string that shares its bytes with b: no copy, and good only as long as b is unchanged.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// trim cuts what may surround a JSON text: a byte order mark, as some senders put in front, and
// white space.
func trim(body []byte) []byte {
	return bytes.Trim(bytes.TrimPrefix(body, []byte("\ufeff")), " \t\r\n")
}

// splitBatch cuts a JSON array into its elements, which alias the body.
func splitBatch(body []byte) ([][]byte, *answer) {
	if !utf8.Valid(body) {
		return nil, bodyNotUTF8
	}
	d := jsontext.NewDecoder(bytes.NewReader(body), lenient)
	if _, err := d.ReadToken(); err != nil {
		return nil, bodyNotBatch
	}
	var elements [][]byte
	for d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return nil, bodyNotBatch
		}
		if len(elements) == store.MaxBatchEvents {
			return nil, batchTooLong
		}
		end := int(d.InputOffset())
		elements = append(elements, body[end-len(v):end])
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, bodyNotBatch
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, bodyNotBatch
	}
	if len(elements) == 0 {
		return nil, batchEmpty
	}
	return elements, nil
}
