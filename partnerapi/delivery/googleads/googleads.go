// Package googleads sends events to Google Ads by the Data Manager API, POST /v1/events:ingest
// (developers.google.com/data-manager/api: reference/rest/v1/events/ingest and devguides/events/send-events, read 2026-11;
// fields of google.golang.org/api/datamanager/v1, revision 20261106; identifiers as util/src/formatter.ts of
// github.com/googleads/data-manager-node has them).
//
//   - The setting conversions gives each event name the number of a conversion action. Other events are left out. So are
//     events that have none of these: a click id (gclid, gbraid, wbraid), an email, a phone number, an address.
//   - The secret is the key of a service account, as JSON; that account must be a user of the Google Ads account. Each
//     request carries a token that the service signs with the key, as Google's own library does (npm @google-ads/datamanager
//     0.3.0, useJWTAccessWithScope).
//   - eventSource is WEB for all events, since those of a backend are mostly orders of the shop. A mapping can change it.
//   - One wrong event makes Google refuse the whole request. Errors that Google finds later are in the account's
//     diagnostics.
//   - Google counts an event of its browser tag and of the server once if transactionId is the same: the number of the
//     order, else event_id.
package googleads

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mtagd/partnerapi/delivery/kind"
)

// Kind is the kind "googleads".
var Kind = kind.Platform{
	Name:     "googleads",
	Endpoint: "https://datamanager.googleapis.com",
	Secret: kind.Secret{Name: "serviceAccountKey", Check: func(secret string) error {
		_, err := token(secret, time.Now())
		return err
	}},
	Settings: []kind.Setting{
		{Name: "customerId", Type: kind.Text, Required: true, Pattern: customer, Hint: "the ten digits of a Google Ads account"},
		{Name: "loginCustomerId", Type: kind.Text, Pattern: customer, Hint: "the ten digits of the manager account that the key is a user of"},
		{Name: "validateOnly", Type: kind.Flag, Hint: "true to have the events checked only"},
	},
	Limits:      kind.Limits{Events: 2000, Lanes: 1, MaxAge: 90*24*time.Hour - 10*time.Minute, ByEventTime: true}, // the longest time that a click counts
	Conversions: "a conversion action",
	Event:       event,
	Request:     request,
	Read:        read,
}.Kind()

var customer = regexp.MustCompile(`^[0-9]{10}$`)

func request(a *kind.Account, events []*kind.Event, list []any, now time.Time) (string, http.Header, map[string]any) {
	account := func(id string) map[string]any { return map[string]any{"accountType": "GOOGLE_ADS", "accountId": id} }
	var actions []string
	for _, e := range events {
		actions = append(actions, a.Name(e.Name))
	}
	slices.Sort(actions)
	var destinations []any
	for _, action := range slices.Compact(actions) {
		d := map[string]any{"reference": action, "productDestinationId": action, "operatingAccount": account(a.Text("customerId"))}
		if login := a.Text("loginCustomerId"); login != "" {
			d["loginAccount"] = account(login)
		}
		destinations = append(destinations, d)
	}
	body := map[string]any{"destinations": destinations, "events": list, "encoding": "HEX"}
	if a.Flag("validateOnly") {
		body["validateOnly"] = true
	}
	bearer, _ := token(a.Secret, now) // Open has checked the secret
	return "/v1/events:ingest", http.Header{"Authorization": {"Bearer " + bearer}}, body
}

func event(_ *kind.Account, action string, e *kind.Event) (map[string]any, *kind.Refusal) {
	click := map[string]any{} // at most one
	for _, name := range []string{"gclid", "gbraid", "wbraid"} {
		if id := e.ClickID(name); id != "" && len(click) == 0 {
			click[name] = id
		}
	}
	person := identifiers(e)
	if len(click) == 0 && len(person) == 0 {
		return nil, kind.Skip("Google Ads needs a click id, an email, a phone number or an address")
	}
	one := map[string]any{
		"destinationReferences": []string{action}, "eventTimestamp": e.Time.UTC().Format(time.RFC3339Nano), "transactionId": e.EventID(), "eventSource": "WEB",
		"consent": map[string]any{"adUserData": "CONSENT_GRANTED", "adPersonalization": personalization(e)},
	}
	kind.Put(one, "transactionId", e.OrderID())
	kind.Put(one, "currency", strings.ToUpper(e.Text("currency")))
	value, _ := e.Number("value")
	kind.PutNumber(one, "conversionValue", value)
	if len(click) > 0 {
		one["adIdentifiers"] = click
	}
	if len(person) > 0 {
		one["userData"] = map[string]any{"userIdentifiers": person}
	}
	device := map[string]any{}
	kind.Put(device, "ipAddress", e.Address())
	kind.Put(device, "userAgent", e.UserAgent())
	if len(device) > 0 {
		one["eventDeviceInfo"] = device
	}
	if items := items(e); len(items) > 0 && click["gbraid"] == nil && click["wbraid"] == nil { // Google does not accept items with gbraid or wbraid
		one["cartData"] = map[string]any{"items": items}
	}
	return one, nil
}

