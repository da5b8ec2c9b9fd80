package partnerapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mtagd/edge/refused"
	"mtagd/store"
	"mtagd/store/testenv"
)

const (
	debugRefused = "/v1/partners/debug/refused"
	debugMark    = "/v1/partners/debug/mark"
)

// tagged creates a merchant with a client-side tag.
func (p *partner) tagged() (merchant, tag string) {
	p.t.Helper()
	merchant = p.merchant("Shop")
	return merchant, p.generate(merchant, "client-side", "").str("tagId")
}

func (p *partner) refuse(merchant, tag string, change ...func(*refused.Event)) {
	e := refused.Event{Merchant: store.MerchantID(merchant), Tag: store.TagID(tag), Status: 400, Code: "event_malformed",
		Message: "event must be PascalCase", Reason: "Write it so.", Path: "/event", Name: "add_to_cart", Origin: "https://www.example.com",
		Object: []byte(`{"event":"add_to_cart","email":"ann@example.com","value":3}`)}
	for _, c := range change {
		c(&e)
	}
	p.api.Refused.Add(&e)
}

func TestListRefused(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	merchant, tag := p.tagged()
	other, otherTag := p.tagged()
	p.get(debugRefused+"?merchantId="+merchant).is(200).keys("", "refused", "since", "dropped").has("refused.0", nil).
		has("since", "2026-11-20T08:30:00Z").has("dropped", 0)

	s.advance(time.Minute)
	p.refuse(merchant, tag)
	s.advance(time.Minute)
	p.refuse(merchant, tag)
	p.refuse(other, otherTag)
	a := p.get(debugRefused + "?merchantId=" + strings.ToUpper(merchant)).is(200)
	a.has("refused.0.at", "2026-11-20T08:31:00Z").has("refused.0.lastAt", "2026-11-20T08:32:00Z").has("refused.0.count", 2).
		has("refused.0.merchantId", merchant).has("refused.0.tagId", tag).has("refused.0.status", 400).has("refused.0.code", "event_malformed").
		has("refused.0.message", "event must be PascalCase").has("refused.0.reason", "Write it so.").has("refused.0.path", "/event").
		has("refused.0.event", "add_to_cart").has("refused.0.suggestion", "AddToCart").has("refused.0.origin", "https://www.example.com").
		has("refused.0.sample.value", "number").has("refused.0.sample.email", "…").has("refused.1", nil)

	s.advance(time.Minute)
	p.refuse(merchant, tag, func(e *refused.Event) { e.Code, e.Path, e.Name, e.Origin, e.Object = "not_json", "", "", "", nil })
	p.get(debugRefused+"?merchantId="+merchant+"&limit=1").is(200).has("refused.0.code", "not_json").has("refused.0.event", nil).
		has("refused.0.suggestion", nil).has("refused.0.origin", nil).has("refused.0.sample", nil).has("refused.1", nil)
	p.get(debugRefused+"?merchantId="+merchant+"&tagId="+tag).is(200).has("refused.1.code", "event_malformed")
	p.get(debugRefused+"?merchantId="+merchant+"&tagId="+otherTag).is(200).has("refused.0", nil)

	s.advance(refused.MaxAge)
	p.get(debugRefused+"?merchantId="+merchant).is(200).has("refused.0", nil).has("since", "2026-11-20T08:33:00Z")
}

func TestListRefusedRefuses(t *testing.T) {
	s := newService(t)
	p, stranger := s.partner("Agency"), s.partner("Other")
	merchant, _ := p.tagged()
	for _, c := range []struct{ query, field, why string }{
		{"", "merchantId", "is required"},
		{"?merchantId=", "merchantId", "must not be empty"},
		{"?merchantId=" + merchant + "&limit=0", "limit", "must be a whole number, 1 or more"},
		{"?merchantId=" + merchant + "&limit=1001", "limit", "must be at most 1000"},
		{"?merchantId=" + merchant + "&page=1", "page", "is not a query parameter of this request"},
		{"?merchantId=" + merchant + "&tagId=", "tagId", "must not be empty"},
	} {
		p.get(debugRefused+c.query).in(t).invalid(c.field, c.why)
	}
	p.get(debugRefused+"?merchantId="+nobody).fails(404, "NOT_FOUND", missing)
	stranger.get(debugRefused+"?merchantId="+merchant).fails(403, "FORBIDDEN", denied)
	p.get(debugRefused + "?merchantId=" + merchant + "&limit=1000").is(200)
}

