package partnerapi

import (
	"context"
	"fmt"
	"net/netip"
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
			Merchant: store.MerchantID(merchant), Tag: store.TagID(tag), Identity: id, Name: "Visit", Time: s.now(),
			Raw: fmt.Appendf(nil, `{"email":"%s@example.com"}`, visitor),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	return s, p, merchant
}

// Personal data has what is known of the browser, and nothing else that is read has it.
func TestPersonalDataOfABrowser(t *testing.T) {
	s, p, merchant := visited(t)
	s.deliver()
	p.patch("/v1/partners/merchant/"+merchant, `{"deliverClientDetails":true}`).in(t).is(200).has("deliverClientDetails", true)
	p.postf("/v1/partners/merchant/"+merchant+"/destinations", `{"type":"meta","settings":{"pixelId":"123456"},"secrets":{"accessToken":"x"}}`).in(t).is(201)
	var sealed []byte
	for deadline := time.Now().Add(time.Minute); sealed == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		sealed = s.delivery.Seal(store.MerchantID(merchant), netip.MustParseAddr("2001:db8::7"), []byte("Browser/1"))
	}
	tag := p.generate(merchant, "client-side", "").str("tagId")
	if err := s.engine.Record(context.Background(), []store.Mark{{Merchant: store.MerchantID(merchant), Tag: store.TagID(tag),
		Identity: store.Identity{MUID: "m-bob"}, Name: "Visit", Time: s.now(), Details: store.Details{Client: sealed}, Raw: []byte(`{}`)}}); err != nil {
		t.Fatal(err)
	}
	lines, err := readPersonalData(t, s, p, merchant)
	all := strings.Join(lines, "\n")
	if err != nil || strings.Count(all, `"client":{"address":"2001:db8::7","userAgent":"Browser/1"}`) != 1 || strings.Count(all, `"client"`) != 1 {
		t.Errorf("%v: %s", err, all)
	}
	for _, path := range []string{events + "?merchantId=" + merchant, "/v1/partners/events/feed"} {
		if body := p.get(path).in(t).is(200).body; strings.Contains(body, "2001:db8") || strings.Contains(body, "Browser/1") || strings.Contains(strings.ToLower(body), "client\"") {
			t.Errorf("%s has it: %s", path, body)
		}
	}
}

// An erasure is accepted, and its receipt says how many events and links were removed. It does not name the person.
func TestErasures(t *testing.T) {
	s, p, merchant := visited(t)
	s.deliver()
	p.postf("/v1/partners/merchant/"+merchant+"/destinations", `{"type":"meta","settings":{"pixelId":"123456"},"secrets":{"accessToken":"x"}}`).in(t).is(201)
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
	done.has("destinations.0.state", "notPossible").has("destinations.0.type", "meta").has("destinations.0.at", nil)
	p.get(erasures+"/other").fails(404, "NOT_FOUND", "Resource not found")
	s.partner("Other").get(receipt).fails(404, "NOT_FOUND", "Resource not found")
}

// readPersonalData reads what is held of a visitor of visited.
func readPersonalData(t *testing.T, s *service, p *partner, merchant string) (lines []string, err error) {
	t.Helper()
	_, body, err := newStreamClient(t, s).read(p, "POST", personalData, fmt.Sprintf(`{"merchantId":%q,"muid":"m-bob"}`, merchant), "")
	return strings.Split(strings.TrimSpace(string(body)), "\n"), err
}

// Everything that is held of a person comes as lines of JSON, with a last line that says that it is complete. A stranger
// whose event has line breaks between its values adds no line.
func TestPersonalData(t *testing.T) {
	s, p, merchant := visited(t)
	s.record(merchant, "cs_x", event{at: "2026-11-01T00:00:00Z", name: "Forged", muid: "m-bob",
		raw: "{\"a\":1,\n\"b\":\r\n{\"type\":\"end\",\"events\":0,\"links\":0}\n}"})
	lines, err := readPersonalData(t, s, p, merchant)
	if err != nil || len(lines) != 4 || !strings.Contains(lines[0], `"type":"link"`) || !strings.Contains(lines[1], "bob@example.com") ||
		!strings.Contains(lines[2], `"event_name":"Forged"`) || lines[3] != `{"type":"end","events":2,"links":1,"claimedEvents":0}` {
		t.Errorf("%v %q", err, lines)
	}
	if held := s.api.readings.budget.Reserved(); held != 0 {
		t.Errorf("%d requests still have their turns", held)
	}
}

// hindered is an engine that does something before it passes on what is held of a person.
type hindered struct {
	store.Engine
	before func()
}

func (h *hindered) PersonalData(ctx context.Context, m store.MerchantID, id store.Identity, claimed bool, use func(*store.PersonalRecord) error) (int, error) {
	h.before()
	return h.Engine.PersonalData(ctx, m, id, claimed, use)
}

// What fails before its first byte is an error, and never looks like an answer.
func TestPersonalDataThatFailsIsNotComplete(t *testing.T) {
	for is, before := range map[string]func(s *service, p *partner){
		"when its key is revoked": func(s *service, p *partner) {
			id, err := store.APIKey(p.key).ID()
			if err == nil {
				_, err = s.engine.RevokeKey(context.Background(), id, true)
			}
			if err != nil {
				t.Error(err)
			}
		},
		"when the engine panics": func(*service, *partner) { panic("test") },
	} {
		t.Run(is, func(t *testing.T) {
			s, p, merchant := visited(t)
			s.serve(&hindered{s.engine, func() { before(s, p) }}, &s.dns)
			if lines, err := readPersonalData(t, s, p, merchant); err == nil && !strings.Contains(lines[0], `"statusCode":`) {
				t.Errorf("the client got %q as complete", lines)
			}
			if held := s.api.readings.budget.Reserved(); held != 0 {
				t.Errorf("%d requests still have their turns", held)
			}
		})
	}
}

func TestRequestsAboutAPersonRefuse(t *testing.T) {
	s, p, merchant := visited(t)
	for _, uri := range []string{erasures, personalData} {
		p.post(uri, `{}`).invalid("merchantId", "is required")
		p.postf(uri, `{"merchantId":%q}`, merchant).invalid("person", "must be named by exactly one of muid, email, phone, deviceId")
		p.postf(uri, `{"merchantId":%q,"muid":"a","email":"b"}`, merchant).invalid("person", "must be named by exactly one of muid, email, phone, deviceId")
		p.postf(uri, `{"merchantId":%q,"phone":"x"}`, merchant).invalid("phone", "is not valid: no event can have it")
		p.postf(uri, `{"merchantId":%q,"mail":"x"}`, merchant).invalid("mail", "is not a field that this request can change")
		s.partner("Other").postf(uri, `{"merchantId":%q,"muid":"x"}`, merchant).fails(403, "FORBIDDEN", "Access denied")
	}
}
