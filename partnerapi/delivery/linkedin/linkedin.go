// Package linkedin sends events to the Conversions API of LinkedIn, POST /rest/conversionEvents
// (learn.microsoft.com/linkedin/marketing/integrations/ads-reporting/conversions-api and
// /linkedin/marketing/conversions/conversions-faq, read 2026-11 through the collection "LinkedIn Marketing Solutions
// Versioned APIs", step 10, and github.com/segmentio/action-destinations; the types of identifiers from
// conversions-api-schema of 2026-05-15, as others cite it).
//
//   - The setting conversions gives each event name the number of a conversion rule. Other events are left out. So are
//     events with none of these: an email, li_fat_id, the visitor's address. LinkedIn takes addresses of IPv4 alone, and no
//     user agent.
//   - A request has at most 5,000 events (here 1,000). LinkedIn accepts 600 requests a minute, and events of the last 90
//     days.
//   - The answer has a status for each event. LinkedIn counts an event from the Insight Tag and from the server once if
//     eventId is the same.
//   - LinkedIn supports a version of the API for a year.
package linkedin

import (
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "linkedin".
var Kind = kind.Platform{
	Name:     "linkedin",
	Endpoint: "https://api.linkedin.com",
	Settings: []kind.Setting{
		{Name: "apiVersion", Type: kind.Text, Default: "202605", Pattern: regexp.MustCompile(`^20[0-9]{4}$`), Hint: "a version such as 202605"},
	},
	Limits:      kind.Limits{Events: 1000, Lanes: 1, MaxAge: 90*24*time.Hour - 10*time.Minute, ByEventTime: true},
	Conversions: "a conversion rule",
	Event:       event,
	Request: func(a *kind.Account, _ []*kind.Event, list []any, _ time.Time) (string, http.Header, map[string]any) {
		h := a.Bearer()
		h.Set("LinkedIn-Version", a.Text("apiVersion"))
		h.Set("X-Restli-Protocol-Version", "2.0.0")
		h.Set("X-RestLi-Method", "BATCH_CREATE")
		return "/rest/conversionEvents", h, map[string]any{"elements": list}
	},
	Read: read,
}.Kind()

func event(_ *kind.Account, rule string, e *kind.Event) (map[string]any, *kind.Refusal) {
	var ids []any
	id := func(kind, value string) {
		if value != "" {
			ids = append(ids, map[string]any{"idType": kind, "idValue": value})
		}
	}
	id("SHA256_EMAIL", kind.Hash(kind.Email(e.Text("email"))))
	id("LINKEDIN_FIRST_PARTY_ADS_TRACKING_UUID", e.ClickID("li_fat_id"))
	if ip, err := netip.ParseAddr(e.Address()); err == nil && ip.Unmap().Is4() {
		id("PLAINTEXT_IP_ADDRESS", ip.Unmap().String())
	}
	if len(ids) == 0 {
		return nil, kind.Skip("LinkedIn needs an email, li_fat_id or the visitor's IPv4 address")
	}
	user := map[string]any{"userIds": ids}
	if first, last := e.Text("first_name", "firstName"), e.Text("last_name", "lastName"); first != "" && last != "" {
		info := map[string]any{"firstName": first, "lastName": last}
		kind.Put(info, "title", e.Text("job_title", "jobTitle"))
		kind.Put(info, "companyName", e.Text("company"))
		if country := e.Text("country"); len(country) == 2 {
			info["countryCode"] = strings.ToUpper(country)
		}
		user["userInfo"] = info
	}
	one := map[string]any{
		"conversion": "urn:lla:llaPartnerConversion:" + rule, "conversionHappenedAt": e.Time.UnixMilli(), "eventId": e.EventID(), "user": user,
	}
	value, _ := e.Number("value")
	if currency := strings.ToUpper(e.Text("currency")); value != "" && currency != "" {
		one["conversionValue"] = map[string]any{"currencyCode": currency, "amount": value.String()}
	}
	return one, nil
}

func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		Message  string `json:"message"`
		Elements []struct {
			Status int `json:"status"`
			Error  struct {
				Message string `json:"message"`
			} `json:"error"`
		} `json:"elements"`
	}
	v, ok := r.Parse(a, &body)
	switch {
	case !ok:
		return v
	case v.Outcome != kind.Done:
		v.Reason = body.Message
		return v
	case len(body.Elements) != len(r.Events):
		return r.Unclear(a)
	}
	v.Refused, v.Again = map[int]string{}, map[int]bool{}
	for i, e := range body.Elements {
		switch kind.Standard(kind.Answer{Status: e.Status}).Outcome {
		case kind.Refused:
			v.Refused[i] = e.Error.Message
		case kind.Again:
			v.Again[i], v.Reason = true, e.Error.Message
		}
	}
	return v
}
