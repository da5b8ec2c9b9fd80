// Package pinterest sends events to the Conversions API of Pinterest, POST /v5/ad_accounts/{id}/events, as its OpenAPI
// description has it (github.com/pinterest/api-description, v5/openapi.json 5.23.0 of 2025-12-11; the names of events from
// developers.pinterest.com/docs/api-features/conversion-overview, read 2026-11).
//
//   - Pinterest identifies a person by email, or by IP address and user agent together. Events with neither are left out.
//   - The answer says for each event whether it was processed, even with status 422.
//   - Pinterest counts an event from its tag and from the server once if event_id is the same, except for offline events. So
//     action_source is web for the events of a backend too. A mapping can change it.
//   - Pinterest documents no maximum age of events: here 7 days.
package pinterest

import (
	"cmp"
	"net/http"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "pinterest".
var Kind = kind.Platform{
	Name:     "pinterest",
	Endpoint: "https://api.pinterest.com",
	Settings: []kind.Setting{
		{Name: "adAccountId", Type: kind.Text, Required: true, Pattern: regexp.MustCompile(`^[0-9]{5,20}$`), Hint: "the number of an ad account"},
		{Name: "test", Type: kind.Flag, Hint: "true to have the events checked only"},
	},
	Limits: kind.Limits{Events: 1000, Lanes: 1, MaxAge: 7*24*time.Hour - 10*time.Minute, ByEventTime: true},
	Names: map[string]string{
		"PageView": "page_visit", "ViewContent": "view_content", "ViewItem": "page_visit", "Signup": "signup", "SignUp": "signup",
		"CompleteRegistration": "signup", "StartTrial": "start_trial", "AddPaymentInfo": "add_payment_info", "AddToCart": "add_to_cart",
		"AddToWishlist": "add_to_wishlist", "BeginCheckout": "initiate_checkout", "Purchase": "checkout", "Search": "search",
		"Subscribe": "subscribe", "Lead": "lead", "SubmitApplication": "submit_application", "Contact": "contact", "Schedule": "schedule",
	},
	Event: event,
	Shop: kind.ShopNames{
		Value: "value", Currency: "currency", Order: "order_id", Search: "search_string", IDs: "content_ids", Items: "contents",
		ID: "id", Name: "item_name", Category: "item_category", Count: "quantity", Price: "item_price", Texts: []string{"value", "item_price"},
	},
	ShopInto: "custom_data",
	Request: func(a *kind.Account, _ []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
		address := "/v5/ad_accounts/" + a.Text("adAccountId") + "/events"
		if a.Flag("test") {
			address += "?test=true"
		}
		return address, a.Bearer(), map[string]any{"data": list}
	},
	Read: read,
}.Kind()

var notDigit = regexp.MustCompile(`[^0-9]`)

func event(_ *kind.Account, name string, e *kind.Event) (map[string]any, *kind.Refusal) {
	user := e.HashedPerson()
	if user["em"] == nil && (user["client_ip_address"] == nil || user["client_user_agent"] == nil) {
		return nil, kind.Skip("Pinterest needs an email, or the visitor's address and user agent")
	}
	user["external_id"] = []string{kind.Hash(string(e.MUID))}
	if zip := e.Text(kind.Postcode...); zip != "" && len(zip) < 64 { // only those of digits
		delete(user, "zp")
		if zip = notDigit.ReplaceAllString(zip, ""); zip != "" {
			user["zp"] = []string{kind.Hash(zip)}
		}
	}
	kind.Put(user, "click_id", cmp.Or(e.Text("_epik"), e.ClickID("epik")))
	one := map[string]any{"event_name": name, "event_time": e.Time.Unix(), "event_id": e.EventID(), "user_data": user, "action_source": "web"}
	kind.Put(one, "event_source_url", e.PageURL())
	if language, _, _ := strings.Cut(e.Text("language"), "-"); len(language) == 2 {
		one["language"] = strings.ToLower(language)
	}
	return one, nil
}

type result struct {
	Events []struct {
		Status  string `json:"status"`
		Message string `json:"error_message"`
	} `json:"events"`
}

func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		result
		Message string `json:"message"`
		Details result `json:"details"` // with status 422
	}
	v, ok := r.Parse(a, &body)
	if !ok {
		return v
	}
	events := append(body.Events, body.Details.Events...)
	switch v.Reason = body.Message; {
	case v.Outcome == kind.Again:
		return v
	case len(events) == len(r.Events):
	case v.Outcome == kind.Done:
		return r.Unclear(a)
	default:
		return v
	}
	v.Outcome, v.Refused = kind.Done, map[int]string{}
	for i, e := range events {
		if e.Status == "failed" {
			v.Refused[i] = e.Message
		}
	}
	return v
}
