package store

import (
	"crypto/sha256"
	"time"
	"unicode/utf8"
)

// Mark is an event to record. Its strings and bytes must not change until Record returns.
type Mark struct {
	Merchant MerchantID // of Tag
	Tag      TagID
	Identity Identity  // from the body; in a browser's request the muid may come from the cookie
	Name     string    // listed as event_name; IsEventName(Name) is true
	Time     time.Time // as EventTime returns it
	DedupeID string    // the body's event_id, which counts together with Name; empty when absent
	Raw      []byte    // the event's JSON object as it was sent
	Bot      bool      // the sender's user agent calls itself a bot
	Details            // Record sets ByClaim

	// Outcome is set by Record.
	Outcome Outcome
}

// Outcome is what Record did with a mark. rules.Outcome decides it.
type Outcome uint8

const (
	// Recorded: the event is on disk. It survives a kill and a power cut.
	Recorded Outcome = iota + 1
	// Duplicate: an event of this merchant with the same name and event_id was recorded within DedupeWindow.
	Duplicate
	// Unresolved: no muid was sent, and none is linked to the identifiers. The event was not recorded.
	Unresolved
	// Suppressed: the person was erased, and later events of the person are refused. The event was not recorded.
	Suppressed
	// Removed: the merchant was deleted, but the caller's directory does not know it yet. The event was not recorded.
	Removed
)

// DedupeWindow is how long an event_id is remembered after an event with it was recorded.
const DedupeWindow = 7 * 24 * time.Hour

// Limits of marks. Engines check MaxMUIDLength in Record and Resolve; their callers check the others.
const (
	MaxEventBytes      = 64 << 10 // one event's JSON object
	MaxBatchBytes      = 1 << 20  // one request's JSON array
	MaxBatchEvents     = 1000
	MaxEventDepth      = 64 // levels of objects and arrays, the event's own included
	MaxEventNameLength = 64
	MaxDedupeIDLength  = 128 // characters of event_id
	MaxMUIDLength      = 256 // bytes; the browser tag makes UUIDs, which have 36
)

// MaxClockLead is how far ahead of the server a sender's clock may be.
const MaxClockLead = 5 * time.Minute

// IsEventName reports whether name is PascalCase: ^[A-Z][A-Za-z0-9]{0,63}$.
func IsEventName(name string) bool {
	if name == "" || len(name) > MaxEventNameLength || name[0] < 'A' || name[0] > 'Z' {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}

// FitsDedupeID reports whether an event_id is not too long.
func FitsDedupeID(id string) bool {
	return len(id) <= MaxDedupeIDLength || utf8.RuneCountInString(id) <= MaxDedupeIDLength
}

// RememberedKey is the key under which a merchant's event_id is remembered: the beginning of the SHA-256 of the event's
// name, a zero byte and the event_id. A name has no zero byte (IsEventName).
func RememberedKey(name, id string) [16]byte {
	var b [256]byte // so that nothing is allocated for usual event_ids
	sum := sha256.Sum256(append(append(append(b[:0], name...), 0), id...))
	return [16]byte(sum[:])
}

// EventTime returns when an event occurred. That is the sent time, if it is an RFC 3339 time and at most MaxClockLead
// after receipt; else it is the time of receipt. behind is how far the sender's clock is known to be behind this server's,
// negative when it is ahead: the sent time is corrected by it first.
func EventTime(sent string, behind time.Duration, received time.Time) time.Time {
	t, ok := ParseTime(sent)
	t = t.Add(behind)
	// An offset can move the first hours of year 0 before year 0, which RFC 3339 cannot write.
	if !ok || t.Year() < 0 || t.After(received.Add(MaxClockLead)) {
		return received
	}
	return t
}

// Event is a recorded event as the listing returns it (spec, Resources: Event record).
type Event struct {
	ID   EventID
	MUID MUID
	Name string
	Time time.Time // UTC, to the microsecond
	Raw  []byte    // JSON object
	Bot  bool      // as in Mark
	Details
}

// ClientLife is how long Details.Client can be read, at most.
const ClientLife = 72 * time.Hour

// Usage is what a merchant's events take.
type Usage struct {
	Events uint64
	Bytes  uint64 // the sum of their sizes, each with its tag, name, muid and time, before compression
}

// SortKey is what a listing is sorted by.
type SortKey string

// The sort keys. Events of the same time are sorted by id, ascending or descending like the times. Events of the same
// name are always sorted by time and then id, newest first.
const (
	ByTime SortKey = "event_time"
	ByName SortKey = "event_name"
)

// Query asks for one page of a merchant's events.
type Query struct {
	Merchant MerchantID
	Tag      TagID      // only this tag's events; empty for all
	Names    []string   // only these event names; nil for all
	From, To *time.Time // inclusive range of event_time; nil for no bound
	Bot      *bool      // only events of bots, or only those of others; nil for all
	SortBy   SortKey
	Asc      bool
	Offset   int // events to skip, ≥ 0
	Limit    int // events to return, ≥ 1
}

// Page is one page of events, and the exact number of all events that match the query, both as of one moment.
type Page struct {
	Events []Event
	Total  int
}
