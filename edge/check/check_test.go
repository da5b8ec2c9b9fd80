package check

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

var received = time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)

func findings(t *testing.T, event string) []Finding {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(event), &v); err != nil {
		t.Fatal(err)
	}
	return Event(v, received)
}

// TestFindings has the findings of events besides the one that there is no event_id.
func TestFindings(t *testing.T) {
	const product = `{"muid":"m","event":"AddToCart","value":1,"currency":"EUR","products":[%s]}`
	for _, c := range []struct {
		is, event string
		want      []string // "level code path suggestion"
	}{
		{"a good purchase", `{"muid":"m","event":"Purchase","event_time":"2026-11-20T08:29:00Z","value":89,"currency":"EUR","shipping_cost":4.9,"products":[{"id":"a1","name":"Shoe","price":89,"quantity":1,"variants":[{"attributes":{"size":"42"},"price":{"original":99,"currency":"EUR"},"isAvailable":true}]}],"transaction_id":"7","my_field":[1]}`, nil},
		{"an event of the browser tag", `{"event":"PageView","event_id":"0b2e8a52-5d3c-4f4e-9d3a-0a7c3c0f5a12","event_time":"2026-11-20T08:30:00.123Z","muid":"m","pageUrl":"https://shop.example/","pageTitle":"Shop","referrer":"","language":"en-GB","screen":"1920x1080","timezone":"Europe/Berlin","consent":{"ad_storage":true},"gclid":"x","fbc":"fb.1.1.x","fbp":"x","utm_source":"s","utm_medium":"m","utm_campaign":"c","session_id":"1795000000000","first_referrer":"https://x.example/","first_utm_source":"s"}`, nil},
		{"an event of one of its extras", `{"event":"Click","muid":"m","link_url":"https://x.example/","link_domain":"x.example","link_id":"a","link_classes":"b","outbound":true}`, nil},
		{"a good event of its own name", `{"muid":"m","event":"VoucherPrinted","value":"much"}`, nil},
		{"a letter is missing in the name", `{"muid":"m","event":"Purchse"}`, []string{"warning unknown_event /event Purchase"}},
		{"two letters are swapped", `{"muid":"m","type":"AddTocrat"}`, []string{"warning unknown_event /type AddToCart"}},
		{"the case is another", `{"muid":"m","event":"Pageview"}`, []string{"warning unknown_event /event PageView"}},
		{"a name is known though not pre-defined", `{"muid":"m","event":"PageView"}`, nil},
		{"a short name is near by accident", `{"muid":"m","event":"Load"}`, nil},
		{"SignUp is in use too", `{"muid":"m","event":"SignUp"}`, []string{"info other_spelling /event Signup"}},
		{"a value is text", `{"muid":"m","event":"Purchase","value":"89.5","currency":"EUR"}`, []string{"warning wrong_type /value "}},
		{"a value has a comma", `{"muid":"m","event":"Purchase","value":"89,5","currency":"EUR"}`, []string{"warning wrong_type /value "}},
		{"a value has no currency", `{"muid":"m","event":"Lead","value":8}`, []string{"info no_currency /currency "}},
		{"a currency is small", `{"muid":"m","event":"Lead","currency":"eur"}`, []string{"warning wrong_currency /currency "}},
		{"a currency is a sign", `{"muid":"m","event":"Lead","currency":"€"}`, []string{"warning wrong_currency /currency "}},
		{"a currency is a number", `{"muid":"m","event":"Lead","currency":978}`, []string{"warning wrong_type /currency "}},
		{"null is absent", `{"muid":"m","event":"Lead","currency":null,"value":null,"event_time":null}`, nil},
		{"products are no array", `{"muid":"m","event":"ViewCart","products":{"id":"a"}}`, []string{"warning wrong_type /products "}},
		{"a product is text", fmt.Sprintf(product, `"a"`), []string{"warning wrong_type /products/0 "}},
		{"a product is null", fmt.Sprintf(product, `null`), []string{"warning wrong_type /products/0 "}},
		{"a product has no id", fmt.Sprintf(product, `{"id":"a"},{"name":"b"}`), []string{"warning missing /products/1/id "}},
		{"a product's id is a number", fmt.Sprintf(product, `{"id":12345678}`), []string{"warning wrong_type /products/0/id "}},
		{"a product's price is text", fmt.Sprintf(product, `{"id":"a","price":"25"}`), []string{"warning wrong_type /products/0/price "}},
		{"a variant lacks what it needs", fmt.Sprintf(product, `{"id":"a","variants":[{"attributes":{"a/b":1},"price":{"discounted":"1"},"isAvailable":"true"}]}`), []string{
			"warning wrong_type /products/0/variants/0/attributes/a~1b ",
			"warning wrong_type /products/0/variants/0/isAvailable ",
			"warning missing /products/0/variants/0/price/currency ",
			"warning wrong_type /products/0/variants/0/price/discounted ",
			"warning missing /products/0/variants/0/price/original "}},
		{"products of an event of its own name are its own affair", `{"muid":"m","event":"VoucherPrinted","products":"x"}`, nil},
		{"a muid is a number", `{"muid":7,"email":"a@b.c","event":"Login"}`, []string{"warning wrong_type /muid "}},
		{"identifiers say nothing", `{"muid":" ","email":"ann","phone":"none","deviceId":"undefined","event":"Login"}`, []string{
			"warning empty_identifier /muid ", "warning no_email /email ", "warning no_phone /phone ", "warning placeholder /deviceId "}},
		{"an identifier has another service's name", `{"muid":"m","event":"Login","phone_number":"1","device_id":"x"}`, []string{
			"info unknown_identifier /device_id deviceId", "info unknown_identifier /phone_number phone"}},
		{"a time is a number", `{"muid":"m","event":"Login","event_time":1795000000}`, []string{"warning wrong_type /event_time "}},
		{"a time has no zone", `{"muid":"m","event":"Login","event_time":"2026-11-20T08:30:00"}`, []string{"warning wrong_time /event_time "}},
		{"a time is ahead", `{"muid":"m","event":"Login","event_time":"2026-11-20T08:35:01Z"}`, []string{"warning future_time /event_time "}},
		{"a time is a little ahead", `{"muid":"m","event":"Login","event_time":"2026-11-20T08:35:00Z"}`, nil},
		{"a time is old", `{"muid":"m","event":"Login","event_time":"2024-11-20T08:35:00Z"}`, []string{"warning old_time /event_time "}},
	} {
		t.Run(c.is, func(t *testing.T) {
			var got []string
			for _, f := range findings(t, c.event) {
				if f.Code != "no_event_id" {
					got = append(got, fmt.Sprintf("%s %s %s %s", f.Level, f.Code, f.Path, f.Suggestion))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// The findings about a value show it only in Value, and only when it is short.
func TestMessagesHaveNoValues(t *testing.T) {
	long := strings.Repeat("secret", 10)
	for _, sent := range []string{"secret", long} {
		for _, f := range findings(t, `{"muid":7,"email":"`+sent+`","event":"Lead","event_time":"`+sent+`","value":"`+sent+`","currency":"`+sent+`"}`) {
			if strings.Contains(f.Message+f.Path, "secret") || strings.Contains(f.Value, long) {
				t.Errorf("%+v", f)
			}
		}
	}
}

func TestFindingsAreBounded(t *testing.T) {
	products := strings.Repeat(`{"id":1},`, 5000) + `{}`
	if n := len(findings(t, `{"muid":"m","event":"ViewCart","products":[`+products+`]}`)); n != maxFindings {
		t.Errorf("%d findings", n)
	}
}

func TestSuggestName(t *testing.T) {
	for name, want := range map[string]string{
		"purchase": "Purchase", "PURCHASE": "Purchase", "add_to_cart": "AddToCart", "Add to cart": "AddToCart", "page_view": "PageView",
		"beginCheckut": "BeginCheckout", "my_event": "MyEvent", "sign-up": "Signup",
		"Purchase": "", "VoucherPrinted": "", "": "", "...": "", "1st": "", "été": "", strings.Repeat("x", 4000): "",
	} {
		if got := SuggestName(name); got != want {
			t.Errorf("SuggestName(%.20q) = %q, want %q", name, got, want)
		}
	}
	for _, name := range knownNames {
		if got := SuggestName(name); got != "" {
			t.Errorf("SuggestName(%q) = %q, although it is known", name, got)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abcd", "abcdefghi", 4}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "ab", 1}, {"abc", "abxc", 1}, {"abc", "xbc", 1}, {"ca", "abc", 3}, {"kitten", "sitting", 3}} {
		if got := distance(c.a, c.b, 3); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// The spec has 23 pre-defined events.
func TestThePredefinedEvents(t *testing.T) {
	for _, name := range knownNames {
		if !store.IsEventName(name) {
			t.Errorf("%q is no name", name)
		}
	}
	if len(events) != 23 {
		t.Errorf("%d pre-defined events, want 23", len(events))
	}
}
