package delivery

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// accounts has the settings and the secret of a destination of each ad platform.
var accounts = map[string]struct{ settings, secret string }{
	"meta":      {`{"pixelId":"123456"}`, "accessToken"},
	"ga4":       {`{"measurementId":"G-ABCD1234"}`, "apiSecret"},
	"tiktok":    {`{"pixelCode":"COQDA8RC77U2TMR44LI0"}`, "accessToken"},
	"googleads": {`{"customerId":"1234567890","loginCustomerId":"2345678901","conversions":{"Purchase":"111","Booking":"222"}}`, "serviceAccountKey"},
	"microsoft": {`{"tagId":"123456"}`, "accessToken"},
	"pinterest": {`{"adAccountId":"549755885175"}`, "accessToken"},
	"snap":      {`{"pixelId":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11"}`, "accessToken"},
	"linkedin":  {`{"conversions":{"Purchase":"104012","Booking":"104013"}}`, "accessToken"},
}

// serviceAccount is the key of a service account, as Google Cloud makes it.
var serviceAccount = sync.OnceValues(func() (string, *rsa.PublicKey) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "private_key_id": "k1", "client_email": "shop@example.iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		panic(err)
	}
	return string(text), &key.PublicKey
})

func secretOf(name string) string {
	if key, _ := serviceAccount(); name == "serviceAccountKey" {
		return key
	}
	return "right"
}

func openPlatform(t *testing.T, k kind.Kind, mapping kind.Mapping) kind.Target {
	t.Helper()
	name := k.Secrets[0].Name
	target, err := k.Open(kind.Options{Settings: json.RawMessage(accounts[k.Name].settings), Mapping: mapping, Secrets: map[string][]string{name: {secretOf(name)}}})
	if err != nil {
		t.Fatal(k.Name, err)
	}
	return target
}

func newEvent(t *testing.T, name, fields string) *kind.Event {
	t.Helper()
	at := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
	e := &kind.Event{Received: store.Received{Event: store.Event{ID: "e1", MUID: "m1", Name: name, Time: at, Raw: []byte(fields)}}}
	if err := e.Parse(); err != nil {
		t.Fatal(err)
	}
	return e
}

// order is an event with everything that platforms look for.
const order = `{"event_id":"p1","value":89.5,"currency":"eur","order_id":"o1","email":" Jo.hn+shop@Contoso.com ","phone":"+1 (425) 555-1234",` +
	`"first_name":"John","last_name":"Doe","city":"San Francisco","zip":"SW1 9","country":"GB","user_agent":"Mozilla/5.0","client_ip_address":"192.0.2.1",` +
	`"products":[{"id":"s1","name":"Shoe","category":"Shoes","quantity":2,"price":44.75}],"language":"en-GB","referrer":"https://www.example.com/",` +
	`"pageTitle":"Thanks","pageUrl":"https://shop.example/thanks?gclid=G1&gbraid=G2&wbraid=G3&fbclid=F1&ttclid=T1&msclkid=M1&epik=E1&ScCid=S1&li_fat_id=L1#top",` +
	`"consent":{"analytics_storage":"granted","ad_storage":"granted","ad_user_data":"granted"}}`

// TestWhatPlatformsAreSent compares the requests for one order with testdata/sent.json. The hashes of microsoft are those of
// its guide.
func TestWhatPlatformsAreSent(t *testing.T) {
	text := must(os.ReadFile("testdata/sent.json"))
	type sent struct {
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Body    any               `json:"body"`
	}
	want, got := map[string]sent{}, map[string]sent{}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		if _, ok := accounts[k.Name]; !ok {
			continue
		}
		requests, refusals := openPlatform(t, k, nil).Requests([]*kind.Event{newEvent(t, "Purchase", order)}, time.Now())
		if len(requests) != 1 || len(refusals) > 0 {
			t.Fatalf("%s: %+v", k.Name, refusals)
		}
		s := sent{URL: requests[0].URL, Headers: map[string]string{}}
		for name := range requests[0].Header {
			if s.Headers[name] = requests[0].Header.Get(name); name == "Authorization" && k.Name == "googleads" {
				s.Headers[name] = "Bearer"
			}
		}
		if err := json.Unmarshal(requests[0].Body, &s.Body); err != nil {
			t.Fatal(err)
		}
		if got[k.Name] = s; !reflect.DeepEqual(s, want[k.Name]) {
			t.Errorf("%s: not as in testdata/sent.json", k.Name)
		}
	}
	if t.Failed() {
		all, _ := json.MarshalIndent(got, "", "\t")
		t.Logf("%s", all)
	}
}

