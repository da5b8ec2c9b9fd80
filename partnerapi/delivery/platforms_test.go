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

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
)

// platform is a fake that refuses what the real one documents as refused. check returns the answer to a body, and the names
// of the events that were taken.
type platform struct {
	*httptest.Server
	mu    sync.Mutex
	taken []string
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
		p.mu.Lock()
		status, answer, taken := check(r, body)
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
	b.change(d, Change{Secrets: map[string]string{"accessToken": "right"}})
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

// Whatever a destination answers, only the beginning is kept.
func TestLongReasons(t *testing.T) {
	b := newBed(t)
	long := strings.Repeat("x", 30_000)
	p := newPlatform(t, func(r *http.Request, body map[string]any) (int, string, []string) {
		if email := fmt.Sprint(body); strings.Contains(email, "eventId:again") {
			return 500, fmt.Sprintf(`{"message":%q}`, long), nil
		}
		return 200, fmt.Sprintf(`{"elements":[{"status":400,"error":{"message":%q}}]}`, long), []string{"x"}
	})
	d := b.createPlatform("linkedin", fmt.Sprintf(`{"conversions":{"Purchase":"1"},"endpoint":%q}`, p.URL), map[string]string{"accessToken": "right"})
	b.send("m", "Purchase", agreed+`,"email":"a@example.com","event_id":"refused"`)
	b.until("a dead letter", func() bool { return b.status(d).Dead == 1 })
	if got := must(b.s.Preview(t.Context(), d, "", true)); !strings.HasPrefix(got[0].Result, "xxx") {
		t.Errorf("a test with an event that is refused has the result %q", got[0].Result)
	}
	if got := must(b.s.Deliveries(t.Context(), d, Delivered, "")); len(got) > 0 {
		t.Errorf("nothing was taken, and %+v", got)
	}
	b.send("m", "Purchase", agreed+`,"email":"a@example.com","event_id":"again"`)
	b.until("it fails", func() bool { return b.status(d).Word == "failing" })
	all := must(b.s.Deliveries(t.Context(), d, "", ""))
	reasons := []string{*b.status(d).LastError}
	for _, one := range all {
		reasons = append(reasons, one.Reason)
	}
	for _, reason := range reasons {
		if len(reason) > keptReason {
			t.Errorf("a reason has %d bytes", len(reason))
		}
	}
}

// A 2xx answer says nothing of an event unless the platform's answer to it can be read.
func TestAnAnswerThatCannotBeReadIsNoSuccess(t *testing.T) {
	partly := map[string]string{ // takes one of two events, and does not say which
		"meta": `{"events_received":1}`, "microsoft": `{"eventsReceived":1,"error":{"details":[{"index":7,"errorMessage":"wrong"}]}}`,
		"pinterest": `{"events":[{"status":"processed"}]}`, "linkedin": `{"elements":[{"status":201}]}`, "tiktok": `{}`, "snap": `{"status":"INVALID"}`,
	}
	for _, k := range Kinds() {
		if _, is := accounts[k.Name]; !is || k.Name == "ga4" { // whose answer never has a body
			continue
		}
		target := openPlatform(t, k, nil)
		two := kind.Request{Events: make([]*kind.Event, 2)}
		for _, body := range []string{"", "<html>Sign in to this network</html>", `{"elements":[{"sta`} {
			if v := target.Read(two, kind.Answer{Status: 200, Body: []byte(body)}); v.Outcome != kind.Again || v.Reason == "" {
				t.Errorf("%s: %q is %+v", k.Name, body, v)
			}
		}
		cut := []byte(`{"x":"` + strings.Repeat("x", int(two.MaxAnswer())-6))
		if v := target.Read(two, kind.Answer{Status: 200, Body: cut}); v.Outcome != kind.Refused {
			t.Errorf("%s: after an answer that was cut, the request is not divided: %+v", k.Name, v)
		}
		if v := target.Read(two, kind.Answer{Status: 200, Body: []byte(partly[k.Name])}); partly[k.Name] != "" && (v.Took(0) || v.Took(1)) {
			t.Errorf("%s: %s is %+v", k.Name, partly[k.Name], v)
		}
		if v := target.Read(two, kind.Answer{Status: 500, Body: []byte("<html>")}); v.Outcome != kind.Again {
			t.Errorf("%s: 500 is %+v", k.Name, v)
		}
	}
}

// A page that answers instead of the platform may be so long that requests are sent in halves. The destination fails all the
// same.
func TestALongPageIsAFailure(t *testing.T) {
	page := "<html>" + strings.Repeat("x", 100_000)
	b, p := newBed(t), newPlatform(t, func(*http.Request, map[string]any) (int, string, []string) { return 200, page, nil })
	d := b.createPlatform("meta", fmt.Sprintf(`{"pixelId":"123456","endpoint":%q}`, p.URL), map[string]string{"accessToken": "right"})
	pause := func(is bool) {
		b.change(d, Change{Paused: &is})
	}
	pause(true)
	for i := range 3 {
		b.send(fmt.Sprint(i), "Purchase", agreed+`,"email":"a@example.com"`)
	}
	pause(false)
	b.until("it fails", func() bool {
		st := b.status(d)
		return st.Word == "failing" && strings.Contains(*st.LastError, "cannot be read")
	})
	if st := b.status(d); st.Delivered+st.Dead > 0 {
		t.Errorf("%+v", st)
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

// fields returns what is wrong with an object of a request: a field that the platform does not know, or one that should be a
// hash.
func fields(of any, known, hashed string) string {
	object, _ := of.(map[string]any)
	for name, v := range object {
		if !slices.Contains(strings.Fields(known+" "+hashed), name) {
			return "unknown field " + name
		}
		if list, ok := v.([]any); ok && len(list) > 0 {
			v = list[0]
		}
		if text, _ := v.(string); slices.Contains(strings.Fields(hashed), name) && !isHash.MatchString(text) {
			return name + " must be a valid SHA256 string"
		}
	}
	return ""
}

// wrong returns what is wrong with an event that has the fields known, the time at and a currency: the first complaint that
// is not empty.
func wrong(at time.Time, days int, currency any, complaints ...string) string {
	if age := time.Since(at); age > time.Duration(days)*24*time.Hour || age < -time.Minute {
		complaints = append(complaints, "the time is out of range")
	}
	if text, ok := currency.(string); currency != nil && (!ok || len(text) != 3) {
		complaints = append(complaints, "invalid currency")
	}
	for _, complaint := range complaints {
		if complaint != "" {
			return complaint
		}
	}
	return ""
}

func seconds(v any) time.Time {
	n, _ := v.(float64)
	return time.Unix(int64(n), 0)
}

func object(v any, name string) map[string]any {
	of, _ := v.(map[string]any)
	of, _ = of[name].(map[string]any)
	return of
}

// each calls check for each event of a request; it returns the complaints, and the names of the others.
func each(list any, check func(e map[string]any) (name, complaint string)) (complaints, names []string) {
	for _, one := range list.([]any) {
		name, complaint := check(one.(map[string]any))
		if complaints = append(complaints, complaint); complaint == "" {
			names = append(names, name)
		}
	}
	return complaints, names
}

func bad(complaints []string) (i int, is bool) {
	i = slices.IndexFunc(complaints, func(s string) bool { return s != "" })
	return i, i >= 0
}

const common = "event_name event_id event_time event_source_url action_source user_data custom_data"

// fakeGoogle refuses a whole request for one event that is wrong, and names the field.
func fakeGoogle(r *http.Request, body map[string]any) (int, string, []string) {
	if token := r.Header.Get("Authorization"); r.URL.Path != "/v1/events:ingest" || strings.Count(token, ".") != 2 {
		return 401, `{"error":{"code":401,"message":"Request had invalid authentication credentials."}}`, nil
	}
	actions := map[any]bool{}
	for _, d := range body["destinations"].([]any) {
		actions[d.(map[string]any)["reference"]] = object(d, "operatingAccount")["accountId"] == "1234567890"
	}
	complaints, names := each(body["events"], func(e map[string]any) (string, string) {
		at, _ := time.Parse(time.RFC3339, e["eventTimestamp"].(string))
		action := e["destinationReferences"].([]any)[0]
		complaint := fields(e, "destinationReferences eventTimestamp transactionId eventSource consent currency conversionValue adIdentifiers userData", "")
		if !actions[action] || e["adIdentifiers"] == nil && e["userData"] == nil {
			complaint = "no destination, or nobody"
		}
		if list, _ := object(e, "userData")["userIdentifiers"].([]any); len(list) > 0 && complaint == "" {
			complaint = fields(list[0], "", "emailAddress phoneNumber")
		}
		return fmt.Sprint(action, "/", e["transactionId"]), wrong(at, 90, e["currency"], complaint)
	})
	if i, is := bad(complaints); is {
		return 400, fmt.Sprintf(`{"error":{"code":400,"message":"There was a problem with the request.","status":"INVALID_ARGUMENT","details":[{"@type":`+
			`"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"field":"events.events[%d].currency","description":%q}]}]}}`, i, complaints[i]), nil
	}
	return 200, `{"requestId":"1"}`, names
}

// fakeMicrosoft skips events that are wrong, and names them by their place.
func fakeMicrosoft(r *http.Request, body map[string]any) (int, string, []string) {
	if r.URL.Path != "/v1/123456/events" || r.Header.Get("Authorization") != "Bearer right" {
		return 401, `{"error":{"code":"Unauthorized","message":"You are not authorized to access this resource."}}`, nil
	}
	complaints, names := each(body["data"], func(e map[string]any) (string, string) {
		user, custom := object(e, "userData"), object(e, "customData")
		complaint := fields(e, "eventType eventName eventId eventTime eventSourceUrl referrerUrl pageTitle adStorageConsent userData customData", "")
		if e["eventType"] == "pageLoad" && (e["eventSourceUrl"] == nil || custom != nil) || user["anonymousId"] == nil {
			complaint = "'eventSourceUrl' must not be empty."
		}
		return fmt.Sprint(e["eventType"], "/", e["eventName"], "/", e["eventId"]),
			wrong(seconds(e["eventTime"]), 7, custom["currency"], complaint, fields(user, "anonymousId msclkid clientUserAgent clientIpAddress", "em ph"))
	})
	var details []string
	for i, complaint := range complaints {
		if complaint != "" {
			details = append(details, fmt.Sprintf(`{"index":%d,"propertyName":"data[%d]","errorMessage":%q}`, i, i, complaint))
		}
	}
	return 200, fmt.Sprintf(`{"eventsReceived":%d,"error":{"code":"ValidationError","details":[%s]}}`, len(names), strings.Join(details, ",")), names
}

// fakePinterest says of each event whether it was processed.
func fakePinterest(r *http.Request, body map[string]any) (int, string, []string) {
	if r.URL.Path != "/v5/ad_accounts/549755885175/events" || r.Header.Get("Authorization") != "Bearer right" {
		return 401, `{"code":2,"message":"Authentication failed."}`, nil
	}
	complaints, names := each(body["data"], func(e map[string]any) (string, string) {
		user := object(e, "user_data")
		complaint := fields(e, common+" language", "")
		if user["em"] == nil && (user["client_ip_address"] == nil || user["client_user_agent"] == nil) || e["event_id"] == nil {
			complaint = "user_data is missing"
		}
		return fmt.Sprint(e["event_name"], "/", e["event_id"]), wrong(seconds(e["event_time"]), 7, object(e, "custom_data")["currency"], complaint,
			fields(user, "click_id client_ip_address client_user_agent", "em ph fn ln ct st zp country external_id"))
	})
	var events []string
	for _, complaint := range complaints {
		if complaint == "" {
			events = append(events, `{"status":"processed","error_message":null,"warning_message":""}`)
		} else {
			events = append(events, fmt.Sprintf(`{"status":"failed","error_message":%q}`, complaint))
		}
	}
	result := fmt.Sprintf(`{"num_events_received":%d,"num_events_processed":%d,"events":[%s]}`, len(events), len(names), strings.Join(events, ","))
	if _, is := bad(complaints); is {
		return 422, fmt.Sprintf(`{"code":1,"message":"Not all events were successfully processed.","details":%s}`, result), names
	}
	return 200, result, names
}

// fakeSnap refuses a whole request for one event that is wrong.
func fakeSnap(r *http.Request, body map[string]any) (int, string, []string) {
	if r.URL.Path != "/v3/0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11/events" || r.URL.Query().Get("access_token") != "right" {
		return 401, `{"status":"INVALID","reason":"The access token is invalid."}`, nil
	}
	complaints, names := each(body["data"], func(e map[string]any) (string, string) {
		user := object(e, "user_data")
		complaint := fields(e, common, "")
		if user["em"] == nil && user["ph"] == nil && (user["client_ip_address"] == nil || user["client_user_agent"] == nil) {
			complaint = "no identifier"
		}
		return fmt.Sprint(e["event_name"], "/", e["event_id"]), wrong(seconds(e["event_time"]), 37, object(e, "custom_data")["currency"], complaint,
			fields(user, "sc_click_id sc_cookie1 client_ip_address client_user_agent", "em ph fn ln ct st zp country"))
	})
	if i, is := bad(complaints); is {
		return 400, fmt.Sprintf(`{"status":"INVALID","event":%d,"errors":{"codes":["E1"],"error_msgs":[%q]}}`, i, complaints[i]), nil
	}
	return 200, `{"status":"VALID","reason":"All events were processed successfully."}`, names
}

// fakeLinkedIn has a status for each event. It cannot take a booking at the first attempt.
func fakeLinkedIn() func(r *http.Request, body map[string]any) (int, string, []string) {
	busy := map[any]bool{}
	return func(r *http.Request, body map[string]any) (int, string, []string) {
		if r.URL.Path != "/rest/conversionEvents" || r.Header.Get("Authorization") != "Bearer right" || r.Header.Get("X-RestLi-Method") != "BATCH_CREATE" ||
			r.Header.Get("X-Restli-Protocol-Version") != "2.0.0" || r.Header.Get("LinkedIn-Version") != "202605" {
			return 401, `{"status":401,"code":"EMPTY_ACCESS_TOKEN","message":"Empty oauth2 access token"}`, nil
		}
		var statuses []string
		_, names := each(body["elements"], func(e map[string]any) (string, string) {
			ms, _ := e["conversionHappenedAt"].(float64)
			complaint := fields(e, "conversion conversionHappenedAt conversionValue eventId user", "")
			if ids, _ := object(e, "user")["userIds"].([]any); len(ids) == 0 {
				complaint = "user.userIds is required"
			}
			complaint = wrong(time.UnixMilli(int64(ms)), 90, object(e, "conversionValue")["currencyCode"], complaint)
			status := 201
			if complaint != "" {
				status = 422
			} else if id := e["eventId"]; id == "b1" && !busy[id] {
				busy[id], status, complaint = true, 503, "busy"
			}
			statuses = append(statuses, fmt.Sprintf(`{"status":%d,"error":{"message":%q}}`, status, complaint))
			return fmt.Sprint(e["conversion"], "/", e["eventId"]), complaint
		})
		return 200, `{"elements":[` + strings.Join(statuses, ",") + `]}`, names
	}
}

// TestEachPlatformGetsWhatItTakes sends the same events to five platforms: a purchase, one that is wrong, one without
// consent, old ones, an event of the merchant's own, two of somebody unknown, and one that platforms do not have.
func TestEachPlatformGetsWhatItTakes(t *testing.T) {
	b := newBed(t)
	type expected struct {
		kind, settings            string
		fake                      func(r *http.Request, body map[string]any) (int, string, []string)
		delivered, filtered, dead uint64
		names                     string
	}
	var all []expected
	for _, e := range []expected{
		{"googleads", "", fakeGoogle, 3, 3, 2, "111/o1 111/old8 222/b1"},
		{"microsoft", `{"tagId":"123456","eventNames":{"Booking":"book"}}`, fakeMicrosoft, 5, 0, 3,
			"custom/book/b1 custom/logout/out custom/purchase/nobody custom/purchase/p1 pageLoad/<nil>/anon"},
		{"pinterest", `{"adAccountId":"549755885175","eventNames":{"Booking":"custom"}}`, fakePinterest, 2, 3, 3, "checkout/p1 custom/b1"},
		{"snap", `{"pixelId":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11","eventNames":{"Booking":"CUSTOM_EVENT_1"}}`, fakeSnap, 3, 3, 2, "CUSTOM_EVENT_1/b1 PURCHASE/old8 PURCHASE/p1"},
		{"linkedin", "", fakeLinkedIn(), 3, 3, 2,
			"urn:lla:llaPartnerConversion:104012/old8 urn:lla:llaPartnerConversion:104012/p1 urn:lla:llaPartnerConversion:104013/b1"},
	} {
		if e.settings == "" {
			e.settings = accounts[e.kind].settings
		}
		all = append(all, e)
	}
	fakes, destinations := map[string]*platform{}, map[string]Destination{}
	for _, e := range all {
		fakes[e.kind] = newPlatform(t, e.fake)
		secret := accounts[e.kind].secret
		settings := fmt.Sprintf(`%s,"endpoint":%q}`, strings.TrimSuffix(e.settings, "}"), fakes[e.kind].URL)
		destinations[e.kind] = b.createPlatform(e.kind, settings, map[string]string{secret: secretOf(secret)})
	}
	const person = `,"email":"person@example.com"`
	b.send("m1", "Purchase", agreed+`,"event_id":"p1","value":89.5,"currency":"eur","order_id":"o1","email":" Person@Example.com ","phone":"+49 151 1234567"`)
	b.send("m2", "PageView", agreed+`,"event_id":"anon","pageUrl":"https://shop.example/"`)
	b.send("m2", "Purchase", agreed+`,"event_id":"nobody"`)
	b.send("m3", "Purchase", person+`,"event_id":"unasked","value":1,"currency":"EUR"`)
	b.send("m4", "Purchase", agreed+person+`,"event_id":"euros","value":1,"currency":"euros"`)
	b.send("m5", "Booking", agreed+person+`,"event_id":"b1"`)
	b.send("m6", "Logout", agreed+person+`,"event_id":"out"`)
	for _, days := range []int{8, 100} {
		marks := []store.Mark{{Merchant: b.m.ID, Tag: b.tag, Identity: store.Identity{MUID: "m7"}, Name: "Purchase", Time: time.Now().AddDate(0, 0, -days),
			Raw: fmt.Appendf(nil, `{"event":"Purchase","event_id":"old%d"%s%s}`, days, agreed, person)}}
		if err := b.engine.Record(t.Context(), marks); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range all {
		t.Run(e.kind, func(t *testing.T) {
			var st Status
			for deadline := time.Now().Add(time.Minute); st.Delivered+st.Filtered+st.Dead+st.NoConsent < 9; time.Sleep(5 * time.Millisecond) {
				if st = b.status(destinations[e.kind]); time.Now().After(deadline) {
					t.Fatal("it did not come to an end")
				}
			}
			if st.Delivered != e.delivered || st.Filtered != e.filtered || st.Dead != e.dead || st.NoConsent != 1 {
				t.Errorf("it has %+v, want %+v", st, e)
			}
			letters := must(b.s.Deliveries(t.Context(), destinations[e.kind], "", ""))
			for _, l := range letters {
				if strings.Contains(l.Answer, "out of range") {
					t.Errorf("it got an event that is too old: %+v", l)
				}
			}
			p := fakes[e.kind]
			names := p.names()
			slices.Sort(names)
			if strings.Join(names, " ") != e.names {
				t.Errorf("it has %v", names)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if strings.Contains(strings.ToLower(p.body), "person@") || strings.Contains(p.body, "1511234567") {
				t.Errorf("the body has a person in clear: %s", p.body)
			}
		})
	}
}
