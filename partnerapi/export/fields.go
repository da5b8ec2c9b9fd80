package export

import (
	"strconv"
	"time"

	"mtagd/store"
)

// Field is a field of an event, as the service shows it.
type Field struct {
	Name  string
	Type  Type
	views View // besides Feed, which has all

	// Exactly one of these is set, as Type says; none for a JSON field.
	text func(*store.Received) string
	time func(*store.Received) time.Time
	flag func(*store.Received) bool
}

// Type is the type of a field.
type Type byte

// The types.
const (
	Text Type = iota
	Time      // UTC; in JSON and CSV as store.AppendTime writes it, in Parquet in microseconds
	Flag      // true or false
	JSON      // raw_data: the event as it was sent
)

// View is a place where events are shown.
type View byte

// The views.
const (
	Feed     View = 1 << iota // the feed and files
	Listing                   // a page of a listing (spec, Resources: Event record)
	Personal                  // the data held about a person
)

// Fields are the fields of an event, in their order, for everything that shows events: the listing, the feed and its stream,
// files of all formats, webhooks and sinks. Describe a new field in openapi.yaml too.
var Fields = []Field{
	{Name: "id", views: Listing | Personal, text: func(e *store.Received) string { return string(e.ID) }},
	{Name: "merchantId", text: func(e *store.Received) string { return string(e.Merchant) }},
	{Name: "tagId", views: Personal, text: func(e *store.Received) string { return string(e.Tag) }},
	{Name: "muid", views: Listing | Personal, text: func(e *store.Received) string { return string(e.MUID) }},
	{Name: "event_name", views: Listing | Personal, text: func(e *store.Received) string { return e.Name }},
	{Name: "event_time", Type: Time, views: Listing | Personal, time: func(e *store.Received) time.Time { return e.Time }},
	{Name: "receivedAt", Type: Time, time: func(e *store.Received) time.Time { return e.ReceivedAt }},
	{Name: "isBot", Type: Flag, views: Listing, flag: func(e *store.Received) bool { return e.Bot }},
	{Name: "raw_data", Type: JSON, views: Listing | Personal},
}

// Value returns the field of an event: a time.Time, a bool, or else a string.
func (f *Field) Value(e *store.Received) any {
	switch f.Type {
	case Text:
		return f.text(e)
	case Time:
		return f.time(e)
	case Flag:
		return f.flag(e)
	default:
		return string(e.Raw)
	}
}

// In reports whether a view shows the field.
func (f *Field) In(v View) bool { return (f.views|Feed)&v != 0 }

// AppendMembers appends the fields of an event in a view as members of a JSON object. raw_data comes last, as a name and a
// colon: the caller appends its value.
func AppendMembers(b []byte, e *store.Received, v View) []byte {
	for i := range Fields {
		if f := &Fields[i]; f.In(v) {
			b = append(append(append(b, '"'), f.Name...), '"', ':')
			if f.Type == JSON {
				return b
			}
			b = append(f.appendJSON(b, e), ',')
		}
	}
	return b
}

func (f *Field) appendJSON(b []byte, e *store.Received) []byte {
	switch f.Type {
	case Text:
		return AppendString(b, f.text(e))
	case Time:
		return append(store.AppendTime(append(b, '"'), f.time(e)), '"')
	default:
		return strconv.AppendBool(b, f.flag(e))
	}
}
