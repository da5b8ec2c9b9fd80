// Package microsoft sends events to the Conversions API of Microsoft Advertising, POST /v1/{tag}/events at
// capi.uet.microsoft.com (learn.microsoft.com/en-us/advertising/guides/uet-conversion-api-integration;
// github.com/MicrosoftDocs/Advertising at commit 015a2a2, read 2026-11).
//
//   - A page view has the type pageLoad and needs the URL of the page. All other events have the type custom; Microsoft
//     matches them to conversion goals by name.
//   - The visitor's id is a hash of the muid unless the event has anonymousId, the vid of Microsoft's ID sync pixel.
//   - Microsoft skips wrong events (continueOnValidationError); the answer has their indexes.
//   - Microsoft counts an event from the UET tag and from the server once if eventId is the same. It documents no maximum
//     age of events: here 7 days.
package microsoft

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "microsoft".
var Kind = kind.Platform{
	Name:     "microsoft",
	Endpoint: "https://capi.uet.microsoft.com",
	Settings: []kind.Setting{
		{Name: "tagId", Type: kind.Text, Required: true, Pattern: regexp.MustCompile(`^[0-9]{4,20}$`), Hint: "the number of a UET tag"},
	},
	Limits:  kind.Limits{Events: 1000, Lanes: 1, MaxAge: 7*24*time.Hour - 10*time.Minute, ByEventTime: true},
	Names:   map[string]string{"PageView": pageLoad},
	Custom:  kind.Snake,
	Event:   event,
	Request: request,
	Read:    read,
}.Kind()

const pageLoad = "pageLoad"

// pageTypes are the kinds of pages for dynamic remarketing.
var pageTypes = map[string]string{"ViewItem": "product", "ViewCart": "cart", "AddToCart": "cart", "Purchase": "purchase", "Search": "searchresults"}

func request(a *kind.Account, _ []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
	return "/v1/" + a.Text("tagId") + "/events", a.Bearer(), map[string]any{"data": list, "continueOnValidationError": true}
}

func event(_ *kind.Account, name string, e *kind.Event) (map[string]any, *kind.Refusal) {
	user := map[string]any{"anonymousId": kind.Hash(string(e.MUID))[:32]}
	kind.Put(user, "anonymousId", e.Text("anonymousId"))
	kind.Put(user, "em", kind.Hash(kind.WithoutAlias(kind.Email(e.Text("email"))))) // as Microsoft normalizes it
	kind.Put(user, "ph", kind.Hash(kind.E164(e.Text("phone"))))
	kind.Put(user, "msclkid", e.ClickID("msclkid"))
	kind.Put(user, "clientIpAddress", e.Address())
	kind.Put(user, "clientUserAgent", e.UserAgent())
	one := map[string]any{"eventType": "custom", "eventName": name, "eventId": e.EventID(), "eventTime": e.Time.Unix(), "adStorageConsent": "G", "userData": user}
	if name == pageLoad {
		if one["eventType"] = pageLoad; e.PageURL() == "" {
			return nil, kind.Skip("Microsoft needs the address of the page of a page view")
		}
		delete(one, "eventName")
	}
	kind.Put(one, "eventSourceUrl", e.PageURL())
	kind.Put(one, "referrerUrl", e.Text("referrer"))
	kind.Put(one, "pageTitle", e.Text("pageTitle"))
	custom := e.Shop(kind.ShopNames{
		Value: "value", Currency: "currency", Order: "transactionId", Search: "searchTerm", IDs: "itemIds", Items: "items",
		ID: "id", Name: "name", Count: "quantity", Price: "price",
	})
	if custom["value"] != nil && custom["items"] != nil {
		custom["ecommTotalValue"] = custom["value"]
	}
	kind.Put(custom, "pageType", pageTypes[e.Name])
	if len(custom) > 0 && name != pageLoad { // a page view cannot have any
		one["customData"] = custom
	}
	return one, nil
}

func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		Received *int `json:"eventsReceived"`
		Error    struct {
			Message string `json:"message"`
			Details []struct {
				Index     int    `json:"index"`
				Message   string `json:"errorMessage"`
				IsWarning bool   `json:"isWarning"`
			} `json:"details"`
		} `json:"error"`
	}
	v, ok := r.Parse(a, &body)
	if !ok {
		return v
	}
	var all []string
	refused, named := map[int]string{}, true
	for _, d := range body.Error.Details {
		if d.IsWarning {
			continue
		}
		all = append(all, d.Message)
		refused[d.Index] = strings.TrimSpace(refused[d.Index] + " " + d.Message)
		named = named && d.Index >= 0 && d.Index < len(r.Events)
	}
	named = named && (body.Received == nil || *body.Received+len(refused) >= len(r.Events))
	switch {
	case v.Outcome == kind.Done && named:
		v.Refused = refused
		return v
	case v.Outcome == kind.Done: // some events are refused, and the answer does not say which
		v.Outcome = kind.Refused
	}
	v.Reason = strings.TrimSpace(body.Error.Message + " " + strings.Join(all, " "))
	return v
}
