package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// Status is the state of a destination, as the API shows it.
type Status struct {
	Word string `json:"state"` // active, failing, paused or broken
	counts
	Retries      int       `json:"retries"` // events that are tried again
	Replays      int       `json:"replays"` // ranges that are still sent again
	DeadLetters  int       `json:"deadLetters"`
	FailingSince time.Time `json:"failingSince"` // zero: it does not fail
	NextTry      time.Time `json:"nextTry"`
	LastSuccess  time.Time `json:"lastSuccess"`
	LastError    *string   `json:"lastError"`

	MaxAgeHours int `json:"-"` // the greatest age of events that it accepts, or how long events are retried; 0 when it is broken
}

// Status returns the status of a destination, as of a second ago at most.
func (s *Service) Status(ctx context.Context, d Destination) (Status, error) {
	st, err := s.stateOf(ctx, d.Merchant, d.ID)
	if err != nil {
		return Status{}, err
	}
	out := Status{
		Word: "active", Retries: len(st.Retry), Replays: len(st.Replays), DeadLetters: st.Letters, counts: st.Counts, LastSuccess: st.LastSuccess,
	}
	if st.LastError != "" {
		out.LastError = &st.LastError
	}
	rt, err := s.open(d)
	if err != nil {
		out.Word, out.LastError = "broken", new(err.Error())
		return out, nil
	}
	out.MaxAgeHours = int(rt.limits.MaxAge.Hours())
	switch {
	case d.Paused:
		out.Word = "paused"
		if d.PausedReason != "" {
			out.LastError = &d.PausedReason
		}
	case st.Failures > 0:
		out.Word, out.FailingSince, out.NextTry = "failing", st.FailingSince, st.NextTry
	}
	return out, nil
}

// stateOf returns the last written state of a destination. It is about a second old; older with thousands of destinations.
func (s *Service) stateOf(ctx context.Context, m store.MerchantID, id string) (st state, err error) {
	doc, err := s.Engine.Document(ctx, store.DeliveryStates, m, id)
	switch {
	case store.KindOf(err) == store.KindNotFound: // the destination was made less than a second ago
		return st, nil
	case err != nil:
		return st, err
	}
	return st, json.Unmarshal(doc.Content, &st)
}

// deliveries returns the last deliveries of a destination and its dead letters, the newest first.
func (s *Service) deliveries(ctx context.Context, m store.MerchantID, id string) (all []Delivery, err error) {
	for _, of := range []store.DocumentKind{store.Deliveries, store.DeadLetters} {
		docs, err := s.Engine.Documents(ctx, of, m, id)
		if err != nil {
			return nil, err
		}
		for _, doc := range docs {
			var d Delivery
			if err := json.Unmarshal(doc.Content, &d); err != nil {
				return nil, err
			}
			all = append(all, d)
		}
	}
	store.Sort(all, func(a, b Delivery) int { return strings.Compare(b.ID, a.ID) })
	return all, nil
}

// Deliveries returns the last deliveries of a destination and its dead letters, the newest first. state selects those of one
// state; event those of one event.
func (s *Service) Deliveries(ctx context.Context, d Destination, state DeliveryState, event store.EventID) ([]Delivery, error) {
	all, err := s.deliveries(ctx, d.Merchant, d.ID)
	return slices.DeleteFunc(all, func(x Delivery) bool {
		return state != "" && x.State != state || event != "" && !slices.Contains(x.EventIDs, event)
	}), err
}

// Preview is what would be sent for one event.
type Preview struct {
	EventID store.EventID     `json:"eventId,omitempty"`
	Event   string            `json:"event"`
	Result  string            `json:"result"` // send, or why not
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    json.RawMessage   `json:"body,omitempty"`

	Status int    `json:"status,omitzero"` // of the test
	Answer string `json:"answer,omitempty"`
}

// Preview returns what would be sent for an event. Without an id, it does so for the merchant's last events, or for an
// example when there are none. With send, it sends the first of them that the destination takes. KindNotFound: event.
func (s *Service) Preview(ctx context.Context, d Destination, id store.EventID, send bool) (all []Preview, err error) {
	rt, err := s.open(d)
	if err != nil {
		return nil, err
	}
	events, err := s.eventsToPreview(ctx, d, id)
	if err != nil {
		return nil, err
	}
	gone, err := s.erasingOf(ctx, d.Merchant)
	if err != nil {
		return nil, err
	}
	now, withBrowser := s.Now(), s.takesNow(ctx, rt)
	for _, e := range events {
		if !withBrowser {
			e.Client = nil
		}
		p, r := s.preview(rt, e, gone, now)
		if send && r != nil {
			sent := s.client.send(ctx, *r, requestTimeout)
			masked := mask([]*kind.Event{{Browser: s.Browser(rt.Merchant, e.Client)}})
			p.Status, p.Answer = sent.answer.Status, first(masked(string(sent.answer.Body)), keptAnswer)
			if p.Result = reasonOf(sent); sent.err == nil {
				switch v := rt.target.Read(*r, sent.answer); {
				case v.Took(0):
					p.Result = "delivered"
				case v.Refused[0] != "":
					p.Result = first(masked(v.Refused[0]), keptReason)
				}
			}
			return []Preview{p}, nil
		}
		all = append(all, p)
	}
	return all, nil
}

