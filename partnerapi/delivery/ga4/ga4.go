// Package ga4 sends events to Google Analytics 4 by its Measurement Protocol (developers.google.com/analytics/devguides/collection/
// protocol/ga4: sending-events and reference, read 2026-11).
//
//   - A request is of one client, with at most 25 events, which may be up to 72 hours old.
//   - The client id is that of the cookie _ga, if the event has it (client_id or _ga), else a number that follows from the muid.
//   - Google answers 2xx to anything. With the setting debug the events are in GA4's DebugView.
//   - It needs analytics_storage. consent tells Google whether ad_user_data and ad_personalization are granted.
package ga4

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// Kind is the kind "ga4".
var Kind = kind.Kind{
	Name:    "ga4",
	Consent: []string{"analytics_storage"},
	Secrets: []kind.Secret{{Name: apiSecret, Required: true}},
	Open:    open,
}

const apiSecret = "apiSecret"

type target struct {
	MeasurementID string            `json:"measurementId"`
	Debug         bool              `json:"debug"`
	EventNames    map[string]string `json:"eventNames"`
	Endpoint      string            `json:"endpoint"`

	mapping kind.Mapping
	secret  string
}

var (
	measurement = regexp.MustCompile(`^G-[A-Z0-9]{4,20}$`)
	eventName   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,39}$`)
	cookie      = regexp.MustCompile(`^GA1\.[0-9]\.([0-9]+\.[0-9]+)$`)
	clientID    = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	session     = regexp.MustCompile(`^[0-9]{1,20}$`)
)

func open(o kind.Options) (kind.Target, error) {
	t := &target{Endpoint: "https://www.google-analytics.com", mapping: o.Mapping, secret: o.Secret(apiSecret)}
	if err := o.Decode(t); err != nil {
		return nil, err
	}
	if !measurement.MatchString(t.MeasurementID) {
		return nil, store.Invalid("settings.measurementId", "must be the id of a web stream, such as G-ABCD1234")
	}
	return t, kind.CheckEndpoint(&t.Endpoint, o.AllowHTTP)
}

const maxEvents = 25

// Limits implements kind.Target.
func (t *target) Limits() kind.Limits {
	return kind.Limits{Events: 500, Lanes: 4, MaxAge: 72*time.Hour - 10*time.Minute, ByEventTime: true}
}

var names = map[string]string{"Signup": "sign_up", "Lead": "generate_lead"}

// reserved are names that Google refuses in this protocol.
var reserved = regexp.MustCompile(`^(ad_(activeview|click|exposure|query|reward)|adunit_exposure|app_(background|clear_data|exception|remove|store_.*|update|upgrade)|` +
	`dynamic_link_.*|error|first_open|first_visit|in_app_purchase|notification_.*|os_update|screen_view|session_start|user_engagement|(_|firebase_|ga_|google_|gtag\.).*)$`)

// snake returns AddToCart as add_to_cart.
func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// request is a request as it is built up.
type request struct {
	client, consent string
	events          []any
	places          []int
	user            map[string]any
}

// Requests implements kind.Target.
func (t *target) Requests(events []*kind.Event, _ time.Time) ([]kind.Request, []kind.Refusal) {
	var all []*request
	open := map[string]*request{}
	var refused []kind.Refusal
	for i, e := range events {
		name, mapped := t.EventNames[e.Name]
		if !mapped {
			if name, mapped = names[e.Name]; !mapped {
				name = snake(e.Name)
			}
		}
		if name == "" || !eventName.MatchString(name) || reserved.MatchString(name) {
			refused = append(refused, kind.Refusal{Event: i, Reason: fmt.Sprintf("Google Analytics takes no event with the name %q", name), Skipped: true})
			continue
		}
		consent := consentOf(e)
		key := clientOf(e) + "/" + consent
		r := open[key]
		if r == nil || len(r.events) == maxEvents {
			r = &request{client: clientOf(e), consent: consent}
			open[key] = r
			all = append(all, r)
		}
		params := t.params(e)
		t.mapping.Apply(e.Fields, params)
		r.events = append(r.events, map[string]any{"name": name, "params": params, "timestamp_micros": e.Time.UnixMicro()})
		r.places = append(r.places, i)
		if user := userData(e, consent); user != nil {
			r.user = user
		}
	}
	requests := make([]kind.Request, len(all))
	for i, r := range all {
		body := map[string]any{"client_id": r.client, "consent": json.RawMessage(r.consent), "events": r.events}
		if r.user != nil {
			body["user_data"] = r.user
		}
		text, _ := json.Marshal(body) // all of it was read from JSON
		address := t.Endpoint + "/mp/collect?" + url.Values{"measurement_id": {t.MeasurementID}, "api_secret": {t.secret}}.Encode()
		requests[i] = kind.Request{URL: address, Header: http.Header{"Content-Type": {"application/json"}}, Body: text, Events: r.places}
	}
	return requests, refused
}

func consentOf(e *kind.Event) string {
	word := func(category string) string {
		if kind.HasConsent(e.Fields, []string{"ad_storage", category}) {
			return "GRANTED"
		}
		return "DENIED"
	}
	return `{"ad_user_data":"` + word("ad_user_data") + `","ad_personalization":"` + word("ad_personalization") + `"}`
}

// clientOf returns the client id.
func clientOf(e *kind.Event) string {
	if id := e.Text("client_id"); clientID.MatchString(id) {
		return id
	}
	if m := cookie.FindStringSubmatch(e.Text("_ga", "ga")); m != nil {
		return m[1]
	}
	sum := sha256.Sum256([]byte(e.MUID))
	return fmt.Sprintf("%d.%d", binary.BigEndian.Uint32(sum[:])>>1, binary.BigEndian.Uint32(sum[4:])>>1)
}

// userData returns hashed identifiers, where the visitor agrees to their use for ads.
func userData(e *kind.Event, consent string) map[string]any {
	if !strings.Contains(consent, `"ad_user_data":"GRANTED"`) {
		return nil
	}
	user := map[string]any{}
	if email := kind.Email(e.Text("email")); email != "" {
		user["sha256_email_address"] = []string{kind.Hash(email)}
	}
	if phone := kind.Digits(e.Text("phone")); phone != "" {
		user["sha256_phone_number"] = []string{kind.Hash("+" + phone)}
	}
	if len(user) == 0 {
		return nil
	}
	return user
}

func (t *target) params(e *kind.Event) map[string]any {
	p := map[string]any{"engagement_time_msec": 1}
	if id := e.Text("ga_session_id", "session_id"); session.MatchString(id) {
		p["session_id"] = id
	}
	if t.Debug {
		p["debug_mode"] = 1
	}
	number := func(to string, from ...string) {
		if n, ok := e.Number(from...); ok {
			p[to] = n
		}
	}
	text := func(to string, from ...string) { kind.Put(p, to, first(e.Text(from...), 100)) }
	number("value", "value")
	number("shipping", "shipping_cost", "shipping")
	number("tax", "tax")
	kind.Put(p, "currency", strings.ToUpper(e.Text("currency")))
	kind.Put(p, "transaction_id", first(e.OrderID(), 100))
	text("coupon", "coupon")
	text("payment_type", "payment_event", "payment_type")
	text("shipping_tier", "shipping_tier")
	text("search_term", "search_term")
	text("method", "share_method", "method")
	text("item_id", "item_id")
	text("event_id", "event_id")
	kind.Put(p, "page_location", first(e.PageURL(), 1000))
	kind.Put(p, "page_title", first(e.Text("pageTitle"), 300))
	kind.Put(p, "page_referrer", first(e.Text("referrer"), 420))
	kind.Put(p, "language", e.Text("language"))
	kind.Put(p, "screen_resolution", e.Text("screen"))
	var items []any
	for _, of := range e.Products() {
		item := map[string]any{}
		kind.Put(item, "item_id", first(of.ID, 100))
		kind.Put(item, "item_name", first(of.Name, 100))
		kind.Put(item, "item_category", first(of.Category, 100))
		kind.Put(item, "coupon", first(of.Coupon, 100))
		kind.PutNumber(item, "quantity", of.Quantity)
		kind.PutNumber(item, "price", of.Price)
		kind.PutNumber(item, "discount", of.Discount)
		if of.ID != "" || of.Name != "" {
			items = append(items, item)
		}
	}
	if len(items) > 0 {
		p["items"] = items[:min(len(items), 200)]
	}
	return p
}

// first returns the first n characters of a text.
func first(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// Read implements kind.Target.
func (t *target) Read(_ kind.Request, a kind.Answer) kind.Verdict { return kind.Standard(a) }
