package kind

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Platform describes an ad platform: its settings, its names for events, and functions for what differs between platforms.
type Platform struct {
	Name     string
	Endpoint string   // the URL of its API
	Consent  []string // nil: AdConsent
	Secret   Secret   // zero: accessToken
	Settings []Setting
	Limits   Limits

	// Names translates event names to those of the platform. Custom names all other events; if it is nil, they are left out.
	Names  map[string]string
	Custom func(name string) string
	// Conversions is set if a merchant must set up something at the platform for each event name: it says what, such as "a
	// conversion rule". Then the setting conversions has the number for each event name, and replaces Names and eventNames.
	Conversions string

	// Event returns the platform's form of an event, or why the event is not sent.
	Event func(a *Account, name string, e *Event) (map[string]any, *Refusal)
	// Shop has the platform's names for products and values. They are put into the object named ShopInto in the result of
	// Event. When ShopInto is empty, Event adds them itself.
	Shop     ShopNames
	ShopInto string
	// MapInto is the object of what Event returns in which a merchant's mapping sets fields; empty: all of it.
	MapInto string
	// Group returns a key: only events with the same key share a request, at most GroupSize of them. nil: all events may.
	Group     func(e *Event) string
	GroupSize int
	// Request returns the URL, additional headers and the body. list has the results of Event for the events.
	Request func(a *Account, events []*Event, list []any, now time.Time) (address string, header http.Header, body map[string]any)
	Read    func(r Request, a Answer) Verdict // nil: Standard
}

// Names that platforms have in common.
const (
	accessToken = "accessToken"
	eventNames  = "eventNames"
	conversions = "conversions"
	endpoint    = "endpoint"
)

// Account is the account of a merchant at a platform.
type Account struct {
	Endpoint string
	Secret   string
	Values
	platform *Platform
	mapping  Mapping
}

// Bearer returns the Authorization header with the secret.
func (a *Account) Bearer() http.Header { return http.Header{"Authorization": {"Bearer " + a.Secret}} }

// Skip returns a refusal that is not an error: the event is not meant for the platform.
func Skip(reason string) *Refusal { return &Refusal{Reason: reason, Skipped: true} }

var number = regexp.MustCompile(`^[0-9]{1,20}$`)

// Kind returns the kind of the destinations at the platform.
func (p Platform) Kind() Kind {
	if p.Secret.Name == "" {
		p.Secret.Name = accessToken
	}
	p.Secret.Required = true
	if p.Consent == nil {
		p.Consent = AdConsent
	}
	if p.Read == nil {
		p.Read = func(_ Request, a Answer) Verdict { return Standard(a) }
	}
	names := Setting{Name: eventNames, Type: Table, Hint: "the names of events there, by their names here; an empty name leaves an event out"}
	if p.Conversions != "" {
		names = Setting{Name: conversions, Type: Table, Required: true, Pattern: number, Hint: "the number of " + p.Conversions + " by the name of the event"}
	}
	p.Settings = append(p.Settings, names, Setting{Name: endpoint, Type: Text, Default: p.Endpoint, Hint: "another address than the platform's, for tests"})
	return Kind{Name: p.Name, Consent: p.Consent, Client: true, Secrets: []Secret{p.Secret}, Settings: p.Settings, New: p.open}
}

func (p *Platform) open(o Options, v Values) (Target, error) {
	address := v.Text(endpoint)
	return &Account{Endpoint: strings.TrimRight(address, "/"), Secret: o.Secret(p.Secret.Name), Values: v, platform: p, mapping: o.Mapping}, o.CheckURL(endpoint, address)
}

func (a *Account) Limits() Limits { return a.platform.Limits }

// Name returns the platform's name of an event; empty: the event is left out.
func (a *Account) Name(of string) string {
	p := a.platform
	if p.Conversions != "" {
		return a.Table(conversions)[of]
	}
	if name, ok := a.Table(eventNames)[of]; ok {
		return name
	}
	name, ok := p.Names[of]
	if !ok && p.Custom != nil {
		name = p.Custom(of)
	}
	return name
}

func (a *Account) Requests(events []*Event, now time.Time) (requests []Request, refused []Refusal) {
	type part struct {
		events []*Event
		list   []any
	}
	p := a.platform
	var parts []*part
	open := map[string]*part{}
	for _, e := range events {
		if e.Time.After(now) { // by the clock of its browser: platforms refuse what has not happened yet
			e.Time = now
		}
		one, refusal := map[string]any(nil), Skip("the platform has no such event, and the settings name none")
		if name := a.Name(e.Name); name != "" {
			one, refusal = p.Event(a, name, e)
		}
		if refusal != nil {
			refusal.Event = e
			refused = append(refused, *refusal)
			continue
		}
		if p.ShopInto != "" {
			if shop := e.Shop(p.Shop); len(shop) > 0 {
				one[p.ShopInto] = shop
			}
		}
		into := one
		if p.MapInto != "" {
			into = one[p.MapInto].(map[string]any)
		}
		a.mapping.Apply(e.Fields, into)
		group := ""
		if p.Group != nil {
			group = p.Group(e)
		}
		of := open[group]
		if of == nil || len(of.list) == p.GroupSize {
			of = &part{}
			parts, open[group] = append(parts, of), of
		}
		of.events, of.list = append(of.events, e), append(of.list, one)
	}
	for _, of := range parts {
		address, header, body := p.Request(a, of.events, of.list, now)
		if header == nil {
			header = http.Header{}
		}
		header.Set("Content-Type", "application/json")
		text, _ := json.Marshal(body) // all of it was read from JSON
		requests = append(requests, Request{URL: a.Endpoint + address, Header: header, Body: text, Events: of.events})
	}
	return requests, refused
}

func (a *Account) Read(r Request, answer Answer) Verdict { return a.platform.Read(r, answer) }

// Snake returns AddToCart as add_to_cart.
func Snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
