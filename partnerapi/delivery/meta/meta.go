// Package meta sends events to the Conversions API of Meta, as its documentation has it (developers.facebook.com/documentation/
// ads-commerce/conversions-api: parameters/server-event of 2026-02-12, parameters/customer-information-parameters of 2026-01-09,
// using-the-api of 2026-02-06).
//
//   - One event older than 7 days makes Meta refuse its whole request, so older ones are never sent.
//   - An event of a website needs the page and the visitor's user agent. The service stores no user agent: the page sends it as
//     user_agent, for example by mtag('set', {user_agent: navigator.userAgent}).
//   - Meta counts an event of the browser's pixel and of the server once if event name and event_id are the same.
package meta

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// Kind is the kind "meta".
var Kind = kind.Kind{
	Name:    "meta",
	Consent: kind.AdConsent,
	Secrets: []kind.Secret{{Name: accessToken, Required: true}},
	Open:    open,
}

const accessToken = "accessToken"

type target struct {
	PixelID       string            `json:"pixelId"`
	APIVersion    string            `json:"apiVersion"`
	TestEventCode string            `json:"testEventCode"`
	EventNames    map[string]string `json:"eventNames"`
	Endpoint      string            `json:"endpoint"` // of a server of one's own

	mapping kind.Mapping
	token   string
}

var digits, version = regexp.MustCompile(`^[0-9]{5,20}$`), regexp.MustCompile(`^v[0-9]{2}\.0$`)

func open(o kind.Options) (kind.Target, error) {
	t := &target{APIVersion: "v24.0", Endpoint: "https://graph.facebook.com", mapping: o.Mapping, token: o.Secret(accessToken)}
	if err := o.Decode(t); err != nil {
		return nil, err
	}
	switch {
	case !digits.MatchString(t.PixelID):
		return nil, store.Invalid("settings.pixelId", "must be the number of a dataset (pixel)")
	case !version.MatchString(t.APIVersion):
		return nil, store.Invalid("settings.apiVersion", "must be a version such as v24.0")
	}
	return t, kind.CheckEndpoint(&t.Endpoint, o.AllowHTTP)
}

// Limits implements kind.Target.
func (t *target) Limits() kind.Limits {
	return kind.Limits{Events: 1000, Lanes: 1, MaxAge: 7*24*time.Hour - 10*time.Minute, ByEventTime: true}
}

// names has the events that have another name at Meta. Those that are not standard events there are custom events.
var names = map[string]string{
	"ViewItem": "ViewContent", "Signup": "CompleteRegistration", "SignUp": "CompleteRegistration", "BeginCheckout": "InitiateCheckout",
}

// Requests implements kind.Target.
func (t *target) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	var data []any
	var places []int
	var refused []kind.Refusal
	for i, e := range events {
		name := kind.Map(e.Name, t.EventNames, names)
		one := t.event(name, e)
		switch {
		case name == "":
			refused = append(refused, kind.Refusal{Event: i, Reason: "the settings leave this event out", Skipped: true})
		case !e.IsFromServer() && e.UserAgent() == "":
			refused = append(refused, kind.Refusal{Event: i, Reason: "Meta needs the user agent of a website's visitor: let the page send it as user_agent"})
		default:
			t.mapping.Apply(e.Fields, one)
			data, places = append(data, one), append(places, i)
		}
	}
	if len(data) == 0 {
		return nil, refused
	}
	body := map[string]any{"data": data}
	kind.Put(body, "test_event_code", t.TestEventCode)
	text, _ := json.Marshal(body) // all of it was read from JSON
	address := t.Endpoint + "/" + t.APIVersion + "/" + t.PixelID + "/events"
	header := http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + t.token}}
	return []kind.Request{{URL: address, Header: header, Body: text, Events: places}}, refused
}

