package refused

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"mtagd/edge/check"
	"mtagd/store"
)

const merchantID store.MerchantID = "0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a11"

// TestNothingPersonalIsKept puts emails, phone numbers, ids of devices and names of persons everywhere in events, and
// demands that no entry has one of them.
func TestNothingPersonalIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
		m := newSilent(func() time.Time { return now })
		p := newPerson(t)
		object := p.event(t)
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		e := Event{
			Merchant: merchantID, Tag: "cs_x", Status: 400, Code: "event_malformed", Message: "no", Object: text,
			Origin: rapid.SampledFrom([]string{"https://shop.example", "https://" + p.any(t) + ".example", "https://" + p.any(t), "https://a@" + p.any(t), p.any(t)}).Draw(t, "origin"),
		}
		e.Name, _ = object["event"].(string)
		for i, field := range []string{"muid", "email", "phone", "deviceId"} {
			e.Identifiers[i], _ = object[field].(string)
		}
		m.Add(&e)
		var decoded map[string]any
		if err := json.Unmarshal(text, &decoded); err != nil {
			t.Fatal(err)
		}
		for _, f := range check.Event(decoded, now) {
			odd := e
			odd.Status, odd.Code, odd.Path, odd.Reason, odd.Suggests = 201, f.Code, f.Path, f.Message, f.Suggestion
			m.Add(&odd)
		}
		for _, entry := range m.List(merchantID, "", MaxEntries).Entries {
			kept := strings.ToLower(fmt.Sprintf("%+v %s", entry, entry.Sample))
			for _, secret := range p.secrets() {
				if strings.Contains(kept, strings.ToLower(secret)) {
					t.Fatalf("%q of %s is in %s", secret, text, kept)
				}
			}
			if entry.Sample != nil && !json.Valid(entry.Sample) {
				t.Fatalf("not JSON: %s", entry.Sample)
			}
		}
	})
}

// newSilent returns a memory without a timer. A timer would keep the memory from being freed.
func newSilent(now func() time.Time) *Memory {
	m := New(now)
	m.sweeping = true
	return m
}

// person is somebody whom events name.
type person struct {
	name, email, phone, device, muid string
}

func newPerson(t *rapid.T) person {
	name := rapid.StringMatching(`[a-z]{3}q[a-z]{2,6}z[A-Z]?`).Draw(t, "name") // no word of the contract has this form
	return person{
		name:   name,
		email:  name + rapid.SampledFrom([]string{"", ".x", "+shop"}).Draw(t, "tag") + "@example.org",
		phone:  rapid.SampledFrom([]string{"+49", "0049", "", "(0)"}).Draw(t, "prefix") + rapid.StringMatching(`[0-9]{7,12}`).Draw(t, "phone"),
		device: rapid.StringMatching(`[A-F]{2}[0-9]{6}-[a-f0-9]{12}`).Draw(t, "device"),
		muid:   rapid.StringMatching(`[a-f]{2}[0-9]{6}-[0-9]{4}-4[0-9]{3}-9[0-9]{3}-[0-9]{12}`).Draw(t, "muid"),
	}
}

func (p person) secrets() []string { return []string{p.name, p.email, p.phone, p.device, p.muid} }

func (p person) any(t *rapid.T) string { return rapid.SampledFrom(p.secrets()).Draw(t, "secret") }

// event returns an event that names the person at the usual places and at others.
func (p person) event(t *rapid.T) map[string]any {
	e := p.object(t, 0)
	// The service knows what to hide by the fields with identifiers. The person's name is in the email.
	e[rapid.SampledFrom([]string{"email", "mail", "e-mail", "user_email"}).Draw(t, "email")] = p.email
	if rapid.Bool().Draw(t, "muid") {
		e["muid"] = p.muid
	}
	e[rapid.SampledFrom([]string{"phone", "phone_number", "Tel"}).Draw(t, "phone")] = p.phone
	e[rapid.SampledFrom([]string{"deviceId", "device_id"}).Draw(t, "device")] = p.device
	e["event"] = rapid.SampledFrom([]any{"Purchase", "Purchse", "purchase", "Bought", p.name, strings.ToUpper(p.name[:1]) + p.name[1:], "Purchase" + p.name,
		p.email, p.phone, p.device, "P" + strings.Trim(p.phone, "+()"), 7, nil}).Draw(t, "event")
	return e
}

