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

	"mtagd/edge/tag/eventjson"
	"mtagd/store"
)

// fields reads a mark from the fields of an event.
type fields struct{ eventjson.Fields }

// readMark reads one event into a mark, or returns its refusal. The mark aliases the fields and the object.
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

// decode reads the fields of one event, or returns the answer that refuses it.
func (f *fields) decode(object []byte) *answer {
	if len(object) > store.MaxEventBytes {
		f.Reset()
		return eventTooLarge
	}
	if err := f.Decode(object); err != nil {
		return syntaxRefusal(err)
	}
	return nil
}

// splitBatch appends the elements of a JSON array, which alias the body, or returns the answer that refuses it.
func splitBatch(elements [][]byte, body []byte) ([][]byte, *answer) {
	if !utf8.Valid(body) {
		return elements, bodyNotUTF8
	}
	d := jsontext.NewDecoder(bytes.NewReader(body), eventjson.Lenient)
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
	case errors.Is(err, eventjson.ErrNotUTF8):
		return bodyNotUTF8
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
	if muid, ok := eventjson.Text(f.MUID); ok && strings.TrimSpace(muid) != "" {
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
	if email, ok := eventjson.Text(f.Email); ok {
		id.Add(store.Email, email)
	}
	if phone, ok := eventjson.Text(f.Phone); ok {
		id.Add(store.Phone, phone)
	}
	if device, ok := eventjson.Text(f.DeviceID); ok {
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
	name, ok := eventjson.Text(v)
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
	id, ok := eventjson.Text(f.EventID)
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
	sent, ok := eventjson.Text(f.EventTime)
	if !ok {
		return from.now
	}
	return store.EventTime(sent, from.behind, from.now)
}

// bot reports whether a bot caused the event. A backend's own User-Agent says nothing of the visitor, so it can send that of
// the visitor in the event: then that one counts, unless the request had maxParsed new ones before.
func (f *fields) bot(from *sender) bool {
	userAgent, ok := eventjson.Text(f.UserAgent)
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

// view returns a string that shares its bytes with b. It is valid until b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// trim cuts off what may surround a JSON text: white space, and the byte order mark that some senders put in front.
func trim(body []byte) []byte {
	return bytes.Trim(bytes.TrimPrefix(body, []byte("\ufeff")), " \t\r\n")
}
