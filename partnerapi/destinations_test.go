package partnerapi

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mtagd/partnerapi/delivery"
)

// deliver adds a delivery service to the API.
func (s *service) deliver() {
	s.t.Helper()
	keys, err := delivery.OpenKeyring(filepath.Join(s.t.TempDir(), "secret.key"))
	if err != nil {
		s.t.Fatal(err)
	}
	d := delivery.Open(delivery.Config{Engine: s.engine, Keys: keys, Log: s.api.Log, Now: s.api.Now})
	s.t.Cleanup(func() {
		if err := d.Close(); err != nil {
			s.t.Error(err)
		}
	})
	s.delivery = d
	s.serve(s.engine, &s.dns)
}

func TestDestinations(t *testing.T) {
	s := newService(t)
	s.deliver()
	p, other := s.partner("Acme"), s.partner("Other")
	list := fmt.Sprintf("%s/%s/destinations", merchants, p.merchant("Shop"))
	created := p.post(list, `{"type":"webhook","settings":{"url":"https://shop.example/x"},"paused":true,"secrets":{"authorization":"Bearer very secret"}}`)
	created.is(201)
	id := created.str("destinationId")
	secret := created.str("secrets.signing")
	if !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("the secret is %q", secret)
	}
	one := list + "/" + id
	for name, a := range map[string]answer{
		"read": p.get(one), "list": p.get(list), "change": p.request("PATCH", one, `{"name":"Orders"}`, "Authorization", "Bearer "+p.key),
		"test": p.post(one+"/test", `{"send":false}`),
	} {
		a.in(t).is(200)
		if strings.Contains(a.body, secret) || strings.Contains(a.body, "very secret") {
			t.Errorf("%s shows a secret: %s", name, a.body)
		}
	}
	if strings.Contains(s.log.String(), secret[6:]) {
		t.Error("the log has the secret")
	}
	for _, path := range []string{one, list, one + "/deliveries"} {
		other.get(path).is(404)
	}
	other.post(one+"/test", "{}").is(404)
	for body, field := range map[string]string{
		`{"settings":{"url":"https://x.example"}}`: "type",
		`{"type":"fax"}`:     "type",
		`{"type":"webhook"}`: "settings.url",
		`{"type":"webhook","settings":{"url":"http://x.example"}}`:                                                                    "settings.url",
		`{"type":"webhook","settings":{"url":"https://u:p@x.example"}}`:                                                               "settings.url",
		`{"type":"webhook","settings":{"url":"ftp://x.example"}}`:                                                                     "settings.url",
		`{"type":"webhook","settings":{"url":"https://x.example","URL":"https://evil.example"}}`:                                      "settings.url",
		`{"type":"webhook","settings":{"uri":"https://x.example"}}`:                                                                   "settings.uri",
		`{"type":"webhook","settings":{"url":"https://x.example","batchSize":0}}`:                                                     "settings.batchSize",
		`{"type":"webhook","settings":{"url":"https://x.example","batchSize":"2"}}`:                                                   "settings.batchSize",
		`{"type":"webhook","settings":{"url":"https://x.example","headers":{"a":"b\u000ac"}}}`:                                        "settings.headers",
		`{"type":"webhook","settings":{"url":"https://x.example","batchSize":1001}}`:                                                  "settings.batchSize",
		`{"type":"webhook","settings":{"url":"https://x.example","headers":{"Host":"a"}}}`:                                            "settings.headers",
		`{"type":"webhook","settings":{"url":"https://x.example"},"filter":"a =="}`:                                                   "filter",
		`{"type":"webhook","settings":{"url":"https://x.example"},"events":["add to cart"]}`:                                          "events",
		`{"type":"webhook","settings":{"url":"https://x.example"},"mapping":{"a..b":"c"}}`:                                            "mapping",
		`{"type":"webhook","settings":{"url":"https://x.example"},"mapping":{"a":{}}}`:                                                "mapping",
		`{"type":"webhook","settings":{"url":"https://x.example"},"mapping":{"a":5}}`:                                                 "mapping",
		`{"type":"webhook","settings":null}`:                                                                                          "settings.url",
		`{"type":"webhook","settings":{"url":"https://x.example"},"secrets":{"signing":"short"}}`:                                     "secrets.signing",
		`{"type":"webhook","settings":{"url":"https://x.example"},"secrets":{"password":"short"}}`:                                    "secrets.password",
		`{"type":"webhook","settings":{"url":"https://x.example"},"consent":["Ads"]}`:                                                 "consent",
		`{"type":"webhook","settings":{"url":"https://x.example"},"pause":true}`:                                                      "pause",
		`{"type":"meta","settings":{"pixelId":"123456"}}`:                                                                             "secrets.accessToken",
		`{"type":"meta","settings":{"pixelId":123456},"secrets":{"accessToken":"x"}}`:                                                 "settings.pixelId",
		`{"type":"linkedin","secrets":{"accessToken":"x"}}`:                                                                           "settings.conversions",
		`{"type":"linkedin","settings":{"conversions":{"Lead":"a"}},"secrets":{"accessToken":"x"}}`:                                   "settings.conversions",
		`{"type":"microsoft","settings":{"tagId":"123456","tag":"1"},"secrets":{"accessToken":"x"}}`:                                  "settings.tag",
		`{"type":"googleads","settings":{"customerId":"1234567890","conversions":{"Lead":"1"}},"secrets":{"serviceAccountKey":"{}"}}`: "secrets.serviceAccountKey",
		`{"type":"microsoft","settings":{"tagId":"123456","endpoint":"http://x.example"},"secrets":{"accessToken":"x"}}`:              "settings.endpoint",
	} {
		if a := p.post(list, body).in(t); a.status != 400 || !strings.Contains(a.body, "parameters: "+field+" ") {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	p.request("DELETE", one, "", "Authorization", "Bearer "+p.key).is(200)
	p.get(one).is(404)
	p.get("/v1/partners/destination-types").is(200).has("types.0.type", "webhook").has("types.0.secrets.0.required", false).
		has("types.1.settings.0.name", "pixelId").has("types.1.settings.0.required", true)
	made := p.post(list, `{"type":"meta","settings":{"pixelId":"123456"},"secrets":{"accessToken":"very secret"}}`).is(201)
	if a := p.post(list+"/"+made.str("destinationId")+"/test", `{"send":false}`).is(200); !strings.Contains(a.body, `"authorization":"***"`) || strings.Contains(a.body, "very secret") {
		t.Error(a.body)
	}
}

// What a field must be is said in words that fit its type, and a field inside another has both names.
func TestFieldsOfDestinationsOfAWrongType(t *testing.T) {
	s := newService(t)
	s.deliver()
	p := s.partner("Acme")
	list := fmt.Sprintf("%s/%s/destinations", merchants, p.merchant("Shop"))
	for body, want := range map[string]string{
		`{"type":5}`:                      "type must be a string",
		`{"events":"Purchase"}`:           "events must be a list",
		`{"events":[7]}`:                  "events.0 must be a string",
		`{"consent":{}}`:                  "consent must be a list",
		`{"secrets":"x"}`:                 "secrets must be an object",
		`{"secrets":{"signing":7}}`:       "secrets.signing must be a string",
		`{"settings":7,"type":"webhook"}`: "settings must be an object",
		`{"mapping":"x"}`:                 "mapping must be an object whose values are paths, or objects with from, default or both",
		`{"paused":"yes"}`:                "paused must be true or false",
		`{"a/b":1}`:                       "a/b is not a field that this request can change",
	} {
		if a := p.post(list, body).in(t); a.status != 400 || !strings.Contains(a.body, "parameters: "+want) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}