func (p person) object(t *rapid.T, depth int) map[string]any {
	object := map[string]any{}
	for range rapid.IntRange(0, 6).Draw(t, "fields") {
		name := rapid.SampledFrom([]string{"value", "currency", "products", "id", "price", "coupon", "my_field", "curency", "attributes", "variants", "event_time",
			"content_event", "event_source", p.name, "of_" + p.name, p.email, p.phone, p.device, p.muid, "x" + p.phone}).Draw(t, "field")
		object[name] = p.value(t, depth+1)
	}
	return object
}

func (p person) value(t *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
	case kind < 5:
		return p.any(t)
	case kind == 5:
		return 4917012345678
	case kind == 6:
		return "about " + p.any(t)
	case kind < 8 && depth < 6:
		return p.object(t, depth)
	case depth < 6:
		list := []any{}
		for range rapid.IntRange(0, 5).Draw(t, "elements") {
			list = append(list, p.value(t, depth+1))
		}
		return list
	}
	return nil
}

func TestSample(t *testing.T) {
	for _, c := range []struct{ is, event, name, want string }{
		{"a purchase", `{"event":"Purchse","muid":"abc","email":"ann@example.com","value":"25","currency":"EUR","ok":true,"none":null,"products":[{"id":"a1","price":"25"},{"id":2},3,4,5]}`, "Purchse",
			`{"currency":"EUR","email":"…","event":"Purchse","muid":"…","none":null,"ok":"boolean","products":[{"id":"string of 2","price":"string of 2"},{"id":"number"},"number","2 more"],"value":"string of 2"}`},
		{"a name that is not kept", `{"event":"ann@example.com"}`, "", `{"event":"string of 15"}`},
		{"names inside are those of the contract", `{"my_data":{"ann":1,"price":2}}`, "", `{"my_data":{"price":"number","…":"1 more"}}`},
		{"words of a few fields", `{"event_source":"server","content_event":"Ann"}`, "", `{"content_event":"string of 3","event_source":"server"}`},
		{"deep objects", `{"data":{"data":{}},"products":[[[[[[1]]]]]]}`, "", `{"data":{"…":"1 more"},"products":[[[["array"]]]]}`},
	} {
		t.Run(c.is, func(t *testing.T) {
			object := decode([]byte(c.event))
			if got := string(sample(object, c.name, identifiersOf(&Event{}, object))); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	large := `{"a0":0`
	for i := range 300 {
		large += fmt.Sprintf(`,"field_%d":%d`, i, i)
	}
	if got := sample(decode([]byte(large+"}")), "", &identifiers{}); len(got) > 4<<10 {
		t.Errorf("a sample of %d bytes", len(got))
	}
}

// FuzzEvent makes entries of any text. What is kept of an event is bounded, and its sample is JSON.
func FuzzEvent(f *testing.F) {
	f.Add(`{"event":"Purchse","products":[{"id":1},[[[[[]]]]]],"a/b~":{"":null}}`, "add to cart", "https://shop.example", "/a~1b/0", "ann@example.com")
	f.Add(`{"\ud83d":"\ud83d"}`, "Été", "https://[::1]:80", "//", "")
	f.Add("{\"\xff\":1e999}", "\xff", "http://\xff", "x", "\xff")
	f.Fuzz(func(t *testing.T, object, name, origin, path, id string) {
		sent := Event{Merchant: merchantID, Name: name, Origin: origin, Path: path, Object: []byte(object), Identifiers: [5]string{id}}
		e := newEntry(&sent, keyOf(&sent))
		if e.Sample != nil && !json.Valid(e.Sample) || len(e.Sample) > 8<<10 || !utf8.ValidString(e.Name+e.Origin+e.Suggestion+e.Path) {
			t.Errorf("%+v %s", e, e.Sample)
		}
	})
}

func TestShownOrigin(t *testing.T) {
	for origin, shown := range map[string]bool{
		"https://shop.example": true, "http://127.0.0.1:8080": true, "https://www.shop-24.example:8443": true,
		"": false, "null": false, "ftp://shop.example": false, "https://shop.example/path": false, "https://ann@shop.example": false,
		"https://4917012345678.example": false, "https://ann.example": false, "https://shop.example?x": false, "https://é.example": false,
	} {
		want := ""
		if shown {
			want = origin
		}
		if got := shownOrigin(origin, identifiersOf(&Event{Identifiers: [5]string{"ann@x.org"}}, nil)); got != want {
			t.Errorf("%q: %q", origin, got)
		}
	}
}
