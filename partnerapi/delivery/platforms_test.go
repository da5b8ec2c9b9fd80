package delivery

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/store"
)

// platform is a fake that refuses what the real one documents as refused. check returns the answer to a body, and the names of the events
// that were taken.
type platform struct {
	*httptest.Server
	mu    sync.Mutex
	taken []string
	asked int
	body  string // the last one that was taken
}

func newPlatform(t *testing.T, check func(r *http.Request, body map[string]any) (status int, answer string, taken []string)) *platform {
	p := &platform{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		var body map[string]any
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		if err != nil {
			t.Error(err)
		}
		status, answer, taken := check(r, body)
		p.mu.Lock()
		p.asked++
		if p.taken = append(p.taken, taken...); len(taken) > 0 {
			p.body = string(text)
		}
		p.mu.Unlock()
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *platform) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.taken)
}

var isHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// fakeMeta is the Conversions API: it refuses a whole request for one event that is wrong.
func fakeMeta(r *http.Request, body map[string]any) (int, string, []string) {
	fail := func(code int, message string) (int, string, []string) {
		return 400, fmt.Sprintf(`{"error":{"message":%q,"type":"OAuthException","code":%d}}`, message, code), nil
	}
	if r.Header.Get("Authorization") != "Bearer right" {
		return fail(190, "Invalid OAuth access token")
	}
	if r.URL.Path != "/v24.0/123456/events" || r.Method != "POST" {
		return fail(100, "Unsupported post request")
	}
	var names []string
	for _, one := range body["data"].([]any) {
		e := one.(map[string]any)
		at, _ := e["event_time"].(float64)
		if age := time.Since(time.Unix(int64(at), 0)); age > 7*24*time.Hour || age < -time.Minute {
			return fail(100, "Event Timestamp Too Old")
		}
		user, _ := e["user_data"].(map[string]any)
		for _, name := range []string{"em", "ph", "fn", "ln", "external_id"} {
			if list, ok := user[name].([]any); user[name] != nil && (!ok || !isHash.MatchString(list[0].(string))) {
				return fail(100, "unhashed "+name)
			}
		}
		if e["action_source"] == "website" && (user["client_user_agent"] == nil || e["event_source_url"] == nil) {
			return fail(100, "Missing client_user_agent or event_source_url")
		}
		custom, _ := e["custom_data"].(map[string]any)
		if currency, ok := custom["currency"].(string); ok && len(currency) != 3 {
			return fail(100, "Invalid currency")
		}
		if e["event_name"] == "Purchase" && (custom["value"] == nil || custom["currency"] == nil) {
			return fail(100, "Missing value or currency for a Purchase")
		}
		names = append(names, e["event_name"].(string)+"/"+e["event_id"].(string))
	}
	return 200, fmt.Sprintf(`{"events_received":%d}`, len(names)), names
}

const agreed = `,"consent":{"analytics_storage":"granted","ad_storage":"granted","ad_user_data":"granted"}`

func (b *bed) createPlatform(kind, settings string, secrets map[string]string) Destination {
	b.t.Helper()
	d, _, err := b.s.Create(b.t.Context(), b.m, Change{Type: &kind, Settings: json.RawMessage(settings), Secrets: secrets})
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func TestMetaGetsWhatItTakes(t *testing.T) {
	b, p := newBed(t), newPlatform(t, fakeMeta)
	d := b.createPlatform("meta", fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL), map[string]string{"accessToken": "wrong"})
	page := `,"pageUrl":"https://shop.example/thanks?fbclid=click1","user_agent":"Mozilla/5.0"`
	b.send("m1", "Purchase", agreed+page+`,"event_id":"p1","value":89.5,"currency":"eur","email":" Person@Example.com ","phone":"+49 151 1234567","products":[{"id":"s1","quantity":2,"price":44.75}]`)
	b.until("it says that the token is wrong", func() bool {
		st := b.status(d)
		return st.Word == "failing" && strings.Contains(*st.LastError, "token")
	})
	if _, _, err := b.s.Update(t.Context(), b.m, d.ID, Change{Secrets: map[string]string{"accessToken": "right"}}); err != nil {
		t.Fatal(err)
	}
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 })
	p.mu.Lock()
	body := p.body
	p.mu.Unlock()
	for _, want := range []string{
		`"em":["542d240129883c019e106e3b1b2d3f3cb3537c43c425364de8e951d5a3083345"]`, // the documented hash of person@example.com
		`"fbc":"fb.1.`, `.click1"`, `"content_ids":["s1"]`, `"item_price":44.75`, `"currency":"EUR"`, `"value":89.5`, `"event_id":"p1"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the body has no %s: %s", want, body)
		}
	}
	if strings.Contains(strings.ToLower(body), "person@") || strings.Contains(body, "1511234567") {
		t.Errorf("the body has a person in clear: %s", body)
	}
	// What must not be sent, what Meta refuses, and what is right, all together.
	old := time.Now().Add(-8 * 24 * time.Hour)
	marks := []store.Mark{{Merchant: b.m.ID, Tag: b.tag, Identity: store.Identity{MUID: "m2"}, Name: "Purchase", Time: old,
		Raw: []byte(`{"event":"Purchase","event_id":"old","value":1,"currency":"EUR"` + agreed + page + `}`)}}
	if err := b.engine.Record(t.Context(), marks); err != nil {
		t.Fatal(err)
	}
	b.send("m3", "Purchase", page+`,"event_id":"unasked","value":1,"currency":"EUR"`)
	b.send("m3", "Purchase", page+`,"event_id":"denied","value":1,"currency":"EUR","consent":{"ad_storage":"granted","ad_user_data":"denied"}`)
	b.send("m4", "Purchase", agreed+`,"event_id":"server","value":1,"currency":"EUR"`)
	b.send("m5", "Purchase", agreed+page+`,"event_id":"euros","value":1,"currency":"euros"`)
	b.send("m6", "BeginCheckout", agreed+page+`,"event_id":"c1"`)
	b.send("m6", "AddToCart", agreed+`,"pageUrl":"https://shop.example/","event_id":"no agent"`)
	b.until("all are done", func() bool { st := b.status(d); return st.Delivered == 3 && st.NoConsent == 2 && st.Dead == 3 })
	names := p.names()
	slices.Sort(names)
	if want := []string{"InitiateCheckout/c1", "Purchase/p1", "Purchase/server"}; !slices.Equal(names, want) {
		t.Errorf("Meta has %v, want %v", names, want)
	}
	letters, err := b.s.Deliveries(t.Context(), d, Dead, "")
	if err != nil || len(letters) != 3 {
		t.Fatalf("%+v, %v", letters, err)
	}
	var reasons []string
	for _, l := range letters {
		reasons = append(reasons, l.Reason)
	}
	if all := strings.Join(reasons, "|"); !strings.Contains(all, "older than") || !strings.Contains(all, "Invalid currency") || !strings.Contains(all, "user agent") {
		t.Errorf("%q", all)
	}
}

// fakeGA4 refuses what the validation server of the Measurement Protocol does.
func fakeGA4(r *http.Request, body map[string]any) (int, string, []string) {
	q := r.URL.Query()
	if r.URL.Path != "/mp/collect" || q.Get("measurement_id") != "G-ABCD1234" || q.Get("api_secret") != "right" {
		return 403, "", nil
	}
	list := body["events"].([]any)
	if len(list) > 25 || body["client_id"] == nil || body["consent"] == nil {
		return 400, "", nil
	}
	var names []string
	for _, one := range list {
		e := one.(map[string]any)
		name := e["name"].(string)
		if params := e["params"].(map[string]any); !regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`).MatchString(name) || len(params) > 25 {
			return 400, name, nil
		}
		names = append(names, name+"/"+body["client_id"].(string))
	}
	return 204, "", names
}

