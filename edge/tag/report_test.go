package tag

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"mtagd/edge/refused"
	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

// remembering is a world that remembers what is refused. The test sets its clock.
type remembering struct {
	*world
	memory *refused.Memory
	now    time.Time
}

func newRemembering(t *testing.T, configure ...func(*Config)) *remembering {
	t.Helper()
	r := &remembering{now: time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)}
	now := func() time.Time { return r.now }
	r.memory = refused.New(now)
	r.world = newWorld(t, append([]func(*Config){func(cfg *Config) { cfg.Refused, cfg.Now = r.memory, now }}, configure...)...)
	return r
}

// entries returns what is remembered of the merchant as "status code path name suggestion count".
func (r *remembering) entries() []string {
	var all []string
	for _, e := range r.memory.List(r.Merchant, "", refused.MaxEntries).Entries {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%d %s %s|%s|%s|%d", e.Status, e.Code, e.Path, e.Name, e.Suggestion, e.Count)))
	}
	return all
}

func (r *remembering) want(want ...string) {
	r.Helper()
	if got := r.entries(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRefusedEventsAreRemembered(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		is, body, want string
	}{
		{"no JSON", `{"muid":`, "400 not_json |||1"},
		{"no object", `"event"`, "400 not_object |||1"},
		{"not UTF-8", "{\"muid\":\"\xff\"}", "400 not_utf8 |||1"},
		{"compressed", "\x1f\x8b\xff", "400 compressed |||1"},
		{"too large", `{"muid":"` + strings.Repeat("x", store.MaxEventBytes) + `"}`, "413 too_large |||1"},
		{"too deep", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), "400 too_deep |||1"},
		{"a huge number", `{"muid":"m","event":"Login","n":1e999}`, "400 number_too_large |||1"},
		{"nobody", `{"event":"Purchase"}`, "400 no_identifier |Purchase||1"},
		{"a long muid", `{"muid":"` + long + `","event":"Login"}`, "400 muid_too_long /muid|Login||1"},
		{"no name", `{"muid":"m"}`, "400 event_missing /event|||1"},
		{"a name that is nearly right", `{"muid":"m","event":"add_to_cart"}`, "400 event_malformed /event|add_to_cart|AddToCart|1"},
		{"a type that is nearly right", `{"muid":"m","type":"purchase"}`, "400 event_malformed /type|purchase|Purchase|1"},
		{"a name that might be a person's", `{"muid":"m","event":"ann smith"}`, "400 event_malformed /event|||1"},
		{"an event_id that is no string", `{"muid":"m","event":"Login","event_id":7}`, "400 event_id_no_string /event_id|Login||1"},
		{"a long event_id", `{"muid":"m","event":"Login","event_id":"` + long + `"}`, "400 event_id_too_long /event_id|Login||1"},
		{"a person who is not known", `{"email":"ann@example.com","event":"Purchase"}`, "404 no_muid_found |Purchase||1"},
		{"an empty batch", `[]`, "400 batch_empty |||1"},
		{"a batch", `[{"muid":"m","event":"Login"},{"muid":"m","event":"login"},{"email":"a@b.c","event":"Login"},{"muid":"m","event":"login"}]`,
			"404 no_muid_found |Login||1 400 event_malformed /event|login|Login|2"},
		{"an accepted event that is odd", `{"muid":"m","event":"Purchse"}`, "201 unknown_event /event|Purchse|Purchase|1"},
		{"an accepted event with a wrong type", `{"muid":"m","event":"Purchase","products":[{"id":"a"},{"id":"b","price":"25"}]}`, "201 wrong_type /products/1/price|Purchase||1"},
		{"an event that only could be better", `{"muid":"m","event":"Purchase","value":3}`, ""},
		{"a good event", `{"muid":"m","event":"Purchase","event_id":"7"}`, ""},
	} {
		t.Run(c.is, func(t *testing.T) {
			r := newRemembering(t)
			r.mark(c.body)
			got := r.entries()
			if len(got) == 2 && strings.HasPrefix(got[0], "400") {
				got[0], got[1] = got[1], got[0] // both at the same time
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
			for _, e := range r.memory.List(r.Merchant, "", refused.MaxEntries).Entries {
				if e.Reason == "" || e.Message == "" || e.Tag != r.Client.ID || strings.Contains(fmt.Sprintf("%+v %s", e, e.Sample), "ann") {
					t.Errorf("%+v %s", e, e.Sample)
				}
			}
		})
	}
}

// What is refused before the body is read is remembered too, if it is of a tag that is known.
func TestRefusalsByStateAreRemembered(t *testing.T) {
	r := newRemembering(t)
	r.do("POST", clientHost, "/mark/cs_unknown", event).Want(t, 404, "Tag not found")
	r.do("POST", clientHost, "/mark/"+string(r.ServerSide.ID), event, "Origin", "https://www.shop-one.com").Want(t, 404, "Tag not found")
	r.do("POST", clientHost, "/id/"+string(r.Client.ID), "{").Want(t, 400, "")
	r.mark(event)
	r.want("404 wrong_host |||1")
	if got := r.memory.List("", "", 1).Entries; got != nil {
		t.Errorf("an event of nobody is remembered: %+v", got)
	}
	if e := r.memory.List(r.Merchant, "", 1).Entries[0]; e.Tag != r.ServerSide.ID || e.Origin != "https://www.shop-one.com" || e.Sample != nil {
		t.Errorf("%+v", e)
	}
	r.do("POST", r.Inactive.Host, "/mark/"+string(r.Inactive.ID), event).Want(t, 403, "Tag is not active")
	if got := r.memory.List(r.Inactive.Merchant, "", 1).Entries; len(got) != 1 || got[0].Code != "tag_not_active" {
		t.Errorf("%+v", got)
	}
}

func TestRefusalsByTheEngineAreRemembered(t *testing.T) {
	faulty := &tagtest.Faulty{}
	r := newRemembering(t, replaceEngine(faulty))
	faulty.OnRecord = func([]store.Mark) error { return &store.Error{Kind: store.KindUnavailable} }
	r.mark(event).Want(t, 503, "")
	r.want("503 unavailable |||1")
	r.now = r.now.Add(time.Second)
	faulty.OnRecord = func([]store.Mark) error { return errors.New("broken") }
	r.mark("["+event+"]").Want(t, 500, "")
	r.want("500 failed |||1", "503 unavailable |||1")
}

func TestRefusalsByLimitsAreRemembered(t *testing.T) {
	l := newLimited(t)
	memory := refused.New(func() time.Time { return l.now })
	l.server.reports = &reporter{memory: memory, addresses: true}
	l.limit(store.MerchantLimits{EventsPerSecond: 1})
	for range 100 {
		l.from("10.0.0.1", "POST", "/mark/"+string(l.Client.ID), event)
	}
	if got := memory.List(l.Merchant, "", 10).Entries; len(got) != 1 || got[0].Code != "too_many_events" || got[0].Status != 429 || got[0].Count != 90 {
		t.Errorf("%+v", got)
	}
}

// Every refusal of an event has an explanation of its own, so none is taken for broken JSON.
func TestEveryRefusalIsExplained(t *testing.T) {
	codes := map[string]bool{}
	for a, e := range explanations {
		if e.code == "" || codes[e.code] || e.reason == "" || a.message == "" || e.path != "" && e.unread {
			t.Errorf("%s: %+v", a.message, e)
		}
		codes[e.code] = true
	}
	if got := explain(bodyNotJSON(7)).code; got != "not_json" {
		t.Errorf("broken JSON is %q", got)
	}
}

// Of accepted events only some are judged: one in 100 ms of a merchant, and one in a millisecond of all.
func TestAcceptedEventsAreJudgedAtAPace(t *testing.T) {
	r := newRemembering(t)
	const odd = `{"muid":"m","event":"Purchse"}`
	for range 50 {
		r.mark(odd)
	}
	r.want("201 unknown_event /event|Purchse|Purchase|1")
	r.now = r.now.Add(betweenJudgedOfMerchant + longestRest)
	r.mark("[" + strings.Repeat(odd+",", 50) + odd + "]")
	r.want("201 unknown_event /event|Purchse|Purchase|2")
	r.now = r.now.Add(-time.Hour) // the clock was set back
	r.mark(odd)
	r.want("201 unknown_event /event|Purchse|Purchase|3")

	var p pace
	judged := 0
	for i := range 1000 {
		if p.isDue(store.MerchantID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)), r.now) {
			judged++
		}
	}
	if judged != 1 {
		t.Errorf("%d events of all merchants are judged in one moment", judged)
	}
}

func TestEventsAreRememberedByManyAtOnce(t *testing.T) {
	r := newRemembering(t)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 50 {
				r.mark([]string{`{"muid":"m","event":"login"}`, `{"email":"a@b.c","event":"Login"}`, `[` + event + `,{"muid":"m"}]`, event}[(g+i)%4])
				r.memory.List(r.Merchant, "", 10)
			}
		})
	}
	all.Wait()
	total := 0
	for _, e := range r.memory.List(r.Merchant, "", 10).Entries {
		total += e.Count
	}
	if total != 150 {
		t.Errorf("%d refused events are remembered, want 150: %q", total, r.entries())
	}
}
