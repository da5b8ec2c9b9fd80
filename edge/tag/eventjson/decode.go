// Package eventjson reads the JSON of one event. It is a package of its own: a fuzz target with less code runs faster.
package eventjson

import (
	"bytes"
	"errors"
	"unicode/utf8"
	"unsafe"

	"github.com/goccy/go-json/jsontext"
	json "github.com/goccy/go-json/v2"
)

// Fields are the fields of an event that the service itself reads. All others are stored with the body, unread. Names
// match by exact case. When a name repeats, its last value counts. Each field is raw JSON, empty if it is absent.
type Fields struct {
	MUID      jsontext.Value `json:"muid"`
	Email     jsontext.Value `json:"email"`
	Phone     jsontext.Value `json:"phone"`
	DeviceID  jsontext.Value `json:"deviceId"`
	Event     jsontext.Value `json:"event"`
	Type      jsontext.Value `json:"type"`
	EventTime jsontext.Value `json:"event_time"`
	EventID   jsontext.Value `json:"event_id"`
	UserAgent jsontext.Value `json:"user_agent"`
}

// Lenient accepts what real senders send: repeated names, and half an emoji (\ud83d) where a browser has cut a page title.
var Lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// ErrNotUTF8 is the error of Decode for an event that is not valid UTF-8.
var ErrNotUTF8 = errors.New("not valid UTF-8")

var errNotObject = errors.New("not a JSON object")

// Reset empties the fields and keeps their memory for the next event.
func (f *Fields) Reset() {
	for _, v := range [...]*jsontext.Value{
		&f.MUID, &f.Email, &f.Phone, &f.DeviceID, &f.Event, &f.Type, &f.EventTime, &f.EventID, &f.UserAgent,
	} {
		*v = (*v)[:0]
	}
}

// Decode reads the fields of one event. The errors of JSON's syntax wrap a *jsontext.SyntacticError.
func (f *Fields) Decode(object []byte) error {
	f.Reset()
	switch {
	case !utf8.Valid(object):
		return ErrNotUTF8
	case len(object) == 0:
		return errNotObject
	case object[0] != '{': // checked here because the decoder would accept null
		var other jsontext.Value
		if err := json.UnmarshalOf(object, &other, Lenient); err != nil {
			return err
		}
		return errNotObject
	}
	return json.UnmarshalOf(object, f, Lenient)
}

// Text returns the value of a JSON string, and false for any other value. It aliases v unless v has escapes.
func Text(v jsontext.Value) (string, bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	s := []byte(v[1 : len(v)-1])
	if bytes.IndexByte(s, '\\') >= 0 {
		// v is valid JSON, so the only possible error is half of a surrogate pair. AppendUnquote writes U+FFFD in its place.
		s, _ = jsontext.AppendUnquote(nil, []byte(v))
	}
	return unsafe.String(unsafe.SliceData(s), len(s)), true // valid until v changes
}
