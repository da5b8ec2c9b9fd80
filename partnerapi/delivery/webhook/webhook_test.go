package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/partnerapi/export"
	"mtagd/store"
	"mtagd/store/testenv"
)

func event(t *testing.T, raw string) *kind.Event {
	t.Helper()
	e := &kind.Event{Delivery: "msg_1", Received: store.Received{Event: store.Event{ID: "evt_1", Name: "Purchase", MUID: "m", Raw: []byte(raw)}}}
	if err := e.Parse(); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestSignaturesAreThoseOfTheScheme(t *testing.T) {
	before, now := NewSecret(), NewSecret()
	target, err := Kind.Open(kind.Options{Settings: []byte(`{"url":"https://shop.example/x"}`), Secrets: map[string][]string{signing: {now, before}}})
	if err != nil {
		t.Fatal(err)
	}
	requests, refused := target.Requests([]*kind.Event{event(t, `{"event":"Purchase","note":"größer <3"}`)}, time.Now())
	if len(requests) != 1 || len(refused) != 0 {
		t.Fatalf("%v, %v", requests, refused)
	}
	r := requests[0]
	if id := r.Header.Get("webhook-id"); id != "msg_1" {
		t.Errorf("webhook-id is %q", id)
	}
	for name, secret := range map[string]string{"the new secret": now, "the one before": before, "another one": NewSecret()} {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(r.Body, r.Header); (err == nil) != (name != "another one") {
			t.Errorf("with %s: %v", name, err)
		}
		if err := wh.Verify(append(slices.Clone(r.Body), ' '), r.Header); err == nil {
			t.Errorf("with %s: a changed body is taken", name)
		}
	}
}

func TestWhichHeadersAreTaken(t *testing.T) {
	for header, taken := range map[[2]string]bool{
		{"X-Shop", "a ~"}:                     true,
		{"X-Shop", ""}:                        true,
		{"X-Shop", strings.Repeat("v", 1000)}: true,
		{"X-Shop", strings.Repeat("v", 1001)}: false,
		{"X-Shop", "a\nb"}:                    false,
		{"X-Shop", "a\n"}:                     false,
		{"X-Shop", "ä"}:                       false,
		{"X Shop", "v"}:                       false,
		{"", "v"}:                             false,
		{strings.Repeat("n", 101), "v"}:       false,
		{"webhook-id", "v"}:                   false,
		{"Authorization", "v"}:                false,
	} {
		if isHeader(header[0], header[1]) != taken {
			t.Errorf("%.20q: %.20q: taken %v", header[0], header[1], !taken)
		}
	}
}

func TestBatches(t *testing.T) {
	target, err := Kind.Open(kind.Options{Settings: []byte(`{"url":"https://shop.example/x","batchSize":2}`), Secrets: map[string][]string{signing: {NewSecret()}}})
	if err != nil {
		t.Fatal(err)
	}
	var events []*kind.Event
	for range 3 {
		events = append(events, event(t, `{"event":"Purchase"}`))
	}
	requests, _ := target.Requests(events, time.Now())
	if len(requests) != 2 || !slices.Equal(requests[0].Events, events[:2]) || !slices.Equal(requests[1].Events, events[2:]) {
		t.Fatalf("%+v", requests)
	}
	again, _ := target.Requests(events, time.Now())
	if id := requests[0].Header.Get("webhook-id"); id != again[0].Header.Get("webhook-id") || id == requests[1].Header.Get("webhook-id") {
		t.Error("the id of a batch does not follow from its events")
	}
}

func TestMapping(t *testing.T) {
	target, err := Kind.Open(kind.Options{Settings: []byte(`{"url":"https://shop.example/x"}`), Secrets: map[string][]string{signing: {NewSecret()}},
		Mapping: kind.Mapping{"order.total": {From: "value"}, "order.shop": {From: "shop", Default: "main"}, "no": {From: "none"}}})
	if err != nil {
		t.Fatal(err)
	}
	requests, _ := target.Requests([]*kind.Event{event(t, `{"event":"Purchase","value":12345678901234567890}`)}, time.Now())
	const want = `{"type":"event.recorded","timestamp":"0001-01-01T00:00:00Z","data":{"id":"msg_1","order":{"shop":"main","total":12345678901234567890}}}`
	if got := string(requests[0].Body); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What is mapped into a default is of one event, and a field without a name is no source.
func TestAMappingOfADefault(t *testing.T) {
	target, err := Kind.Open(kind.Options{Settings: []byte(`{"url":"https://shop.example/x"}`), Secrets: map[string][]string{signing: {NewSecret()}},
		Mapping: kind.Mapping{"user": {Default: map[string]any{"plan": "gold"}}, "user.email": {From: "email"}, "user.self": {From: "self"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ raw, want string }{
		{`{"email":"a@example.com"}`, `{"email":"a@example.com","plan":"gold"}`}, {`{"":"x"}`, `{"plan":"gold"}`},
	} {
		requests, _ := target.Requests([]*kind.Event{event(t, tt.raw)}, time.Now())
		if got := string(requests[0].Body); !strings.Contains(got, `"user":`+tt.want+`}`) {
			t.Errorf("%s gives %s, want %s", tt.raw, got, tt.want)
		}
	}
}

// A mapping cannot make much of little.
func TestMappingsAreBounded(t *testing.T) {
	same, large := kind.Mapping{}, kind.Mapping{"a": {From: "a", Default: strings.Repeat("x", 5000)}}
	for i := range 6 {
		if err := same.Check(); err != nil {
			t.Errorf("%d fields from the same one: %v", i, err)
		}
		same[fmt.Sprint("f", i)] = kind.Source{From: "products"}
	}
	if same.Check() == nil || large.Check() == nil {
		t.Error("no error")
	}
}

func TestAnswers(t *testing.T) {
	for status, want := range map[int]kind.Outcome{200: kind.Done, 204: kind.Done, 302: kind.Again, 400: kind.Again, 401: kind.Again, 404: kind.Again,
		410: kind.Gone, 429: kind.Again, 500: kind.Again} {
		if got := (&target{}).Read(kind.Request{Events: make([]*kind.Event, 1)}, kind.Answer{Status: status, Header: http.Header{}}); got.Outcome != want {
			t.Errorf("%d is %v, want %v", status, got.Outcome, want)
		}
	}
	if got := (&target{}).Read(kind.Request{Events: make([]*kind.Event, 2)}, kind.Answer{Status: 400}); got.Outcome != kind.Refused {
		t.Errorf("a batch with 400 is %v", got.Outcome)
	}
}

func TestTheBodyOfAnEvent(t *testing.T) {
	target, err := Kind.Open(kind.Options{Settings: []byte(`{"url":"https://shop.example/x"}`), Secrets: map[string][]string{signing: {NewSecret()}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{`{"a": "<3"}`, `{"a":"\ud800","b":1e400}`} {
		e := kind.Event{Delivery: "msg_1", Received: store.Received{Merchant: "m", Tag: "cs_1", Event: store.Event{ID: "evt_1", Name: "Purchase", MUID: "a\"\n", Bot: true, Raw: []byte(raw)}}}
		requests, _ := target.Requests([]*kind.Event{&e}, time.Now())
		want := `{"type":"event.recorded","timestamp":"0001-01-01T00:00:00Z","data":{"eventId":"evt_1",` + string(export.AppendMembers(nil, &store.Received{Merchant: "m", Tag: "cs_1",
			Event: store.Event{ID: "msg_1", Name: "Purchase", MUID: "a\"\n", Bot: true}}, export.Feed)) + raw + `}}`
		if got := string(requests[0].Body); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The published library in JavaScript reads the signatures, too.
func TestSignaturesInJavaScript(t *testing.T) {
	node := testenv.Program(t, "node")
	library, err := filepath.Abs("../../client/typescript/node_modules/standardwebhooks")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		testenv.Missing(t, "the packages of the TypeScript client are not installed: make node")
	}
	before, now := NewSecret(), NewSecret()
	target, err := Kind.Open(kind.Options{Settings: []byte(`{"url":"https://shop.example/x"}`), Secrets: map[string][]string{signing: {now, before}}})
	if err != nil {
		t.Fatal(err)
	}
	requests, _ := target.Requests([]*kind.Event{event(t, `{"event":"Purchase","note":"größer <3"}`)}, time.Now())
	headers := map[string]string{}
	for name, values := range requests[0].Header {
		headers[strings.ToLower(name)] = values[0]
	}
	input, err := json.Marshal(map[string]any{"body": string(requests[0].Body), "headers": headers, "secrets": []string{now, before, NewSecret()}})
	if err != nil {
		t.Fatal(err)
	}
	const script = `
		const { Webhook } = require(process.argv[1])
		const { body, headers, secrets } = JSON.parse(require("fs").readFileSync(0, "utf8"))
		const takes = (secret, body) => { try { new Webhook(secret).verify(body, headers); return true } catch { return false } }
		console.log(JSON.stringify(secrets.flatMap(s => [takes(s, body), takes(s, body + " ")])))`
	run := exec.CommandContext(t.Context(), node, "-e", script, library)
	run.Stdin = bytes.NewReader(input)
	out, err := run.CombinedOutput()
	const want = "[true,false,true,false,false,false]"
	if err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("%v: %s, want %s", err, out, want)
	}
}
