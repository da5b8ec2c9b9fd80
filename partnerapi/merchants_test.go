package partnerapi

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCreateMerchant(t *testing.T) {
	p := newService(t).partner("Agency")
	for _, c := range []struct{ is, body, name, domain string }{
		{"a name is enough", `{"name":"Shop"}`, "Shop", ""},
		{"a domain is kept", `{"name":"Shop","domain":"Example.CO.UK"}`, "Shop", "example.co.uk"},
		{"a name is trimmed", `{"name":"  Shop \n"}`, "Shop", ""},
		{"null is as good as absent", `{"name":"Shop","domain":null}`, "Shop", ""},
		{"an empty domain is as good as absent", `{"name":"Shop","domain":""}`, "Shop", ""},
		{"unknown fields are ignored", `{"name":"Shop","id":7,"tags":[{}]}`, "Shop", ""},
		{"escapes are read", `{"n\u0061me":"Sh\u00f6p \ud83d\ude00"}`, "Shöp 😀", ""},
		{"256 characters are a name", `{"name":"` + strings.Repeat("ö", 256) + `"}`, strings.Repeat("ö", 256), ""},
		{"markup is only text", `{"name":"<script>\"&"}`, `<script>"&`, ""},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.post(merchants, c.body).in(t)
			a.is(201).has("name", c.name).has("createdAt", "2026-11-20T08:30:00Z")
			if c.domain == "" {
				a.keys("", "merchantId", "name", "createdAt")
			} else {
				a.keys("", "merchantId", "name", "domain", "createdAt").has("domain", c.domain)
			}
			got := p.get(merchants + "/" + a.str("merchantId")).in(t)
			got.is(200).has("name", c.name)
			if c.domain != "" {
				got.has("domain", c.domain)
			}
		})
	}
}