func personalization(e *kind.Event) string {
	if kind.HasConsent(e.Fields, []string{"ad_personalization"}) {
		return "CONSENT_GRANTED"
	}
	return "CONSENT_DENIED"
}

// items returns the products. A quantity is a whole number, written as a string.
func items(e *kind.Event) (all []any) {
	for _, p := range e.Products() {
		if p.ID == "" {
			continue
		}
		item := map[string]any{"merchantProductId": p.ID}
		if n, err := strconv.ParseInt(p.Quantity.String(), 10, 64); err == nil {
			item["quantity"] = strconv.FormatInt(n, 10)
		}
		kind.PutNumber(item, "unitPrice", p.Price)
		all = append(all, item)
	}
	return all
}

// Titles before and behind a name are no part of it.
var (
	before = regexp.MustCompile(`^(mr|mrs|ms|dr)\.(\s|$)`)
	behind = regexp.MustCompile(`((,\s*|\s+)(jr\.?|sr\.?|2nd|3rd|ii|iii|iv|v|vi|cpa|dc|dds|vm|jd|md|phd)\s?)+$`)
)

// identifiers returns what identifies the visitor. Names are hashed, country and postal code are not.
func identifiers(e *kind.Event) (all []any) {
	if address := kind.GoogleEmail(e.Text("email")); address != "" {
		all = append(all, map[string]any{"emailAddress": kind.Hash(address)})
	}
	if phone := kind.E164(e.Text("phone")); phone != "" {
		all = append(all, map[string]any{"phoneNumber": kind.Hash(phone)})
	}
	name := func(title *regexp.Regexp, names ...string) string {
		return kind.Hash(strings.TrimSpace(title.ReplaceAllString(strings.ToLower(strings.TrimSpace(e.Text(names...))), "")))
	}
	given, family := name(before, "first_name", "firstName"), name(behind, "last_name", "lastName")
	country, code := strings.ToUpper(e.Text("country")), strings.TrimSpace(e.Text(kind.Postcode...))
	if given != "" && family != "" && len(country) == 2 && code != "" {
		all = append(all, map[string]any{"address": map[string]any{"givenName": given, "familyName": family, "regionCode": country, "postalCode": code}})
	}
	return all
}

// token returns a token that is signed with the key of a service account and valid for an hour.
func token(key string, now time.Time) (string, error) {
	var account struct {
		Email string `json:"client_email"`
		Key   string `json:"private_key"`
		KeyID string `json:"private_key_id"`
	}
	if err := json.Unmarshal([]byte(key), &account); err != nil || account.Email == "" {
		return "", errKey
	}
	block, _ := pem.Decode([]byte(account.Key))
	if block == nil {
		return "", errKey
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := parsed.(*rsa.PrivateKey)
	if err != nil || !ok {
		return "", errKey
	}
	part := func(v map[string]any) string {
		text, _ := json.Marshal(v) // cannot fail: strings and numbers only
		return base64.RawURLEncoding.EncodeToString(text)
	}
	signed := part(map[string]any{"alg": "RS256", "typ": "JWT", "kid": account.KeyID}) + "." + part(map[string]any{
		"iss": account.Email, "sub": account.Email, "scope": "https://www.googleapis.com/auth/datamanager",
		"iat": now.Unix() - 10, "exp": now.Unix() + 3590,
	})
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, sum[:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), err
}

var errKey = errors.New("must be the key of a service account, as the JSON that Google Cloud makes")

func read(r kind.Request, a kind.Answer) kind.Verdict {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Details []struct {
				Violations []struct {
					Field       string `json:"field"`
					Description string `json:"description"`
				} `json:"fieldViolations"`
			} `json:"details"`
		} `json:"error"`
	}
	v, ok := r.Parse(a, &body)
	if !ok || v.Outcome == kind.Done {
		return v
	}
	v.Reason = body.Error.Message
	for _, d := range body.Error.Details {
		for _, violation := range d.Violations {
			v.Reason += "; " + violation.Field + " " + violation.Description
		}
	}
	return v
}
