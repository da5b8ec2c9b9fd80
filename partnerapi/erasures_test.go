package partnerapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

const (
	erasures     = "/v1/partners/erasures"
	personalData = "/v1/partners/personal-data"
)

// visited returns a partner with a merchant and an event of each of two visitors.
func visited(t *testing.T) (s *service, p *partner, merchant string) {
	s = newService(t)
	p = s.partner("Agency")
	merchant = p.merchant("Shop")
	tag := p.generate(merchant, "client-side", "").str("tagId")
	for _, visitor := range []string{"ann", "bob"} {
		id := store.Identity{MUID: store.MUID("m-" + visitor)}
		id.Add(store.Email, visitor+"@example.com")
		if err := s.engine.Record(context.Background(), []store.Mark{{
			Merchant: store.MerchantID(merchant), Tag: store.TagID(tag), Identity: id, Name: "Visit", Time: s.now,
			Raw: fmt.Appendf(nil, `{"email":"%s@example.com"}`, visitor),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return s, p, merchant
}

// An erasure is accepted, and its receipt says how many events and links were removed. It does not name the person.
func TestErasures(t *testing.T) {
	s, p, merchant := visited(t)
	a := p.postf(erasures, `{"merchantId":%q,"email":" ANN@example.com","suppress":true}`, merchant).in(t).is(202).has("state", "pending")
	receipt := erasures + "/" + a.str("erasureId")
	for p.get(receipt).in(t).is(200).str("state") != "done" {
		time.Sleep(time.Millisecond)
	}
	done := p.get(receipt).in(t).has("events", 1.0).has("links", 1.0).has("suppress", true)
	if strings.Contains(strings.ToLower(done.body), "ann") {
		t.Errorf("the receipt names the person: %s", done.body)
	}
	p.get(erasures+"?merchantId="+merchant).in(t).is(200).has("erasures.0.erasureId", a.str("erasureId")).has("pagination.totalItems", 1.0)
	p.get(events+"?merchantId="+merchant).in(t).is(200).has("pagination.total", 1.0)
	p.get(erasures+"/other").fails(404, "NOT_FOUND", "Resource not found")
	s.partner("Other").get(receipt).fails(404, "NOT_FOUND", "Resource not found")
}

// Everything that is held of a person comes as lines of JSON, with a last line that says that it is complete.
func TestPersonalData(t *testing.T) {
	_, p, merchant := visited(t)
	a := p.postf(personalData, `{"merchantId":%q,"muid":"m-bob"}`, merchant)
	lines := strings.Split(strings.TrimSpace(a.body), "\n")
	if a.status != 200 || len(lines) != 3 || !strings.Contains(lines[0], `"type":"link"`) || !strings.Contains(lines[1], "bob@example.com") ||
		lines[2] != `{"type":"end","events":1,"links":1}` {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestRequestsAboutAPersonRefuse(t *testing.T) {
	s, p, merchant := visited(t)
	for _, uri := range []string{erasures, personalData} {
		p.post(uri, `{}`).invalid("merchantId", "is required")
		p.postf(uri, `{"merchantId":%q}`, merchant).invalid("person", "must be named by exactly one of muid, email, phone, deviceId")
		p.postf(uri, `{"merchantId":%q,"muid":"a","email":"b"}`, merchant).invalid("person", "must be named by exactly one of muid, email, phone, deviceId")
		p.postf(uri, `{"merchantId":%q,"phone":"x"}`, merchant).invalid("phone", "is none")
		p.postf(uri, `{"merchantId":%q,"mail":"x"}`, merchant).invalid("mail", "is not a field that this request can change")
		s.partner("Other").postf(uri, `{"merchantId":%q,"muid":"x"}`, merchant).fails(403, "FORBIDDEN", "Access denied")
	}
}
