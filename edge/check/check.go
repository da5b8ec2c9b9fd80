// Package check finds mistakes in events that POST /mark accepts nevertheless: a name that is nearly that of a pre-defined
// event, a price that is a string, a time that is ignored. POST /mark stores such events as they are, because real shops
// send them. Reports need the right types, so senders must learn of these mistakes.
//
// Read in this order:
//
//	check.go    the findings of an event
//	fields.go   compares fields with their types
//	schema.go   the pre-defined events and their fields
//	names.go    the name that a sender may have meant
package check

import (
	"slices"
	"strings"
	"time"

	"mtagd/store"
)

// Level says how bad a finding is.
type Level string

// The levels of findings.
const (
	Error   Level = "error"   // the event is refused
	Warning Level = "warning" // the event is recorded, but a report misses it or is wrong
	Info    Level = "info"    // the event is right, and could be better
)

// Finding is something that is wrong in an event.
type Finding struct {
	Level   Level
	Code    string // one of a few words
	Path    string // a JSON pointer (RFC 6901) to the place; "" is the whole event
	Message string // contains no value of the event
	// Value is what the event has at the path, as JSON; "" when that is long. It may name a person.
	Value string
	// Suggestion is the name to send instead; "" when that is not clear. It may name a person.
	Suggestion string
}

const maxFindings = 50

// maxFields is how many fields at the top of an event are compared with the names of identifiers.
const maxFields = 200

// Event returns the findings of an event. event is the JSON object as encoding/json decodes it into an any. received is when
// it was received, by the sender's clock if that is known to be wrong. No finding has the level Error.
func Event(event map[string]any, received time.Time) []Finding {
	var c checker
	name := c.name(event)
	c.identifiers(event)
	c.time(event, received)
	if isAbsent(event["event_id"]) {
		c.add(Info, "no_event_id", "", "has no event_id: when a request is sent again after an error, the event is recorded twice")
	}
	if own, predefined := events[name]; predefined {
		c.fields("", event, own)
		if !isAbsent(event["value"]) && isAbsent(event["currency"]) && own["currency"].kind == currency {
			c.add(Info, "no_currency", "/currency", "is missing: a value without a currency cannot be added up")
		}
	}
	return c.found
}

type checker struct{ found []Finding }

func (c *checker) add(level Level, code, path, message string) {
	c.suggest(level, code, path, message, "", "")
}

func (c *checker) suggest(level Level, code, path, message, value, suggestion string) {
	if !c.isFull() {
		c.found = append(c.found, Finding{level, code, path, message, value, suggestion})
	}
}

func (c *checker) isFull() bool { return len(c.found) >= maxFindings }

func (c *checker) name(event map[string]any) string {
	path := "/event"
	if isAbsent(event["event"]) {
		path = "/type"
	}
	name, _ := event[path[1:]].(string)
	if meant := nearestName(name); meant != "" && store.IsEventName(name) {
		c.suggest(Warning, "unknown_event", path, "is not a pre-defined event: did you mean "+meant+"?", short(name), meant)
	}
	if name == "SignUp" {
		c.suggest(Info, "other_spelling", path, "is listed apart from the pre-defined Signup", short(name), "Signup")
	}
	return name
}

func (c *checker) identifiers(event map[string]any) {
	for _, name := range []string{"muid", "email", "phone", "deviceId"} {
		value := event[name]
		path := "/" + name
		s, isText := value.(string)
		switch {
		case isAbsent(value):
		case !isText:
			c.wrongType(path, value, "an identifier that is not a string is ignored")
		case strings.TrimSpace(s) == "":
			c.add(Warning, "empty_identifier", path, "is empty, so it identifies nobody")
		case slices.Contains([]string{"undefined", "null", "NaN", "[object Object]", "0"}, strings.TrimSpace(s)):
			c.suggest(Warning, "placeholder", path, "is what a script writes for a missing value: all who send it count as one person", short(s), "")
		case name == "email" && !strings.Contains(s, "@"):
			c.add(Warning, "no_email", path, "has no @. An email is sent in clear; the service hashes it itself")
		case name == "phone" && !strings.ContainsAny(s, "0123456789"):
			c.add(Warning, "no_phone", path, "has no digits, so it identifies nobody")
		}
	}
	names := sortedNames(event)
	for _, name := range names[:min(len(names), maxFields)] {
		if meant := identifierNames[fold(name)]; meant != "" && meant != name && isAbsent(event[meant]) {
			c.suggest(Info, "unknown_identifier", pointer("", name), "does not identify a person here; the service reads muid, email, phone and deviceId", "", meant)
		}
	}
}

// IsIdentifier reports whether a field holds an identifier of a person, by its name here or in other services.
func IsIdentifier(field string) bool { return identifierNames[fold(field)] != "" }

// identifierNames are the names that other services have for identifiers, folded.
var identifierNames = map[string]string{
	"muid": "muid", "userid": "muid", "clientid": "muid", "visitorid": "muid", "anonymousid": "muid", "externalid": "muid",
	"email": "email", "mail": "email", "emailaddress": "email", "useremail": "email",
	"phone": "phone", "phonenumber": "phone", "tel": "phone", "telephone": "phone", "mobile": "phone",
	"deviceid": "deviceId", "device": "deviceId", "idfa": "deviceId", "gaid": "deviceId",
}

// time checks the event's time by the rules of store.EventTime.
func (c *checker) time(event map[string]any, received time.Time) {
	const path, counts = "/event_time", "; the time of receipt counts"
	value := event["event_time"]
	sent, ok := value.(string)
	at, isTime := store.ParseTime(sent)
	switch {
	case isAbsent(value):
	case !ok:
		c.wrongType(path, value, "a time is sent as in RFC 3339"+counts)
	case !isTime:
		c.suggest(Warning, "wrong_time", path, "is not a time as in RFC 3339, such as 2026-11-20T08:30:00Z"+counts, short(sent), "")
	case at.After(received.Add(store.MaxClockLead)):
		c.suggest(Warning, "future_time", path, "is more than 5 minutes ahead"+counts, short(sent), "")
	case at.Before(received.AddDate(-1, 0, 0)):
		c.suggest(Warning, "old_time", path, "is more than a year ago", short(sent), "")
	}
}
