// Package ga4 sends events to Google Analytics 4 by its Measurement Protocol
// (developers.google.com/analytics/devguides/collection/protocol/ga4: sending-events and reference, read 2026-11).
//
//   - A request is of one client, with at most 25 events, which may be up to 72 hours old.
//   - The client id is that of the cookie _ga, if the event has it (client_id or _ga), else a number that follows from the
//     muid.
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

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "ga4".
var Kind = kind.Platform{
	Name:     "ga4",
	Endpoint: "https://www.google-analytics.com",
	Consent:  []string{"analytics_storage"},
	Secret:   kind.Secret{Name: "apiSecret"},
	Settings: []kind.Setting{
		{Name: "measurementId", Type: kind.Text, Required: true, Pattern: regexp.MustCompile(`^G-[A-Z0-9]{4,20}$`), Hint: "the id of a web stream, such as G-ABCD1234"},
		{Name: "debug", Type: kind.Flag, Hint: "true to see the events in DebugView"},
	},
	Limits: kind.Limits{Events: 500, Lanes: 4, MaxAge: 72*time.Hour - 10*time.Minute, ByEventTime: true},
	Names:  map[string]string{"Signup": "sign_up", "Lead": "generate_lead"},
	Custom: kind.Snake,
	Event:  event, MapInto: "params",
	Group: func(e *kind.Event) string {
		return strings.Join([]string{clientOf(e), consentOf(e), e.Browser.Address, e.Browser.UserAgent}, "/")
	}, GroupSize: 25,
	Request: request,
}.Kind()

var (
	eventName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,39}$`)
	cookie    = regexp.MustCompile(`^GA1\.[0-9]\.([0-9]+\.[0-9]+)$`)
	clientID  = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	session   = regexp.MustCompile(`^[0-9]{1,20}$`)
)

// reserved are names that Google refuses in this protocol.
var reserved = regexp.MustCompile(`^(ad_(activeview|click|exposure|query|reward)|adunit_exposure|app_(background|clear_data|exception|remove|store_.*|update|upgrade)|` +
	`dynamic_link_.*|error|first_open|first_visit|in_app_purchase|notification_.*|os_update|screen_view|session_start|user_engagement|(_|firebase_|ga_|google_|gtag\.).*)$`)

func event(a *kind.Account, name string, e *kind.Event) (map[string]any, *kind.Refusal) {
	if !eventName.MatchString(name) || reserved.MatchString(name) {
		return nil, kind.Skip(fmt.Sprintf("Google Analytics takes no event with the name %q", name))
	}
	return map[string]any{"name": name, "params": params(a, e), "timestamp_micros": e.Time.UnixMicro()}, nil
}

func request(a *kind.Account, events []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
	body := map[string]any{"client_id": clientOf(events[0]), "consent": json.RawMessage(consentOf(events[0])), "events": list}
	kind.Put(body, "ip_override", events[0].Browser.Address)
	kind.Put(body, "user_agent", events[0].Browser.UserAgent)
	for _, e := range events {
		if user := userData(e); user != nil {
			body["user_data"] = user
		}
	}
	return "/mp/collect?" + url.Values{"measurement_id": {a.Text("measurementId")}, "api_secret": {a.Secret}}.Encode(), nil, body
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
func userData(e *kind.Event) map[string]any {
	if !kind.HasConsent(e.Fields, kind.AdConsent) {
		return nil
	}
	user := map[string]any{}
	if email := kind.GoogleEmail(e.Text("email")); email != "" {
		user["sha256_email_address"] = []string{kind.Hash(email)}
	}
	if phone := kind.E164(e.Text("phone")); phone != "" {
		user["sha256_phone_number"] = []string{kind.Hash(phone)}
	}
	if len(user) == 0 {
		return nil
	}
	return user
}

func params(a *kind.Account, e *kind.Event) map[string]any {
	p := map[string]any{"engagement_time_msec": 1}
	if id := e.Text("ga_session_id", "session_id"); session.MatchString(id) {
		p["session_id"] = id
	}
	if a.Flag("debug") {
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
		if len(item) == 0 {
			continue
		}
		kind.Put(item, "item_category", first(of.Category, 100))
		kind.Put(item, "coupon", first(of.Coupon, 100))
		kind.PutNumber(item, "quantity", of.Quantity)
		kind.PutNumber(item, "price", of.Price)
		kind.PutNumber(item, "discount", of.Discount)
		items = append(items, item)
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