// A merchant can require a secret from its first moment. The request that is repeated gets the same answer, another one does
// not.
func TestCreateMerchantThatRequiresASecret(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	const body = `{"name":"Shop","identityRequiresSecret":true}`
	a := p.post(merchants, body).is(201).has("identityRequiresSecret", true)
	p.get(merchants+"/"+a.str("merchantId")).is(200).has("identityRequiresSecret", true)
	if status, answer := s.send("POST", merchants, p.key, "order-1", body); status != 201 {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := s.send("POST", merchants, p.key, "order-1", body); status != 201 || !strings.Contains(answer, `"identityRequiresSecret":true`) {
		t.Errorf("again: %d %s", status, answer)
	}
	if status, answer := s.send("POST", merchants, p.key, "order-1", `{"name":"Shop"}`); status != 422 {
		t.Errorf("without the option: %d %s", status, answer)
	}
}

func TestCreateMerchantRefuses(t *testing.T) {
	const notJSON = "must be valid JSON in UTF-8, without repeated names"
	p := newService(t).partner("Agency")
	for _, c := range []struct{ is, body, field, why string }{
		{"a missing name", `{}`, "name", "is required and must not be empty"},
		{"an empty name", `{"name":""}`, "name", "is required and must not be empty"},
		{"a name of spaces", `{"name":" \t "}`, "name", "is required and must not be empty"},
		{"null for a name", `{"name":null}`, "name", "is required and must not be empty"},
		{"a name in another case", `{"Name":"Shop"}`, "name", "is required and must not be empty"},
		{"257 characters", `{"name":"` + strings.Repeat("x", 257) + `"}`, "name", "must have at most 256 characters"},
		{"a number for a name", `{"name":7}`, "name", "must be a string"},
		{"a list for a name", `{"name":["Shop"]}`, "name", "must be a string"},
		{"an object for a name", `{"name":{"first":"Shop"}}`, "name", "must be a string"},
		{"true for a name", `{"name":true}`, "name", "must be a string"},
		{"a text for an option", `{"name":"Shop","identityRequiresSecret":"yes"}`, "identityRequiresSecret", "must be true or false"},
		{"a number for a domain", `{"name":"Shop","domain":7}`, "domain", "must be a string"},
		{"a bad domain", `{"name":"Shop","domain":"shop"}`, "domain", "must be a domain name such as example.com"},
		{"spaces for a domain", `{"name":"Shop","domain":" "}`, "domain", "must be a domain name such as example.com"},
		{"a subdomain", `{"name":"Shop","domain":"a.example.com"}`, "domain", "must be the root domain example.com, without a subdomain"},
		{"no body", ``, "body", "must be a JSON object"},
		{"spaces", "  \n", "body", "must be a JSON object"},
		{"null", `null`, "body", "must be a JSON object"},
		{"a number", "\t7 ", "body", "must be a JSON object"},
		{"a list", `[{"name":"Shop"}]`, "body", "must be a JSON object"},
		{"a string", `"Shop"`, "body", "must be a JSON object"},
		{"a form", `name=Shop`, "body", notJSON},
		{"a word", `Shop`, "body", notJSON},
		{"half a list", `[{"name":"Shop"}`, "body", notJSON},
		{"null and more", `null,`, "body", notJSON},
		{"a byte order mark", "\ufeff{\"name\":\"Shop\"}", "body", notJSON},
		{"half an object", `{"name":"Shop"`, "body", notJSON},
		{"something after the object", `{"name":"Shop"} x`, "body", notJSON},
		{"two objects", `{"name":"Shop"}{}`, "body", notJSON},
		{"a trailing comma", `{"name":"Shop",}`, "body", notJSON},
		{"single quotes", `{'name':'Shop'}`, "body", notJSON},
		{"a comment", `{/**/"name":"Shop"}`, "body", notJSON},
		{"a control character in a string", "{\"name\":\"a\x01\"}", "body", notJSON},
		{"a name given twice", `{"name":"a","name":"b"}`, "body", notJSON},
		{"a name given twice in two spellings", `{"name":"a","n\u0061me":"b"}`, "body", notJSON},
		{"invalid UTF-8", "{\"name\":\"\xff\"}", "body", notJSON},
		{"half a surrogate pair", `{"name":"\ud800"}`, "body", notJSON},
		{"nesting without end", `{"x":` + strings.Repeat("[", 60000), "body", notJSON},
		{"deep nesting", `{"name":"a","x":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `}`, "body", notJSON},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.post(merchants, c.body).in(t)
			a.invalid(c.field, c.why)
		})
	}
	p.get(merchants).has("pagination.totalItems", 0)
}

func TestAnyContentTypeIsReadAsJSON(t *testing.T) {
	p := newService(t).partner("Agency")
	for _, contentType := range []string{"application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"} {
		p.request("POST", merchants, `{"name":"Shop"}`, "Authorization", "Bearer "+p.key, "Content-Type", contentType).is(201)
	}
}

func TestGetMerchant(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	id := p.merchant("Shop")

	p.get(merchants+"/"+id).is(200).keys("", "merchantId", "name", "createdAt", "tracktags", "usage").has("usage.events", 0).
		has("merchantId", id).has("name", "Shop").keys("tracktags")
	p.get(merchants+"/"+strings.ToUpper(id)).is(200).has("merchantId", id)

	other.get(merchants+"/"+id).fails(404, "NOT_FOUND", missing)
	p.get(merchants+"/"+nobody).fails(404, "NOT_FOUND", missing)
	for _, bad := range []string{
		"x", "1", id + "0", id[1:], "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""),
		"6ba7b810-9dad-11d1-80b4-00c04fd430c8", // version 1
		"00000000-0000-0000-0000-000000000000", "%20", "%00",
	} {
		p.get(merchants+"/"+bad).invalid("merchantId", "must be a UUID v4")
	}
}

func TestMerchantShowsItsTags(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	oldest := p.generate(id, "server-side", "example.com")
	s.advance(time.Second)
	client := p.generate(id, "client-side", "")

	p.get(merchants).is(200).
		has("merchants.0.tracktags.client-side.tagId", client.str("tagId")).
		has("merchants.0.tracktags.server-side.tagId", oldest.str("tagId"))
	p.get(merchants+"/"+id).is(200).
		has("tracktags.client-side.tagId", client.str("tagId")).
		has("tracktags.server-side.tagId", oldest.str("tagId")).
		keys("tracktags", "client-side", "server-side").
		keys("tracktags.client-side", "tagId", "subdomain", "status", "createdAt").
		has("tagId", oldest.str("tagId")).
		has("tracktags.client-side.subdomain", "tags.example.net").
		has("tracktags.client-side.status", "active").
		has("tracktags.client-side.createdAt", "2026-11-20T08:30:01Z").
		has("tracktags.server-side.subdomain", oldest.str("record.name")+".example.com").
		has("tracktags.server-side.status", "inactive")
}

func TestListMerchants(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	other.merchant("Theirs")

	p.get(merchants).is(200).has("pagination.totalPages", 0).has("pagination.totalItems", 0)
	if got := p.get(merchants).body; !strings.Contains(got, `"merchants":[]`) {
		t.Errorf("without merchants, merchants must be an empty list: %s", got)
	}
	for i := range 25 {
		p.merchant(fmt.Sprint("Shop ", i))
	}
	for _, c := range []struct {
		is, query          string
		page, limit, pages int
		next, previous     bool
		first              any // name of the first merchant
		count              int
	}{
		{"ten to a page, oldest first", "", 1, 10, 3, true, false, "Shop 0", 10},
		{"a page between", "?page=2", 2, 10, 3, true, true, "Shop 10", 10},
		{"the last page is what remains", "?page=3", 3, 10, 3, false, true, "Shop 20", 5},
		{"a page past the end is empty", "?page=4", 4, 10, 3, false, true, nil, 0},
		{"a page far past the end is empty", "?page=92233720368547758&limit=100", 92233720368547758, 100, 1, false, true, nil, 0},
		{"all on one page", "?limit=100", 1, 100, 1, false, false, "Shop 0", 25},
		{"one to a page", "?page=25&limit=1", 25, 1, 25, false, true, "Shop 24", 1},
		{"a last page that is full", "?page=5&limit=5", 5, 5, 5, false, true, "Shop 20", 5},
	} {
		t.Run(c.is, func(t *testing.T) {
			a := p.get(merchants + c.query).in(t)
			a.is(200).keys("", "merchants", "pagination").
				keys("pagination", "currentPage", "itemsPerPage", "totalItems", "totalPages", "hasNextPage", "hasPreviousPage").
				has("pagination.currentPage", c.page).has("pagination.itemsPerPage", c.limit).
				has("pagination.totalItems", 25).has("pagination.totalPages", c.pages).
				has("pagination.hasNextPage", c.next).has("pagination.hasPreviousPage", c.previous).
				has("merchants.0.name", c.first)
			if got := len(a.at("merchants").([]any)); got != c.count {
				t.Errorf("%d merchants, want %d", got, c.count)
			}
		})
	}
}

func TestPageParameters(t *testing.T) {
	const number, once = "must be a whole number, 1 or more", "is given more than once"
	p := newService(t).partner("Agency")
	for _, c := range []struct{ query, field, why string }{
		{"page=0", "page", number},
		{"page=-1", "page", number},
		{"page=abc", "page", number},
		{"page=", "page", number},
		{"page", "page", number},
		{"page=1.5", "page", number},
		{"page=1e2", "page", number},
		{"page=0x1", "page", number},
		{"page=1_0", "page", number},
		{"page=+1", "page", number},
		{"page=%2B1", "page", number},
		{"page=%201", "page", number},
		{"page=1%00", "page", number},
		{"page=%D9%A1", "page", number}, // an Arabic one
		{"page=1&page=1", "page", once},
		{"p%61ge=0", "page", number},
		{"page=99999999999999999999999999x", "page", number},
		{"page=-99999999999999999999999999", "page", number},
		{"page=00", "page", number},
		{"page=92233720368547759", "page", "is too large"},
		{"page=9223372036854775808", "page", "is too large"},
		{"limit=100&page=1" + strings.Repeat("0", 100), "page", "is too large"},
		{"limit=0", "limit", number},
		{"limit=-5", "limit", number},
		{"limit=", "limit", number},
		{"limit=ten", "limit", number},
		{"limit=101", "limit", "must be at most 100"},
		{"limit=18446744073709551617", "limit", "must be at most 100"},
		{"limit=1&limit=2", "limit", once},
		{"page=0&limit=0", "page", number},
	} {
		t.Run(c.query, func(t *testing.T) {
			for _, uri := range []string{merchants + "?" + c.query, events + "?merchantId=x&" + c.query} {
				a := p.get(uri).in(t)
				a.invalid(c.field, c.why)
			}
		})
	}
}

func TestMerchantFiltersAreNoLongerThanANameMayBe(t *testing.T) {
	p := newService(t).shops(1)
	for _, name := range []string{"name", "domain"} {
		t.Run(name, func(t *testing.T) {
			list := "/v1/partners/merchant?" + name + "="
			p.get(list + strings.Repeat("%C3%84", 256)).in(t).is(200)
			p.get(list+strings.Repeat("%C3%84", 257)).in(t).invalid(name, "must have at most 256 characters")
		})
	}
}
