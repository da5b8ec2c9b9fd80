// Package tiktok sends events to the Events API 2.0 of TikTok, POST /open_api/v1.3/event/track/
// (business-api.tiktok.com/portal/docs; read 2026-11 through the recorded examples of docs.mparticle.com and
// doc.commandersact.com: TikTok's own pages were not at hand).
//
// TikTok answers 200 to most things: "code" in the body says what it means. Email, phone and external id are hashed; the
// phone has its + before.
package tiktok

import (
	"net/http"
	"regexp"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "tiktok".
var Kind = kind.Platform{
	Name:     "tiktok",
	Endpoint: "https://business-api.tiktok.com",
	Settings: []kind.Setting{
		{Name: "pixelCode", Type: kind.Text, Required: true, Pattern: regexp.MustCompile(`^[A-Z0-9]{10,40}$`), Hint: "the code of a pixel, such as COQDA8RC77U2TMR44LI0"},
		{Name: "testEventCode", Type: kind.Text, Hint: "the code of the page Test events"},
	},
	Limits: kind.Limits{Events: 1000, Lanes: 1, MaxAge: 7*24*time.Hour - 10*time.Minute, ByEventTime: true},
	Names: map[string]string{
		"ViewItem": "ViewContent", "Signup": "CompleteRegistration", "SignUp": "CompleteRegistration", "BeginCheckout": "InitiateCheckout", "PageView": "Pageview",
	},
	Custom: func(name string) string { return name },
	Event:  event,
	Shop: kind.ShopNames{
		Value: "value", Currency: "currency", Order: "order_id", Search: "query", Items: "contents", Type: "content_type",
		ID: "content_id", Name: "content_name", Category: "content_category", Count: "quantity", Price: "price",
	},
	ShopInto: "properties",
	Request: func(a *kind.Account, _ []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
		body := map[string]any{"event_source": "web", "event_source_id": a.Text("pixelCode"), "data": list}
		kind.Put(body, "test_event_code", a.Text("testEventCode"))
		return "/open_api/v1.3/event/track/", http.Header{"Access-Token": {a.Secret}}, body
	},
	Read: read,
}.Kind()

func event(_ *kind.Account, name string, e *kind.Event) (map[string]any, *kind.Refusal) {
	user := map[string]any{"external_id": kind.Hash(string(e.MUID))}
	kind.Put(user, "email", kind.Hash(kind.Email(e.Text("email"))))
	kind.Put(user, "phone", kind.Hash(kind.E164(e.Text("phone"))))
	kind.Put(user, "ttclid", e.ClickID("ttclid"))
	kind.Put(user, "ttp", e.Text("ttp", "_ttp"))
	kind.Put(user, "ip", e.Address())
	kind.Put(user, "user_agent", e.UserAgent())
	one := map[string]any{"event": name, "event_time": e.Time.Unix(), "event_id": e.EventID(), "user": user}
	if address := e.PageURL(); address != "" {
		page := map[string]any{"url": address}
		kind.Put(page, "referrer", e.Text("referrer"))
		one["page"] = page
	}
	return one, nil
}

func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		Code    *int   `json:"code"`
		Message string `json:"message"`
	}
	v, ok := r.Parse(a, &body)
	switch {
	case !ok || v.Outcome != kind.Done:
		return v
	case body.Code == nil:
		return r.Unclear(a)
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
