// Package kind says what a kind of destination is: how it turns events into requests, and reads the answers. A kind knows
// nothing of retries, cursors or connections, and gets its secrets in clear. Each kind is a package of its own.
//
//	kind.go     Kind, Target, Event
//	platform.go what ad platforms have in common
//	settings.go settings of a kind
//	mapping.go  fields that a merchant maps
//	person.go   normalises and hashes what identifies a person; what the visitor has agreed to
//	shop.go     what was bought, and where
package kind

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"time"

	"mtagd/store"
)

// Kind is a kind of destination. Its JSON is for forms in which a merchant creates one.
type Kind struct {
	Name     string    `json:"type"`
	Consent  []string  `json:"consent"` // what a visitor must have agreed to; with any, events of bots are not sent either
	Secrets  []Secret  `json:"secrets"`
	Settings []Setting `json:"settings"`
	Client   bool      `json:"-"` // it takes client details (Browser)

	// New checks the values of the settings, and the secrets, further than their descriptions do. Its errors are as those of
	// Open.
	New func(o Options, v Values) (Target, error) `json:"-"`
}

// Open returns the target of a destination. Its errors are of store.KindInvalid, and name the field.
func (k Kind) Open(o Options) (Target, error) {
	v, err := read(o.Settings, k.Settings)
	if err != nil {
		return nil, err
	}
	return k.New(o, v)
}

// Secret is a secret that a kind needs.
type Secret struct {
	Name     string                    `json:"name"`
	Required bool                      `json:"required"` // the merchant must give it
	Signs    bool                      `json:"-"`        // it only signs requests and is not sent: the settings may name another server without a new secret
	New      func() string             `json:"-"`        // makes one when the merchant gives none; nil: there is none then
	Check    func(secret string) error `json:"-"`        // nil: any text
}

// Options are what a target is made of.
type Options struct {
	Settings  json.RawMessage
	Mapping   Mapping
	Secrets   map[string][]string // the valid ones by name, the newest first
	AllowHTTP bool                // addresses without TLS may be used
}

// Secret returns the newest secret with a name; "" when there is none.
func (o Options) Secret(name string) string {
	if of := o.Secrets[name]; len(of) > 0 {
		return of[0]
	}
	return ""
}

// Target makes the requests of one destination. Its methods may be called from many goroutines.
type Target interface {
	Limits() Limits
	// Requests returns the requests for some events, in the order in which they are sent, and the events that the
	// destination cannot take (Refusal). Each event is in one request, or refused.
	Requests(events []*Event, now time.Time) ([]Request, []Refusal)
	// Read says what the answer to a request means.
	Read(r Request, a Answer) Verdict
}

// Eraser is a Target that can be asked to erase.
type Eraser interface {
	Erasure(e store.Erasure, id string, now time.Time) Request
}

// Limits say how a destination takes events.
type Limits struct {
	Events int // in one request, at most
	Lanes  int // requests at the same time, of different visitors
	// MaxAge is how old an event may be. ByEventTime: see TooOld. Otherwise it is how long an event is tried: see GivesUp.
	MaxAge      time.Duration
	ByEventTime bool
	Wait        time.Duration // how long to wait for a full request
	Raw         bool          // requests are made of Event.Raw: Event.Fields are nil
	Erasures    bool          // it wants requests to erase: the target is an Eraser
}

// TooOld reports whether an event with this event_time is never sent: it becomes a dead letter.
func (l Limits) TooOld(at, now time.Time) bool { return l.ByEventTime && now.Sub(at) > l.MaxAge }

// GivesUp reports whether an event that was first tried at a time, in vain, becomes a dead letter.
func (l Limits) GivesUp(at, now time.Time) bool { return !l.ByEventTime && now.Sub(at) > l.MaxAge }

// Event is an event that is delivered.
type Event struct {
	store.Received
	Delivery string         // the id of the event at this destination; it never changes
	Fields   map[string]any // of Raw; numbers are json.Number
	Place    int            // for package delivery: in the round of its destination
	Browser  Browser        // zero without Kind.Client, without the visitor's consent, and after store.ClientLife
}

// Browser has the client details of an event. Only ad platforms get them; mappings and filters do not.
type Browser struct {
	Address   string `json:"address,omitempty"`
	UserAgent string `json:"userAgent,omitempty"`
}

