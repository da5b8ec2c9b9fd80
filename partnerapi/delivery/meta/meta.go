// Package meta sends events to the Conversions API of Meta, as its documentation has it
// (developers.facebook.com/documentation/ads-commerce/conversions-api: parameters/server-event of 2026-02-12,
// parameters/customer-information-parameters of 2026-01-09, using-the-api of 2026-02-06).
//
//   - One event older than 7 days makes Meta refuse its whole request, so older ones are never sent.
//   - An event of a website needs the page and the visitor's user agent. With deliverClientDetails the service adds the user
//     agent. Without it the page sends user_agent, for example by mtag('set', {user_agent: navigator.userAgent}).
//   - Meta counts an event of the browser's pixel and of the server once if event name and event_id are the same.
package meta

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "meta".
var Kind = kind.Platform{
	Name:     "meta",
	Endpoint: "https://graph.facebook.com",
	Settings: []kind.Setting{
		{Name: "pixelId", Type: kind.Text, Required: true, Pattern: regexp.MustCompile(`^[0-9]{5,20}$`), Hint: "the number of a dataset (pixel)"},
		{Name: "apiVersion", Type: kind.Text, Default: "v24.0", Pattern: regexp.MustCompile(`^v[0-9]{2}\.0$`), Hint: "a version such as v24.0"},
		{Name: "testEventCode", Type: kind.Text, Hint: "the code of the page Test events"},
	},
	Limits: kind.Limits{Events: 1000, Lanes: 1, MaxAge: 7*24*time.Hour - 10*time.Minute, ByEventTime: true},
	Names: map[string]string{
		"ViewItem": "ViewContent", "Signup": "CompleteRegistration", "SignUp": "CompleteRegistration", "BeginCheckout": "InitiateCheckout",
	},
	Custom: func(name string) string { return name },
	Event:  event,
	Shop: kind.ShopNames{
		Value: "value", Currency: "currency", Order: "order_id", Search: "search_string",
		IDs: "content_ids", Items: "contents", Type: "content_type", ID: "id", Count: "quantity", Price: "item_price",
	},
	ShopInto: "custom_data",
	Request:  request,
	Read:     read,
}.Kind()

func request(a *kind.Account, _ []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
	body := map[string]any{"data": list}
	kind.Put(body, "test_event_code", a.Text("testEventCode"))
	return "/" + a.Text("apiVersion") + "/" + a.Text("pixelId") + "/events", a.Bearer(), body
}

func event(_ *kind.Account, name string, e *kind.Event) (map[string]any, *kind.Refusal) {
	if !e.IsFromServer() && e.UserAgent() == "" {
		return nil, &kind.Refusal{Reason: "Meta needs the user agent of a website's visitor: switch client details on, or let the page send it as user_agent"}
	}
	user := e.HashedPerson()
	if short, _, ok := strings.Cut(e.Text(kind.Postcode...), "-"); ok { // as Meta's SDK has it
		user["zp"] = []string{kind.Hash(kind.Letters(short))}
	}
	user["external_id"] = []string{kind.Hash(string(e.MUID))}
	kind.Put(user, "fbp", e.Text("fbp", "_fbp"))
	kind.Put(user, "fbc", clickID(e))
	one := map[string]any{"event_name": name, "event_time": e.Time.Unix(), "event_id": e.EventID(), "user_data": user, "action_source": "website"}
	if e.IsFromServer() {
		one["action_source"] = "system_generated"
	}
	kind.Put(one, "action_source", e.Text("action_source"))
	kind.Put(one, "event_source_url", e.PageURL())
	kind.Put(one, "referrer_url", e.Text("referrer"))
	return one, nil
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

// read reads an answer. Meta also answers temporary errors with 400, such as those of the token and of rate limits.
func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		Received *int `json:"events_received"`
		Error    struct {
			Message     string `json:"message"`
			UserMessage string `json:"error_user_msg"`
			Code        int    `json:"code"`
			IsTransient bool   `json:"is_transient"`
		} `json:"error"`
	}
	v, ok := r.Parse(a, &body)
	if v.Outcome == kind.Done && body.Received != nil && *body.Received < len(r.Events) {
		v = kind.Verdict{Outcome: kind.Refused, Reason: fmt.Sprintf("Meta has received %d of %d events", *body.Received, len(r.Events))}
	}
	e := body.Error
	if !ok || e.Code == 0 {
		return v
	}
	if v.Outcome == kind.Done { // an error, whatever the status
		v.Outcome = kind.Again
	}
	v.Reason = strings.TrimSpace(e.Message + " " + e.UserMessage)
	switch c := e.Code; {
	case e.IsTransient, c == 1, c == 2, c == 4, c == 17, c == 32, c == 341, c == 613, c >= 80000 && c < 90000: // it passes
		v.Outcome = kind.Again
	case c == 102, c == 190, c == 3, c == 10, c >= 200 && c < 300: // the token: the merchant can set another one
		v.Outcome = kind.Again
	}
	return v
}
