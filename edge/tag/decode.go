package tag

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

// fields are the fields of an event that the service itself reads. All others are stored with the body, unread. Names
// match by exact case. When a name repeats, its last value counts. Each field is raw JSON, empty when the event does
// not have it.
type fields struct {
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

// readMark reads one event into a mark, or returns the answer that refuses it. The mark aliases the fields and the
// object.
func (f *fields) readMark(m *store.Mark, tag *store.Tag, object []byte, from *sender) *answer {
	if refused := f.decode(object); refused != nil {
		return refused
	}
	if refused := makeReadable(object); refused != nil {
		return refused
	}
	id, refused := f.identity(from)
	if refused != nil {
		return refused
	}
	name, refused := f.name()
	if refused != nil {
		return refused
	}
	dedupeID, refused := f.dedupeID()
	if refused != nil {
		return refused
	}
	*m = store.Mark{
		Merchant: tag.Merchant,
		Tag:      tag.ID,
		Identity: id,
		Name:     name,
		Time:     f.time(from),
		DedupeID: dedupeID,
		Raw:      object,
		Bot:      f.bot(from),
	}
	if from.client != nil && from.browsers.MayTake(object) {
		m.Client = from.client
	}
	return nil
}

// lenient accepts what real senders send: repeated names, and the escape of half an emoji (\ud83d) where a browser
// has cut a page title.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// reset empties the fields and keeps their memory for the next event.
func (f *fields) reset() {
	for _, v := range [...]*jsontext.Value{
		&f.MUID, &f.Email, &f.Phone, &f.DeviceID, &f.Event, &f.Type, &f.EventTime, &f.EventID, &f.UserAgent,
	} {
		*v = (*v)[:0]
	}
}

// decode reads the fields of one event, or returns the answer that refuses it.
func (f *fields) decode(object []byte) *answer {
	f.reset()
	switch {
	case len(object) > store.MaxEventBytes:
		return eventTooLarge
	case !utf8.Valid(object):
		return bodyNotUTF8
	case len(object) == 0:
		return bodyNotObject
	case object[0] != '{': // checked here because the decoder would accept null
		var other jsontext.Value
		if err := json.UnmarshalOf(object, &other, lenient); err != nil {
			return syntaxRefusal(err)
		}
		return bodyNotObject
	}
	if err := json.UnmarshalOf(object, f, lenient); err != nil {
		return syntaxRefusal(err)
	}
	return nil
}

// splitBatch appends the elements of a JSON array, which alias the body, or returns the answer that refuses it.
func splitBatch(elements [][]byte, body []byte) ([][]byte, *answer) {
	if !utf8.Valid(body) {
		return elements, bodyNotUTF8
	}
	d := jsontext.NewDecoder(bytes.NewReader(body), lenient)
	if _, err := d.ReadToken(); err != nil { // the opening bracket
		return elements, syntaxRefusal(err)
	}
	for d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return elements, syntaxRefusal(err)
		}
		if len(elements) == store.MaxBatchEvents {
			return elements, batchTooLong
		}
		end := int(d.InputOffset())
		elements = append(elements, body[end-len(v):end])
	}
	if _, err := d.ReadToken(); err != nil { // the closing bracket
		return elements, syntaxRefusal(err)
	}
	end := d.InputOffset()
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return elements, bodyNotJSON(end)
	}
	if len(elements) == 0 {
		return elements, batchEmpty
	}
	return elements, nil
}

// syntaxRefusal returns the answer to an error of the JSON decoder.
func syntaxRefusal(err error) *answer {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return bodyNotObject
	case strings.Contains(syntax.Err.Error(), "max depth"): // the decoder exports no value for this error
		return eventTooDeep
	}
	return bodyNotJSON(syntax.ByteOffset)
}

// identity returns whose event it is, or the answer that refuses the event. The muid of the cookie counts when the body
// has none. Identifiers that are not strings are ignored. The result aliases the fields and the cookie.
//
// A sender that may not identify gets the same refusal whether or not the service knows the identifiers.
func (f *fields) identity(from *sender) (store.Identity, *answer) {
	var id store.Identity
	if muid, ok := text(f.MUID); ok && strings.TrimSpace(muid) != "" {
		id.MUID = store.MUID(muid)
	} else {
		id.MUID = store.MUID(from.cookie)
	}
	if len(id.MUID) > store.MaxMUIDLength {
		return id, muidTooLong
	}
	switch {
	case from.withSecret:
		id.Source = store.BySecret
	case id.MUID != "" && string(id.MUID) == from.cookie:
		id.Source = store.ByCookie
	}
	if id.MUID != "" && !from.mayIdentify {
		return id, nil // nothing is linked
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
	if !from.mayIdentify {
		return id, secretRequired
	}
	return id, nil
}

// nameField returns the field that has the event's name: event, or type when event is absent.
func (f *fields) nameField() jsontext.Value {
	if isAbsent(f.Event) {
		return f.Type
	}
	return f.Event
}

// name returns the event's name. The result aliases the fields.
func (f *fields) name() (string, *answer) {
	v := f.nameField()
	if isAbsent(v) {
		return "", eventMissing
	}
	name, ok := text(v)
	if !ok || !store.IsEventName(name) {
		return "", eventMalformed
	}
	return name, nil
}

// dedupeID returns the event's event_id, "" when it has none. The result aliases the fields.
func (f *fields) dedupeID() (string, *answer) {
	if isAbsent(f.EventID) {
		return "", nil
	}
	id, ok := text(f.EventID)
	switch {
	case !ok:
		return "", eventIDNoString
	case !store.FitsDedupeID(id):
		return "", eventIDTooLong
	}
	return id, nil
}

// time returns when the event occurred: its event_time, or the time of receipt (see store.EventTime).
func (f *fields) time(from *sender) time.Time {
	sent, ok := text(f.EventTime)
	if !ok {
		return from.now
	}
	return store.EventTime(sent, from.behind, from.now)
}

// bot reports whether a bot caused the event. A backend's own User-Agent says nothing of the visitor, so it can send that of
// the visitor in the event: then that one counts, unless the request had maxParsed new ones before.
func (f *fields) bot(from *sender) bool {
	userAgent, ok := text(f.UserAgent)
	if !ok || userAgent == "" {
		return from.isBot
	}
	if is, ok := from.bots.remembered(userAgent); ok {
		return is
	}
	if from.parsed == maxParsed {
		return from.isBot
	}
	from.parsed++
	return from.bots.parse(userAgent)
}

// isAbsent reports whether a field is absent or null, the only JSON value that begins with an n.
func isAbsent(v jsontext.Value) bool { return len(v) == 0 || v[0] == 'n' }

// text returns the value of a JSON string, and false for any other value. It aliases v unless v has escapes.
func text(v jsontext.Value) (string, bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return view(v[1 : len(v)-1]), true
	}
	// v is valid JSON, so the only possible error is half of a surrogate pair. AppendUnquote writes U+FFFD in its place.
	s, _ := jsontext.AppendUnquote(nil, []byte(v))
	return view(s), true
}

// view returns a string that shares its bytes with b. It is valid until b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// trim cuts off what may surround a JSON text: white space, and the byte order mark that some senders put in front.
func trim(body []byte) []byte {
	return bytes.Trim(bytes.TrimPrefix(body, []byte("\ufeff")), " \t\r\n")
}