func TestGA4GetsWhatItTakes(t *testing.T) {
	b, p := newBed(t), newPlatform(t, fakeGA4)
	d := b.createPlatform("ga4", fmt.Sprintf(`{"measurementId":"G-ABCD1234","endpoint":%q}`, p.URL), map[string]string{"apiSecret": "right"})
	analytics := `,"consent":{"analytics_storage":"granted"}`
	for range 30 {
		b.send("m1", "PageView", analytics+`,"_ga":"GA1.1.111.222","email":"person@example.com"`)
	}
	b.send("m2", "AddToCart", agreed+`,"client_id":"333.444","email":"person@example.com","products":[{"id":"s1","name":"Shoe"}]`)
	b.send("m3", "Purchase", "")
	b.send("m3", "SessionStart", agreed)
	b.until("all are done", func() bool { st := b.status(d); return st.Delivered == 31 && st.NoConsent == 1 && st.Filtered == 1 })
	names := p.names()
	count := map[string]int{}
	for _, name := range names {
		count[name]++
	}
	if count["page_view/111.222"] != 30 || count["add_to_cart/333.444"] != 1 || len(count) != 2 {
		t.Errorf("%v", count)
	}
	if !strings.Contains(p.body, `"ad_user_data":"GRANTED"`) && strings.Contains(p.body, "sha256") {
		t.Errorf("identifiers without consent: %s", p.body)
	}
}

func fakeTikTok(r *http.Request, body map[string]any) (int, string, []string) {
	if r.URL.Path != "/open_api/v1.3/event/track/" || r.Header.Get("Access-Token") != "right" {
		return 200, `{"code":40105,"message":"Access token is incorrect or has been revoked."}`, nil
	}
	if body["event_source"] != "web" || body["event_source_id"] != "COQDA8RC77U2TMR44LI0" {
		return 200, `{"code":40002,"message":"event_source_id: Invalid"}`, nil
	}
	var names []string
	for _, one := range body["data"].([]any) {
		e := one.(map[string]any)
		user := e["user"].(map[string]any)
		for _, name := range []string{"email", "phone", "external_id"} {
			if text, ok := user[name].(string); ok && !isHash.MatchString(text) {
				return 200, `{"code":40002,"message":"unhashed"}`, nil
			}
		}
		if properties, _ := e["properties"].(map[string]any); properties["currency"] == "EUROS" {
			return 200, `{"code":40002,"message":"currency: Invalid"}`, nil
		}
		names = append(names, e["event"].(string)+"/"+e["event_id"].(string))
	}
	return 200, `{"code":0,"message":"OK"}`, names
}

func TestTikTokGetsWhatItTakes(t *testing.T) {
	b, p := newBed(t), newPlatform(t, fakeTikTok)
	d := b.createPlatform("tiktok", fmt.Sprintf(`{"pixelCode":"COQDA8RC77U2TMR44LI0","endpoint":%q}`, p.URL), map[string]string{"accessToken": "right"})
	b.send("m1", "Purchase", agreed+`,"event_id":"1","currency":"euros"`)
	b.send("m2", "Signup", agreed+`,"event_id":"2","email":"person@example.com","phone":"+49 151 1234567"`)
	b.send("m2", "Lead", `,"consent":false`)
	b.send("m2", "Lead", `,"event_id":"3","consent":true`)
	b.until("all are done", func() bool { st := b.status(d); return st.Delivered == 2 && st.NoConsent == 1 && st.Dead == 1 })
	names := p.names()
	slices.Sort(names)
	if want := []string{"CompleteRegistration/2", "Lead/3"}; !slices.Equal(names, want) {
		t.Errorf("TikTok has %v, want %v", names, want)
	}
}
