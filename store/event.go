package store

import "time"

// Mark is an event on its way in, after the few fields that routing needs were read from its body.
// Its strings and bytes need to stay unchanged only until Record returns.
type Mark struct {
	Merchant MerchantID
	Tag      TagID
	Identity Identity
	Name     string    // event_name, PascalCase
	Time     time.Time // event_time; the time of receipt where the body has none
	DedupeID string    // the body's event_id; empty where absent
	Raw      []byte    // the body's object as it was sent

	// Outcome is what became of the mark; Record sets it.
	Outcome Outcome
}

// Outcome is what became of a mark.
type Outcome uint8

const (
	// Recorded: the event is on disk. It survives a kill and a power cut.
	Recorded Outcome = iota + 1
	// Duplicate: an event of this merchant with the same event_id was recorded within DedupeWindow.
	Duplicate
	// Unresolved: no muid was sent and none is linked to the identifiers; nothing was recorded.
	Unresolved
)

// DedupeWindow is how long an event_id is remembered, from its first receipt.
const DedupeWindow = 7 * 24 * time.Hour

// Limits of a mark. Record and Resolve check that of the muid, the others are checked before.
const (
	MaxEventBytes     = 64 << 10 // one event's JSON object
	MaxBatchBytes     = 1 << 20  // one request's JSON array
	MaxBatchEvents    = 1000
	MaxDedupeIDLength = 128 // bytes of event_id
	MaxMUIDLength     = 256 // bytes; a muid is a UUID where the browser tag made it
)

// FormatTime writes a time as partners and operators read all of them: ISO 8601 in UTC, in whole seconds (spec,
// Resources).
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// Event is a recorded event as the listing returns it (spec, Resources: Event record).
type Event struct {
	ID   EventID
	MUID MUID
	Name string
	Time time.Time // UTC, to the microsecond
	Raw  []byte    // JSON object
}

// SortKey is the property by which events are listed.
type SortKey string

// What events can be sorted by. Equal times are ordered by id, in the order asked for; equal names by time, newest first.
const (
	ByTime SortKey = "event_time"
	ByName SortKey = "event_name"
)

// Query asks for one page of a merchant's events.
type Query struct {
	Merchant MerchantID
	Tag      TagID     // only this tag's events; empty for all
	Names    []string  // only these event names; nil for all
	From, To time.Time // inclusive range of event_time; zero for open
	SortBy   SortKey
	Asc      bool
	Offset   int // events to skip, ≥ 0
	Limit    int // events to return, ≥ 1
}

// Page is one page of events and the exact number of events that match the query, both as of
// one moment.
type Page struct {
	Events []Event
	Total  int
}