func (t *target) event(name string, e *kind.Event) map[string]any {
	one := map[string]any{"event_name": name, "event_time": e.Time.Unix(), "event_id": e.EventID(), "user_data": person(e), "action_source": "website"}
	if e.IsFromServer() {
		one["action_source"] = "system_generated"
	}
	kind.Put(one, "action_source", e.Text("action_source"))
	kind.Put(one, "event_source_url", e.PageURL())
	kind.Put(one, "referrer_url", e.Text("referrer"))
	custom := map[string]any{}
	if value, ok := e.Number("value"); ok {
		custom["value"] = value
	}
	kind.Put(custom, "currency", strings.ToUpper(e.Text("currency")))
	kind.Put(custom, "order_id", e.OrderID())
	kind.Put(custom, "search_string", e.Text("search_term"))
	var contents []any
	var ids []string
	for _, p := range e.Products() {
		content := map[string]any{}
		kind.Put(content, "id", p.ID)
		kind.PutNumber(content, "quantity", p.Quantity)
		kind.PutNumber(content, "item_price", p.Price)
		if p.ID != "" {
			contents, ids = append(contents, content), append(ids, p.ID)
		}
	}
	if len(contents) > 0 {
		custom["contents"], custom["content_ids"], custom["content_type"] = contents, ids, "product"
	}
	if len(custom) > 0 {
		one["custom_data"] = custom
	}
	return one
}

// person returns what identifies the visitor, normalised and hashed as customer-information-parameters says.
func person(e *kind.Event) map[string]any {
	user := map[string]any{}
	hashed := func(name, value string) {
		if value != "" {
			user[name] = []string{kind.Hash(value)}
		}
	}
	hashed("em", kind.Email(e.Text("email")))
	hashed("ph", kind.Digits(e.Text("phone")))
	hashed("fn", kind.Letters(e.Text("first_name", "firstName")))
	hashed("ln", kind.Letters(e.Text("last_name", "lastName")))
	hashed("ct", kind.Letters(e.Text("city")))
	hashed("st", kind.Letters(e.Text("state", "region")))
	hashed("zp", kind.Letters(e.Text("zip", "postal_code", "postcode")))
	if country := strings.ToLower(e.Text("country")); len(country) == 2 {
		hashed("country", country)
	}
	hashed("external_id", string(e.MUID))
	kind.Put(user, "client_ip_address", e.Text("client_ip_address"))
	kind.Put(user, "client_user_agent", e.UserAgent())
	kind.Put(user, "fbp", e.Text("fbp", "_fbp"))
	kind.Put(user, "fbc", clickID(e))
	return user
}

// clickID returns fbc, which is version, subdomain index, time of the click in ms and fbclid.
func clickID(e *kind.Event) string {
	if fbc := e.Text("fbc", "_fbc"); fbc != "" {
		return fbc
	}
	id := e.ClickID("fbclid")
	if id == "" {
		return ""
	}
	return "fb.1." + strconv.FormatInt(e.Time.UnixMilli(), 10) + "." + id
}

// Read implements kind.Target. Meta answers many errors with 400, also those that pass: of the token, of rates.
func (t *target) Read(_ kind.Request, a kind.Answer) kind.Verdict {
	v := kind.Standard(a)
	var body struct {
		Error struct {
			Message     string `json:"message"`
			UserMessage string `json:"error_user_msg"`
			Code        int    `json:"code"`
			IsTransient bool   `json:"is_transient"`
		} `json:"error"`
	}
	if v.Outcome == kind.Done || json.Unmarshal(a.Body, &body) != nil || body.Error.Code == 0 {
		return v
	}
	e := body.Error
	v.Reason = strings.TrimSpace(e.Message + " " + e.UserMessage)
	switch c := e.Code; {
	case e.IsTransient, c == 1, c == 2, c == 4, c == 17, c == 32, c == 341, c == 613, c >= 80000 && c < 90000: // it passes
		v.Outcome = kind.Again
	case c == 102, c == 190, c == 3, c == 10, c >= 200 && c < 300: // the token: the merchant can set another one
		v.Outcome = kind.Again
	}
	return v
}