func (s *Service) eventsToPreview(ctx context.Context, d Destination, id store.EventID) (events []store.Received, err error) {
	ids := []store.EventID{id}
	if id == "" {
		page, err := s.Engine.Events(ctx, store.Query{Merchant: d.Merchant, Names: d.Events, SortBy: store.ByTime, Limit: 10})
		if err != nil {
			return nil, err
		}
		if len(page.Events) == 0 {
			now := s.Now().UTC()
			example := store.Event{ID: "00000000000000000000", MUID: "test", Name: "Purchase", Time: now, Raw: exampleEvent}
			return []store.Received{{Event: example, Merchant: d.Merchant, ReceivedAt: now}}, nil
		}
		ids = nil
		for _, e := range page.Events {
			ids = append(ids, e.ID)
		}
	}
	for _, id := range ids { // only the feed knows the tag, and when an event was received
		before, at, ok := id.Cursors()
		if !ok {
			return nil, store.Invalid("eventId", "is not the id of an event")
		}
		_, err = s.Engine.Feed(ctx, store.FeedQuery{Merchants: []store.MerchantID{d.Merchant}, After: before, UpTo: at}, func(e *store.Received) bool {
			events = append(events, newItem(e, before, time.Time{}).event)
			return false
		})
		if err != nil {
			return nil, err
		}
	}
	if id != "" && len(events) == 0 {
		return nil, store.NotFound("event")
	}
	return events, nil
}

var exampleEvent = []byte(`{"event":"Purchase","event_id":"test","muid":"test","email":"test@example.com","value":89.5,"currency":"EUR","order_id":"test",` +
	`"pageUrl":"https://shop.example/thanks","client_user_agent":"Mozilla/5.0","consent":{"analytics_storage":"granted","ad_storage":"granted","ad_user_data":"granted"}}`)

// preview returns what would be sent for an event; no request when nothing would.
func (s *Service) preview(rt *route, stored store.Received, gone erasing, now time.Time) (Preview, *kind.Request) {
	e := &kind.Event{Received: stored, Delivery: rt.deliveryID(stored.ID)}
	p := Preview{EventID: stored.ID, Event: stored.Name, Result: "send"}
	e.Browser = s.Browser(rt.Merchant, stored.Client)
	fate, why := rt.judge(e, gone.has(e), now)
	if fate != unsent {
		p.Result = "not sent: " + why
		return p, nil
	}
	requests, refusals := rt.target.Requests([]*kind.Event{e}, now)
	if len(refusals) > 0 || len(requests) == 0 {
		p.Result = "not sent"
		if len(refusals) > 0 {
			p.Result += ": " + refusals[0].Reason
		}
		return p, nil
	}
	r, shownAs := requests[0], requests[0]
	if e.Browser != (kind.Browser{}) {
		known := *e
		for _, text := range []*string{&known.Browser.Address, &known.Browser.UserAgent} {
			if *text != "" {
				*text = hidden
			}
		}
		requests, _ = rt.target.Requests([]*kind.Event{&known}, now)
		shownAs = requests[0]
	}
	hide := s.hider(rt.Destination)
	p.URL, p.Body, p.Headers = hide(shownAs.URL), shown(hide(string(shownAs.Body))), map[string]string{}
	for name, values := range shownAs.Header {
		p.Headers[strings.ToLower(name)] = hide(strings.Join(values, ", "))
	}
	if r.Header.Get("Authorization") != "" { // it may have a token that was made with a secret
		p.Headers["authorization"] = "***"
	}
	return p, &r
}

// shown returns a body as it is if it is JSON, else as a string or only its size.
func shown(body string) json.RawMessage {
	if json.Valid([]byte(body)) {
		return json.RawMessage(body)
	}
	if !utf8.ValidString(body) {
		body = fmt.Sprintf("%d bytes", len(body))
	}
	text, _ := json.Marshal(body) // cannot fail: a string
	return text
}

// hider returns a function that replaces the secrets of a destination in a text.
func (s *Service) hider(d Destination) func(string) string {
	var pairs []string
	for name, all := range d.Secrets {
		for _, of := range all {
			if text, err := s.Keys.open(d.place(name), of); err == nil && text != "" {
				pairs = append(pairs, text, "***", url.QueryEscape(text), "***") // GA4 has it in the address
			}
		}
	}
	return strings.NewReplacer(pairs...).Replace
}
