// Package tiktok sends events to the Events API 2.0 of TikTok, POST /open_api/v1.3/event/track/ (business-api.tiktok.com/portal/docs;
// read 2026-11 through the recorded examples of docs.mparticle.com and doc.commandersact.com: TikTok's own pages were not at hand).
//
// TikTok answers 200 to most things: "code" in the body says what it means. Email, phone and external id are hashed; the phone has its + before.
package tiktok

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// Kind is the kind "tiktok".
var Kind = kind.Kind{
	Name:    "tiktok",
	Consent: kind.AdConsent,
	Secrets: []kind.Secret{{Name: accessToken, Required: true}},
	Open:    open,
}

const accessToken = "accessToken"

type target struct {
	PixelCode     string            `json:"pixelCode"`
	TestEventCode string            `json:"testEventCode"`
	EventNames    map[string]string `json:"eventNames"`
	Endpoint      string            `json:"endpoint"`

	mapping kind.Mapping
	token   string
}

var pixel = regexp.MustCompile(`^[A-Z0-9]{10,40}$`)

func open(o kind.Options) (kind.Target, error) {
	t := &target{Endpoint: "https://business-api.tiktok.com", mapping: o.Mapping, token: o.Secret(accessToken)}
	if err := o.Decode(t); err != nil {
		return nil, err
	}
	if !pixel.MatchString(t.PixelCode) {
		return nil, store.Invalid("settings.pixelCode", "must be the code of a pixel, such as COQDA8RC77U2TMR44LI0")
	}
	return t, kind.CheckEndpoint(&t.Endpoint, o.AllowHTTP)
}

// Limits implements kind.Target.
func (t *target) Limits() kind.Limits {
	return kind.Limits{Events: 1000, Lanes: 1, MaxAge: 7*24*time.Hour - 10*time.Minute, ByEventTime: true}
}

// names has the events that have another name at TikTok; the others are custom events.
var names = map[string]string{
	"ViewItem": "ViewContent", "Signup": "CompleteRegistration", "SignUp": "CompleteRegistration", "BeginCheckout": "InitiateCheckout", "PageView": "Pageview",
}

// Requests implements kind.Target.
func (t *target) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	var data []any
	var places []int
	var refused []kind.Refusal
	for i, e := range events {
		name := kind.Map(e.Name, t.EventNames, names)
		if name == "" {
			refused = append(refused, kind.Refusal{Event: i, Reason: "the settings leave this event out", Skipped: true})
			continue
		}
		one := event(name, e)
		t.mapping.Apply(e.Fields, one)
		data, places = append(data, one), append(places, i)
	}
	if len(data) == 0 {
		return nil, refused
	}
	body := map[string]any{"event_source": "web", "event_source_id": t.PixelCode, "data": data}
	kind.Put(body, "test_event_code", t.TestEventCode)
	text, _ := json.Marshal(body) // all of it was read from JSON
	header := http.Header{"Content-Type": {"application/json"}, "Access-Token": {t.token}}
	return []kind.Request{{URL: t.Endpoint + "/open_api/v1.3/event/track/", Header: header, Body: text, Events: places}}, refused
}

func event(name string, e *kind.Event) map[string]any {
	user := map[string]any{}
	kind.Put(user, "email", kind.Hash(kind.Email(e.Text("email"))))
	if phone := kind.Digits(e.Text("phone")); phone != "" {
		if len(phone) != 64 {
			phone = "+" + phone
		}
		user["phone"] = kind.Hash(phone)
	}
	kind.Put(user, "external_id", kind.Hash(string(e.MUID)))
	kind.Put(user, "ttclid", e.ClickID("ttclid"))
	kind.Put(user, "ttp", e.Text("ttp", "_ttp"))
	kind.Put(user, "ip", e.Text("client_ip_address"))
	kind.Put(user, "user_agent", e.UserAgent())
	one := map[string]any{"event": name, "event_time": e.Time.Unix(), "event_id": e.EventID(), "user": user}
	if address := e.PageURL(); address != "" {
		page := map[string]any{"url": address}
		kind.Put(page, "referrer", e.Text("referrer"))
		one["page"] = page
	}
	properties := map[string]any{}
	if value, ok := e.Number("value"); ok {
		properties["value"] = value
	}
	kind.Put(properties, "currency", strings.ToUpper(e.Text("currency")))
	kind.Put(properties, "order_id", e.OrderID())
	kind.Put(properties, "query", e.Text("search_term"))
	var contents []any
	for _, p := range e.Products() {
		content := map[string]any{}
		kind.Put(content, "content_id", p.ID)
		kind.Put(content, "content_name", p.Name)
		kind.Put(content, "content_category", p.Category)
		kind.PutNumber(content, "quantity", p.Quantity)
		kind.PutNumber(content, "price", p.Price)
		contents = append(contents, content)
	}
	if len(contents) > 0 {
		properties["contents"], properties["content_type"] = contents, "product"
	}
	if len(properties) > 0 {
		one["properties"] = properties
	}
	return one
}

// Read implements kind.Target.
func (t *target) Read(_ kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	var body struct {
		Code    *int   `json:"code"`
		Message string `json:"message"`
	}
	if v.Outcome != kind.Done {
		return v
	}
	if json.Unmarshal(a.Body, &body) != nil || body.Code == nil {
		return kind.Verdict{Outcome: kind.Again, Reason: "the answer cannot be read"}
	}
	switch c := *body.Code; {
	case c == 0:
		return v
	case c == 40002: // a field is wrong
		return kind.Verdict{Outcome: kind.Refused, Reason: body.Message}
	default: // rates, the token, or a fault of TikTok
		return kind.Verdict{Outcome: kind.Again, Reason: body.Message}
	}
}