// Parse reads the fields of an event. An event is always a JSON object.
func (e *Event) Parse() error {
	d := json.NewDecoder(bytes.NewReader(e.Raw))
	d.UseNumber()
	return d.Decode(&e.Fields)
}

// ClickID returns the id of a click on an ad: the field with this name, or else the parameter of the page's address.
func (e *Event) ClickID(name string) string {
	id := e.Text(name)
	if page, err := url.Parse(e.Text("pageUrl")); id == "" && err == nil {
		id = page.Query().Get(name)
	}
	return id
}

// Text returns the first of some fields that is a text or a number and not empty, as a text.
func (e *Event) Text(names ...string) string {
	for _, name := range names {
		switch v := At(e.Fields, name).(type) {
		case string:
			if v != "" {
				return v
			}
		case json.Number:
			return v.String()
		}
	}
	return ""
}

// Number returns a field that is a number, or a text that is one; false when it is neither.
func (e *Event) Number(names ...string) (json.Number, bool) {
	text := json.Number(e.Text(names...))
	if _, err := text.Float64(); err != nil || !json.Valid([]byte(text)) {
		return "", false
	}
	return text, true
}

// EventID is the id by which a platform recognises an event that a browser's pixel has sent, too: the sender's event_id, or
// else the service's id.
func (e *Event) EventID() string { return cmp.Or(e.Text("event_id"), string(e.ID)) }

// Request is an HTTP request.
type Request struct {
	Method string // empty: POST
	URL    string
	Header http.Header
	Body   []byte
	Events []*Event

	// Do sends what is not an HTTP request; the other fields then only describe it in previews.
	Do func(ctx context.Context, dial Dial) (Answer, error)
}

// MaxAnswer returns how many bytes are read of the answer's body. Some platforms tell of each event.
func (r Request) MaxAnswer() int64 { return 32<<10 + 256*int64(len(r.Events)) }

// Dial connects to a server that may be reached.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Refusal is an event that is not sent.
type Refusal struct {
	Event  *Event
	Reason string
	// Skipped events are not for this destination, because the platform has no such event. Others are dead letters.
	Skipped bool
}

// Answer is the answer to a request. Body is bounded.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Outcome is what an answer means for the events of a request.
type Outcome uint8

// The outcomes.
const (
	Done    Outcome = iota // the events are delivered, except those in Verdict.Refused
	Again                  // try again later
	Refused                // the same request would be refused again
	Gone                   // the destination wants no more events
)

// Verdict is what an answer means.
type Verdict struct {
	Outcome Outcome
	Refused map[int]string // with Done: events that are refused all the same, by their place in Request.Events, and why
	Again   map[int]bool   // with Done: events that must be sent again
	Reason  string
}

// Took reports whether the event at a place of Request.Events was delivered.
func (v Verdict) Took(event int) bool {
	_, refused := v.Refused[event]
	return v.Outcome == Done && !refused && !v.Again[event]
}

// Standard reads an answer by its status as platforms do: what may pass with time or with other credentials is tried again.
func Standard(a Answer) Verdict {
	switch {
	case a.Status/100 == 2:
		return Verdict{Outcome: Done}
	case a.Status == http.StatusBadRequest, a.Status == http.StatusRequestEntityTooLarge, a.Status == http.StatusUnprocessableEntity:
		return Verdict{Outcome: Refused}
	}
	return Verdict{Outcome: Again}
}

// Parse reads an answer by its status, and its body as JSON. It returns false when the body cannot be read: then v is final.
// A 2xx answer that cannot be read does not say what was taken, or is not the platform's.
func (r Request) Parse(a Answer, into any) (v Verdict, ok bool) {
	v, ok = Standard(a), json.Unmarshal(a.Body, into) == nil
	if !ok && v.Outcome == Done {
		v = r.Unclear(a)
	}
	return v, ok
}

// Unclear is the verdict on a 2xx answer that does not say which events were taken. The request is sent again: by their ids,
// the platform drops the events that it has. If the answer was too long to be read whole, the request is sent in halves.
func (r Request) Unclear(a Answer) Verdict {
	v := Verdict{Outcome: Again, Reason: "the answer cannot be read"}
	if len(r.Events) > 1 && int64(len(a.Body)) >= r.MaxAnswer() {
		v.Outcome = Refused
	}
	return v
}
