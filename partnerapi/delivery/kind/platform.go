package kind

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Platform describes an ad platform: a table of names, and what is special about it.
type Platform struct {
	Name     string
	Endpoint string   // its address
	Consent  []string // nil: AdConsent
	Secret   Secret   // zero: AccessToken
	Settings []Setting
	Limits   Limits

	// Names has the events that have another name at the platform. The others have their own names there (Custom), or are left out.
	Names  map[string]string
	Custom func(name string) string
	// Conversions says what a merchant sets up at the platform for each kind of event, such as "a conversion rule". Then the setting
	// conversions has its number for each event, in place of Names and eventNames.
	Conversions string

	// Event returns what is sent of an event, or why it is not sent.
	Event func(a *Account, name string, e *Event) (map[string]any, *Refusal)
	// MapInto is the field of an event that the mapping of a merchant sets fields in; empty: the event itself.
	MapInto string
	// Group says which events may be in the same request, at most GroupSize of them; nil: all.
	Group     func(e *Event) string
	GroupSize int
	// Request returns the address, what is special in the header, and the body. list has what Event has returned for the events.
	Request func(a *Account, events []*Event, list []any, now time.Time) (address string, header http.Header, body map[string]any)
	Read    func(r Request, a Answer) Verdict // nil: Standard
}

// Names that platforms have in common.
const (
	AccessToken = "accessToken"
	eventNames  = "eventNames"
	conversions = "conversions"
	endpoint    = "endpoint"
)

// Account is the account of a merchant at a platform.
type Account struct {
	Endpoint string
	Secret   string
	values
	platform *Platform
	mapping  Mapping
}

// Text returns a setting.
func (a *Account) Text(name string) string { return a.texts[name] }

// Flag returns a setting.
func (a *Account) Flag(name string) bool { return a.flags[name] }

// Bearer returns the header that has the secret.
func (a *Account) Bearer() http.Header { return http.Header{"Authorization": {"Bearer " + a.Secret}} }

// Skip is why an event is not for a platform, which is no fault.
func Skip(reason string) *Refusal { return &Refusal{Reason: reason, Skipped: true} }

var number = regexp.MustCompile(`^[0-9]{1,20}$`)

// Kind returns the kind of the destinations at the platform.
func (p Platform) Kind() Kind {
	if p.Secret.Name == "" {
		p.Secret.Name = AccessToken
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
	return Kind{Name: p.Name, Consent: p.Consent, Secrets: []Secret{p.Secret}, Settings: p.Settings, Open: p.open}
}

func (p *Platform) open(o Options) (Target, error) {
	v, err := o.read(p.Settings)
	if err != nil {
		return nil, err
	}
	address, err := checkEndpoint(v.texts[endpoint], o.AllowHTTP)
	return &Account{Endpoint: address, Secret: o.Secret(p.Secret.Name), values: v, platform: p, mapping: o.Mapping}, err
}

// Limits implements Target.
func (a *Account) Limits() Limits { return a.platform.Limits }

// Name returns the name of an event at the platform; empty: it is left out.
func (a *Account) Name(of string) string {
	p := a.platform
	if p.Conversions != "" {
		return a.tables[conversions][of]
	}
	if name, ok := a.tables[eventNames][of]; ok {
		return name
	}
	name, ok := p.Names[of]
	if !ok && p.Custom != nil {
		name = p.Custom(of)
	}
	return name
}

// Requests implements Target.
func (a *Account) Requests(events []*Event, now time.Time) (requests []Request, refused []Refusal) {
	type part struct {
		events []*Event
		list   []any
		places []int
	}
	p := a.platform
	var parts []*part
	open := map[string]*part{}
	for i, e := range events {
		one, refusal := map[string]any(nil), Skip("the platform has no such event, and the settings name none")
		if name := a.Name(e.Name); name != "" {
			one, refusal = p.Event(a, name, e)
		}
		if refusal != nil {
			refusal.Event = i
			refused = append(refused, *refusal)
			continue
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
		of.events, of.list, of.places = append(of.events, e), append(of.list, one), append(of.places, i)
	}
	for _, of := range parts {
		address, header, body := p.Request(a, of.events, of.list, now)
		if header == nil {
			header = http.Header{}
		}
		header.Set("Content-Type", "application/json")
		text, _ := json.Marshal(body) // all of it was read from JSON
		requests = append(requests, Request{URL: a.Endpoint + address, Header: header, Body: text, Events: of.places})
	}
	return requests, refused
}

// Read implements Target.
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
