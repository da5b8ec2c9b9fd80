package partnerapi

import (
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// send calls the API with a key and an Idempotency-Key, and returns the status and the body.
func (s *service) send(method, path, key, once, body string) (int, string) {
	var r fasthttp.RequestCtx
	conn, client := net.Pipe() // a streamed body sets its deadlines
	defer conn.Close()
	defer client.Close()
	r.Init2(conn, nil, false)
	r.Request.Header.SetMethod(method)
	r.Request.SetRequestURI(path)
	r.Request.Header.Set("Authorization", "Bearer "+key)
	if once != "" {
		r.Request.Header.Set("Idempotency-Key", once)
	}
	r.Request.SetBodyString(body)
	s.handle(&r)
	return r.Response.StatusCode(), string(r.Response.Body())
}

// A key of scope read reads everything, and gets 403 for every change.
func TestAReadOnlyKeyChangesNothing(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	_, text, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	if status, body := s.send("GET", merchants, string(text), "", ""); status != 200 {
		t.Errorf("GET: %d %s", status, body)
	}
	for _, path := range []string{merchants, "/v1/partners/key", generate} {
		if status, body := s.send("POST", path, string(text), "", `{"name":"x"}`); status != 403 || !strings.Contains(body, "can read") {
			t.Errorf("POST %s: %d %s", path, status, body)
		}
	}
}

// A key of scope read may ask what is held of a person if it was issued for that. It still changes nothing.
func TestAReadOnlyKeyForPersonalData(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	m := p.merchant("Shop")
	body := `{"merchantId":"` + m + `","muid":"ann"}`
	const personal, erasures = "/v1/partners/personal-data", "/v1/partners/erasures"
	for allowed, want := range map[bool]int{false: 403, true: 200} {
		p.postf("/v1/partners/key", `{"name":"a","scope":"read","personalData":%v}`, allowed).is(201)
		_, text, err := s.engine.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly, Personal: allowed})
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := s.send("POST", personal, string(text), "", body); status != want || !allowed && !strings.Contains(answer, "not issued for personal data") {
			t.Errorf("allowed %v: %d %s", allowed, status, answer)
		}
		for _, path := range []string{erasures, merchants} {
			if status, answer := s.send("POST", path, string(text), "", body); status != 403 || !strings.Contains(answer, "can read") {
				t.Errorf("allowed %v: POST %s: %d %s", allowed, path, status, answer)
			}
		}
	}
	p.post("/v1/partners/key", `{"name":"a","scope":"read","personalData":true}`).is(201).has("personalData", true)
	p.post("/v1/partners/key", `{"name":"a","personalData":true}`).
		invalid("personalData", "is for the scope read only: a full key may ask what is held of a person anyway")
	if got := p.get("/v1/partners/key").is(200).body; strings.Count(got, `"personalData":true`) != 3 || strings.Contains(got, `"personalData":false`) {
		t.Errorf("the list: %s", got)
	}
}

// A creation that is repeated with its Idempotency-Key gets the same answer; with another body it gets 422.
func TestARepeatedCreationCreatesNothing(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	status, first := s.send("POST", merchants, p.key, "order-1", `{"name":"Shop"}`)
	if status != 201 {
		t.Fatal(status, first)
	}
	if status, again := s.send("POST", merchants, p.key, "order-1", `{ "name": "Shop" }`); status != 201 || again != first {
		t.Errorf("again: %d %s, want %s", status, again, first)
	}
	if status, body := s.send("POST", merchants, p.key, "order-1", `{"name":"Other"}`); status != 422 || !strings.Contains(body, "Idempotency-Key") {
		t.Errorf("another body: %d %s", status, body)
	}
	if status, body := s.send("POST", merchants, p.key, strings.Repeat("x", 256), `{"name":"Other"}`); status != 400 {
		t.Errorf("a long key: %d %s", status, body)
	}
	if status, body := s.send("POST", "/v1/partners/key", p.key, "key-1", `{"name":"a"}`); status != 201 {
		t.Errorf("a key: %d %s", status, body)
	}
	if status, body := s.send("POST", "/v1/partners/key", p.key, "key-1", `{"name":"a"}`); status != 422 {
		t.Errorf("a key again: %d %s", status, body)
	}
}

// The lifetime of a key is at most 292 years. A later time must not become an earlier one.
func TestAKeyExpiresWhenTheRequestSays(t *testing.T) {
	p := newService(t).partner("Agency")
	p.post("/v1/partners/key", `{"name":"a","expiresAt":"2318-01-01T00:00:00Z"}`).is(201).has("expiresAt", "2318-01-01T00:00:00Z")
	for _, at := range []string{"2320-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"} {
		p.postf("/v1/partners/key", `{"name":"a","expiresAt":%q}`, at).
			invalid("expiresAt", "must be less than 292 years ahead; leave it out for a key that never expires")
	}
}

// A script may send the text of a variable that is not set. It must not get a key that may do more than was meant.
func TestAnEmptyFieldOfAKeyIsAnError(t *testing.T) {
	p := newService(t).partner("Agency")
	p.post("/v1/partners/key", `{"name":"a","scope":""}`).invalid("scope", "must be full or read")
	p.post("/v1/partners/key", `{"name":"a","expiresAt":""}`).
		invalid("expiresAt", "must be an RFC 3339 time in the future, such as 2027-11-20T08:30:00Z")
	p.post("/v1/partners/key", `{"name":"a","scope":null,"expiresAt":null}`).is(201).has("scope", "full").has("expiresAt", nil)
}