// TestAMappingCanReplaceEverything maps onto each field that an event has.
func TestAMappingCanReplaceEverything(t *testing.T) {
	for _, k := range Kinds() {
		if _, ok := accounts[k.Name]; !ok {
			continue
		}
		mapping := kind.Mapping{"deep.er": {From: "email"}}
		for range 2 {
			requests, refusals := openPlatform(t, k, mapping).Requests([]*kind.Event{newEvent(t, "Purchase", order)}, time.Now())
			if len(requests) != 1 || len(refusals) > 0 || !strings.Contains(string(requests[0].Body), `"deep":{"er":" Jo.hn+shop@Contoso.com "}`) {
				t.Errorf("%s: %+v", k.Name, refusals)
			}
			var body struct{ Data, Events, Elements []map[string]any }
			if err := json.Unmarshal(requests[0].Body, &body); err != nil {
				t.Fatal(err)
			}
			for name := range slices.Concat(body.Data, body.Events, body.Elements)[0] {
				if name != "deep" {
					mapping[name] = kind.Source{Default: "x"}
				}
			}
		}
	}
}

// predefined are the names of the pre-defined events.
var predefined = strings.Fields("PageView ViewContent ViewItem Login Signup CompleteRegistration StartTrial AddPaymentInfo AddShippingInfo ViewCart AddToCart " +
	"AddToWishlist RemoveFromCart BeginCheckout Purchase Refund Search Share Subscribe Lead SubmitApplication Contact Donate Schedule")

// TestPlatformsNamePredefinedEvents shows the name of each pre-defined event at each platform, as testdata/names.json has
// it; a missing one is left out.
func TestPlatformsNamePredefinedEvents(t *testing.T) {
	text := must(os.ReadFile("testdata/names.json"))
	want, got := map[string]map[string]string{}, map[string]map[string]string{}
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		account, ok := accounts[k.Name]
		if !ok || strings.Contains(account.settings, "conversions") {
			continue
		}
		target := openPlatform(t, k, nil)
		got[k.Name] = map[string]string{}
		for _, name := range predefined {
			requests, refusals := target.Requests([]*kind.Event{newEvent(t, name, order)}, time.Now())
			if len(refusals) == 1 && refusals[0].Skipped {
				continue
			}
			var body struct{ Data, Events []map[string]any }
			if err := json.Unmarshal(requests[0].Body, &body); err != nil {
				t.Fatal(err)
			}
			one := append(body.Data, body.Events...)[0]
			for _, field := range []string{"event_name", "eventName", "event", "name", "eventType"} {
				if there, ok := one[field].(string); ok {
					got[k.Name][name] = there
					break
				}
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		all, _ := json.MarshalIndent(got, "", "\t")
		t.Errorf("%s", all)
	}
}

// TestGoogleTokenIsValid reads the token with a library that is not ours.
func TestGoogleTokenIsValid(t *testing.T) {
	_, public := serviceAccount()
	for _, k := range Kinds() {
		if k.Name != "googleads" {
			continue
		}
		now := time.Now()
		requests, _ := openPlatform(t, k, nil).Requests([]*kind.Event{newEvent(t, "Purchase", order)}, now)
		token := must(jwt.ParseSigned(strings.TrimPrefix(requests[0].Header.Get("Authorization"), "Bearer "), []jose.SignatureAlgorithm{jose.RS256}))
		var claims jwt.Claims
		var scope struct {
			Scope string `json:"scope"`
		}
		if err := token.Claims(public, &claims, &scope); err != nil {
			t.Fatal(err)
		}
		if err := claims.Validate(jwt.Expected{Issuer: "shop@example.iam.gserviceaccount.com", Subject: "shop@example.iam.gserviceaccount.com", Time: now.Add(59 * time.Minute)}); err != nil {
			t.Error(err)
		}
		if lives := claims.Expiry.Time().Sub(claims.IssuedAt.Time()); lives != time.Hour || scope.Scope != "https://www.googleapis.com/auth/datamanager" || token.Headers[0].KeyID != "k1" {
			t.Errorf("%v, %+v, %+v", lives, scope, token.Headers[0])
		}
		if err := k.Secrets[0].Check(`{"client_email":"a@example.com","private_key":"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}`); err == nil {
			t.Error("a key that is none was taken")
		}
		return
	}
	t.Fatal("there is no such kind")
}