func TestTryEvents(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	merchant, tag := p.tagged()
	uri := debugMark + "?tagId=" + tag
	p.post(uri, `{"muid":"m","event":"Purchase","event_id":"1","products":[{"id":"a","price":"25"}]}`).is(200).
		has("status", 201).has("answer.message", "Event accepted").has("findings.0.level", "warning").has("findings.0.code", "wrong_type").
		has("findings.0.path", "/products/0/price").has("findings.0.message", `is "25", a string; reports need a number`).
		has("findings.0.suggestion", nil).has("findings.1", nil)
	p.post(uri, `{"muid":"m","event":"Purchse","event_id":"1"}`).is(200).has("status", 201).
		has("findings.0.message", `is "Purchse", not a pre-defined event: did you mean Purchase?`).has("findings.0.suggestion", "Purchase")
	p.post(uri, `{"muid":"m","event":"Login","event_id":"1"}`).is(200).has("status", 201).has("findings.0", nil)
	p.post(uri, `{"email":"ann@example.com","event":"Login"}`).is(200).has("status", 404).has("answer.success", false).
		has("findings.0.level", "error").has("findings.0.code", "no_muid_found")
	p.post(uri, `[{"muid":"m","event":"Login","event_id":"1"},{"muid":"m","event":"login"}]`).is(200).has("status", 200).
		has("answer.accepted", 1).has("answer.results.1.status", 400).has("findings.0.path", "/1/event").has("findings.0.suggestion", "Login")
	p.post(uri, `{"muid":`).is(200).has("status", 400).has("findings.0.code", "not_json")
	p.post(uri, ``).is(200).has("status", 400)
	p.get(events+"?merchantId="+merchant).is(200).has("pagination.total", 0)

	p.patch(merchants+"/"+merchant, `{"identityRequiresSecret":true}`).is(200)
	p.post(uri, `{"email":"ann@example.com","event":"Login"}`).is(200).has("status", 403).has("findings.0.code", "secret_required")
	p.post(uri+"&withSecret=true", `{"email":"ann@example.com","event":"Login"}`).is(200).has("status", 404)
	p.get(debugRefused+"?merchantId="+merchant).is(200).has("refused.0", nil) // what is tried is not remembered
	if strings.Contains(s.log.String(), "ann@") {
		t.Error("an email is in the log")
	}
}

func TestTryEventsRefuses(t *testing.T) {
	s := newService(t)
	p, stranger := s.partner("Agency"), s.partner("Other")
	merchant, tag := p.tagged()
	const event = `{"muid":"m","event":"Login"}`
	p.post(debugMark, event).invalid("tagId", "is required")
	p.post(debugMark+"?tagId=", event).invalid("tagId", "must not be empty")
	p.post(debugMark+"?tagId="+tag+"&withSecret=1", event).invalid("withSecret", "must be one of false, true")
	p.post(debugMark+"?tagId="+tag+"&t=1", event).invalid("t", "is not a query parameter of this request")
	p.post(debugMark+"?tagId=cs_unknown", event).fails(404, "NOT_FOUND", missing)
	stranger.post(debugMark+"?tagId="+tag, event).fails(403, "FORBIDDEN", denied)
	p.post(debugMark+"?tagId="+tag, strings.Repeat(" ", maxBody+1)).is(413)
	s.request("POST", debugMark+"?tagId="+tag, event).is(401)

	p.suspendMerchant(merchant, true)
	p.post(debugMark+"?tagId="+tag, event).is(200).has("status", 403).has("findings.0.code", "tag_suspended")
	p.suspendPartner(true) // whoever is suspended can read
	p.post(debugMark+"?tagId="+tag, event).is(200)
}

// Both requests change nothing: a key of scope read may send them, and they do not count as writes.
func TestDebuggingIsReading(t *testing.T) {
	s := newService(t)
	s.limits = true
	s.serve(s.engine, &s.dns)
	p := s.partner("Agency")
	merchant, tag := p.tagged()
	_, key, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	p.key = string(key)
	for range store.DefaultWritesPerMinute*3 + 10 { // more than the burst of writes
		p.post(debugMark+"?tagId="+tag, `{"muid":"m","event":"Login"}`).is(200)
	}
	p.get(debugRefused + "?merchantId=" + merchant).is(200)
}

// Every entry that the memory can have must fit the document, and its memory what the answer reserves.
func TestDrillManyRefusedEvents(t *testing.T) {
	testenv.Drill(t)
	s := newService(t)
	p := s.partner("Agency")
	merchant, tag := p.tagged()
	object := `{"event":"add_to_cart"`
	for i := range 200 {
		object += fmt.Sprintf(`,"a_field_with_a_name_that_is_long_%d":"x"`, i)
	}
	for i := range refused.MaxEntries + 100 {
		p.refuse(merchant, tag, func(e *refused.Event) { e.Code, e.Object = fmt.Sprint("code", i), []byte(object+"}") })
		s.advance(time.Second)
	}
	a := p.get(debugRefused + "?merchantId=" + merchant + "&limit=1000").is(200)
	if a.at("refused.999") == nil || len(a.body) > 1000*entryMemory/2 {
		t.Errorf("%d bytes", len(a.body))
	}
}
