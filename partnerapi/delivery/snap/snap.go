// Package snap sends events to the Conversions API v3 of Snap, POST /v3/{pixel}/events
// (developers.snap.com/api/marketing-api/Conversions-API: UsingTheAPI and the overview, read 2026-11; fields and answers
// from api/openapi.yaml of github.com/Snapchat/business-sdk-v3-java at commit 186f8ca; the names of events from
// github.com/api-evangelist/snapchat, which is not Snap's own).
//
//   - Snap identifies a person by email or phone, or by IP address and user agent together. Events with none of them are
//     left out.
//   - Snap accepts events of the last 37 days. One wrong event makes it refuse the whole request.
//   - Snap counts an event from the pixel and from the server once if event_id is the same.
package snap

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "snap".
var Kind = kind.Platform{
	Name:     "snap",
	Endpoint: "https://tr.snapchat.com",
	Settings: []kind.Setting{
		{Name: "pixelId", Type: kind.Text, Required: true, Pattern: regexp.MustCompile(`^[0-9a-f-]{36}$`), Hint: "the id of a pixel, 36 characters of 0-9, a-f and -"},
		{Name: "test", Type: kind.Flag, Hint: "true to have the events checked only"},
	},
	Limits: kind.Limits{Events: 2000, Lanes: 1, MaxAge: 37*24*time.Hour - 10*time.Minute, ByEventTime: true},
	Names: map[string]string{
		"PageView": "PAGE_VIEW", "ViewContent": "VIEW_CONTENT", "ViewItem": "VIEW_CONTENT", "Login": "LOGIN", "Signup": "SIGN_UP", "SignUp": "SIGN_UP",
		"CompleteRegistration": "SIGN_UP", "StartTrial": "START_TRIAL", "AddPaymentInfo": "ADD_BILLING", "AddToCart": "ADD_CART",
		"AddToWishlist": "ADD_TO_WISHLIST", "BeginCheckout": "START_CHECKOUT", "Purchase": "PURCHASE", "Search": "SEARCH", "Share": "SHARE",
		"Subscribe": "SUBSCRIBE", "Schedule": "RESERVE",
	},
	Event: event,
	Shop: kind.ShopNames{
		Value: "value", Currency: "currency", Order: "order_id", Search: "search_string", IDs: "content_ids", Items: "contents",
		ID: "id", Count: "quantity", Price: "item_price", Texts: []string{"quantity", "item_price"},
	},
	ShopInto: "custom_data",
	Request: func(a *kind.Account, _ []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
		address := "/v3/" + a.Text("pixelId") + "/events"
		if a.Flag("test") {
			address += "/validate"
		}
		return address + "?" + url.Values{"access_token": {a.Secret}}.Encode(), nil, map[string]any{"data": list}
	},
	Read: read,
}.Kind()

func event(_ *kind.Account, name string, e *kind.Event) (map[string]any, *kind.Refusal) {
	user := e.HashedPerson()
	if user["em"] == nil && user["ph"] == nil && (user["client_ip_address"] == nil || user["client_user_agent"] == nil) {
		return nil, kind.Skip("Snap needs an email, a phone number, or the visitor's address and user agent")
	}
	kind.Put(user, "sc_click_id", e.ClickID("ScCid"))
	kind.Put(user, "sc_cookie1", e.Text("_scid", "sc_cookie1"))
	one := map[string]any{"event_name": name, "event_time": e.Time.Unix(), "event_id": e.EventID(), "user_data": user, "action_source": "WEB"}
	if e.IsFromServer() {
		one["action_source"] = "OFFLINE"
	}
	kind.Put(one, "event_source_url", e.PageURL())
	return one, nil
}

// read reads an answer. It names at most one wrong event, and then Snap has taken none of the request.
func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		Status string `json:"status"`
		Reason string `json:"reason"`
		Errors struct {
			Messages []string `json:"error_msgs"`
		} `json:"errors"`
	}
	v, ok := r.Parse(a, &body)
	if !ok {
		return v
	}
	if v.Outcome == kind.Done && body.Status == "INVALID" {
		v.Outcome = kind.Refused
	}
	if v.Outcome != kind.Done {
		v.Reason = strings.TrimSpace(body.Reason + " " + strings.Join(body.Errors.Messages, ", "))
	}
	return v
}
