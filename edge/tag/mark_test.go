package tag

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"mtagd/edge/tag/tagtest"
	"mtagd/store"
)

// missingIdentifier is the answer when nothing says whose event it is: the spec's message, and a detail that names phone,
// which the message leaves out.
const missingIdentifier = `{"success":false,"message":"muid, email, or deviceId is required.",` +
	`"detail":"send one of muid, email, phone, deviceId as a string that is not empty; a phone must have digits"}`

func TestMarkAnswers(t *testing.T) {
	w := newWorld(t)
	w.mark(`{"muid":"known","event":"Login","email":"Ann@Example.com","phone":"+49 170 1","deviceId":"d1"}`).Want(t, 201, "")
	big := func(n int) string {
		frame := `{"muid":"m","event":"Big","x":""}`
		return strings.Replace(frame, `"x":"`, `"x":"`+strings.Repeat("a", n-len(frame)), 1)
	}
	for _, tt := range []struct {
		name, body string
		status     int
		part       string
	}{
		{"an event with a muid is accepted", `{"muid":"m1","event":"Purchase","value":1}`, 201, `{"message":"Event accepted"}`},
		{"an email resolves in any case", `{"email":" ann@example.COM","event":"Purchase"}`, 201, "Event accepted"},
		{"a phone resolves in any spelling", `{"phone":"0049-170-1","event":"Purchase"}`, 201, "Event accepted"},
		{"a deviceId resolves", `{"deviceId":"d1","event":"Purchase"}`, 201, "Event accepted"},
		{"an unknown user is not found", `{"email":"nobody@example.com","event":"Purchase"}`, 404, `{"success":false,"message":"No muid found`},
		{"no identifier is refused in the spec's words", `{"event":"Purchase"}`, 400, missingIdentifier},
		{"a null identifier is no identifier", `{"muid":null,"phone":null,"event":"Purchase"}`, 400, missingIdentifier},
		{"a blank muid is no identifier", `{"muid":"  ","event":"Purchase"}`, 400, missingIdentifier},
		{"a numeric muid is no identifier", `{"muid":7,"event":"Purchase"}`, 400, missingIdentifier},
		{"a phone without digits is no identifier", `{"phone":"call me","event":"Purchase"}`, 400, missingIdentifier},
		{"a muid of 256 bytes is accepted", `{"muid":"` + strings.Repeat("m", 256) + `","event":"Purchase"}`, 201, ""},
		{"a muid of 257 bytes is refused", `{"muid":"` + strings.Repeat("m", 257) + `","event":"Purchase"}`, 400, `"message":"muid must have`},
		{"field names are case-sensitive", `{"MUID":"m","Email":"ann@example.com","event":"Purchase"}`, 400, "is required."},
		{"a missing identifier is refused before a missing event", `{}`, 400, "is required."},
		{"a missing event is named", `{"muid":"m"}`, 400, `"message":"event is required`},
		{"an event in lower case is refused", `{"muid":"m","event":"purchase"}`, 400, `"message":"event must be`},
		{"an event with a blank is refused", `{"muid":"m","event":"Add To"}`, 400, `"message":"event must be`},
		{"an event that is a number is refused", `{"muid":"m","event":5,"type":"Purchase"}`, 400, `"message":"event must be`},
		{"an event of 64 letters is accepted", `{"muid":"m","event":"` + strings.Repeat("A", 64) + `"}`, 201, ""},
		{"an event of 65 letters is refused", `{"muid":"m","event":"` + strings.Repeat("A", 65) + `"}`, 400, "event must be"},
		{"type stands for an absent event", `{"muid":"m","type":"Search"}`, 201, ""},
		{"type stands for a null event", `{"muid":"m","event":null,"type":"Search"}`, 201, ""},
		{"a name written with escapes is read", `{"mu\u0069d":"m","event":"\u0050ageView"}`, 201, ""},
		{"half an emoji is accepted", `{"muid":"m","event":"PageView","pageTitle":"Hi \ud83d"}`, 201, ""},
		{"a byte order mark is skipped", "\ufeff{\"muid\":\"m\",\"event\":\"PageView\"}", 201, ""},
		{"fields of odd types are stored", `{"muid":"m","event":"Purchase","shipping_cost":"25","products":7}`, 201, ""},
		{"an event_id that is a number is refused", `{"muid":"m","event":"A","event_id":5}`, 400, `"message":"event_id must be`},
		{"an event_id of 128 characters is taken", `{"muid":"m","event":"A","event_id":"` + strings.Repeat("é", 128) + `"}`, 201, ""},
		{"an event_id of 129 characters is refused", `{"muid":"m","event":"A","event_id":"` + strings.Repeat("é", 129) + `"}`, 400, `"message":"event_id must have`},
		{"an empty event_id counts as absent", `{"muid":"m","event":"A","event_id":""}`, 201, ""},
		{"an event_time of any type is accepted", `{"muid":"m","event":"A","event_time":{"no":1}}`, 201, ""},
		{"an empty body is refused", ``, 400, "JSON object"},
		{"null is refused", `null`, 400, "JSON object"},
		{"a string is refused", `"muid"`, 400, "JSON object"},
		{"a number is refused", `7`, 400, "JSON object"},
		{"JSON that ends early is refused with the place", `{"muid":"m","event":"A"`, 400, `"message":"body is not valid JSON (error at byte 23)"`},
		{"broken JSON is refused with the place", ` {"muid":"m",}`, 400, "not valid JSON (error at byte 11)"},
		{"text that is not JSON is refused", `muid=m&event=A`, 400, "not valid JSON (error at byte 0)"},
		{"text after the object is refused", `{"muid":"m","event":"A"} x`, 400, "not valid JSON (error at byte 25)"},
		{"a broken batch is refused with the place", `[{"muid":"m","event":"A"},{"a":}]`, 400, "not valid JSON (error at byte"},
		{"a batch that ends early is refused", `[{"muid":"m","event":"A"}`, 400, "not valid JSON (error at byte 25)"},
		{"text after a batch is refused", `[{"muid":"m","event":"A"}] 7`, 400, "not valid JSON"},
		{"gzip is refused", "\x1f\x8b\x08\x00\x00\x00", 400, `{"success":false,"message":"compressed bodies are not supported"}`},
		{"bytes that are not UTF-8 are refused", "{\"muid\":\"m\",\"event\":\"A\",\"x\":\"\xff\"}", 400, "UTF-8"},
		{"64 KiB is accepted", big(64 << 10), 201, ""},
		{"64 KiB and a byte is refused", big(64<<10 + 1), 413, `{"success":false,"message":"one event must be at most 64 KiB"}`},
		{"64 KiB of opening brackets are refused", strings.Repeat("[", 64<<10), 400, "nested too deeply"},
		{"a deeply nested field is refused", `{"x":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `}`, 400, "nested too deeply"},
		{"64 levels are accepted", `{"muid":"m","event":"A","x":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, 201, ""},
		{"65 levels are refused", `{"muid":"m","event":"A","x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, 400, "nested too deeply"},
		{"a number beyond float64 is refused", `{"muid":"m","event":"A","value":1e999}`, 400, "too large"},
		{"in a batch, it is refused alone", `[{"muid":"m","event":"A","value":1e999},{"muid":"m","event":"A"}]`, 200, `{"accepted":1,"results":[{"status":400,`},
	} {
		t.Run(tt.name, func(t *testing.T) { w.mark(tt.body).Want(t, tt.status, tt.part) })
	}
}

func TestMarkStoresTheObjectAsSent(t *testing.T) {
	w := newWorld(t)
	object := `{ "muid":"m1" , "muid":"m2","event":"Purchase",  "Z":1.0,"a":"\u00e9" }`
	w.mark("\n "+object+"\t\n").Want(t, 201, "")
	got := w.Events(t)
	if len(got) != 1 || string(got[0].Raw) != object || got[0].MUID != "m2" || got[0].Name != "Purchase" {
		t.Errorf("stored %+v, want the object as sent and the last muid", got)
	}
}

func TestMarkRecordsNothingWhenItRefuses(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{`{"email":"a@b.c","event":"A"}`, `{"event":"A"}`, `{"muid":"m"}`, `[{"muid":"m","event":"A"},]`} {
		w.mark(body)
	}
	if got := w.Events(t); len(got) != 0 {
		t.Errorf("stored %d events of refused requests", len(got))
	}
}

func TestMarkTakesTheEventTimeUnlessItIsInTheFuture(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	w := newWorld(t, func(cfg *Config) { cfg.Now = func() time.Time { return now } })
	for _, tt := range []struct {
		name, sent string
		want       time.Time
	}{
		{"a past time is kept", "2026-11-20T10:30:00.25Z", time.Date(2026, 11, 20, 10, 30, 0, 25e7, time.UTC)},
		{"an offset is converted", "2026-11-20T10:30:00+02:00", time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)},
		{"five minutes ahead is kept: the sender's clock may be fast", "2026-11-20T12:05:00Z", now.Add(5 * time.Minute)},
		{"more than five minutes ahead is not kept", "2026-11-20T12:05:01Z", now},
		{"a date alone is no time", "2026-11-20", now},
		{"an hour of one digit is not RFC 3339", "2026-11-20T1:30:00Z", now},
		{"a time before year 0 in UTC is not kept", "0000-01-01T00:00:00+05:00", now},
		{"T and Z may be in lower case", "2026-11-20t10:30:00z", time.Date(2026, 11, 20, 10, 30, 0, 0, time.UTC)},
		{"second 60 is a leap second", "2016-12-31T23:59:60Z", time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC)},
		{"year 1 is a time", "0001-01-01T00:00:00Z", time.Time{}},
		{"an offset of a day is not RFC 3339", "2026-11-20T10:30:00+24:00", now},
		{"a decimal comma is not RFC 3339", "2026-11-20T10:30:00,5Z", now},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(w.Events(t))
			muid := fmt.Sprint("time-", before)
			w.mark(`{"muid":"`+muid+`","event":"A","event_time":"`+tt.sent+`"}`).Want(t, 201, "")
			for _, e := range w.Events(t) {
				if string(e.MUID) == muid && !e.Time.Equal(tt.want) {
					t.Errorf("event_time %v, want %v", e.Time, tt.want)
				}
			}
		})
	}
}

func TestMarkRecordsARepeatedEventIDOnce(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.mark(`{"muid":"m","event":"Purchase","event_id":"order-1"}`).Want(t, 201, `{"message":"Event accepted"}`)
	}
	if got := w.Events(t); len(got) != 1 {
		t.Errorf("stored %d events, want 1", len(got))
	}
}

func TestMarkTakesTheMUIDOfTheCookie(t *testing.T) {
	w := newWorld(t)
	path := "/mark/" + string(w.Client.ID)
	w.do("POST", clientHost, path, `{"event":"A","email":"c@example.com"}`, "Cookie", "x=1; _muid=cookie-muid; y=2").Want(t, 201, "")
	w.do("POST", clientHost, path, `{"event":"A","muid":"body-muid"}`, "Cookie", "_muid=cookie-muid").Want(t, 201, "")
	w.do("POST", clientHost, path, `{"event":"A"}`, "Cookie", "not_muid=z; a=_muid=z").Want(t, 400, "is required.")
	w.do("POST", clientHost, path, `{"event":"A"}`, "Cookie", "_muid="+strings.Repeat("z", 257)).Want(t, 400, "is required.")
	w.do("POST", clientHost, "/id/"+string(w.Client.ID), `{"email":"c@example.com"}`).Want(t, 200, `"muid":"cookie-muid"`)
	var muids []string
	for _, e := range w.Events(t) {
		muids = append(muids, string(e.MUID))
	}
	if got := strings.Join(muids, " "); got != "cookie-muid body-muid" {
		t.Errorf("recorded for %q, want the cookie's muid and then the body's", got)
	}
}

func TestMarkCorrectsTheClockOfTheSender(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	w := newWorld(t, func(cfg *Config) { cfg.Now = func() time.Time { return now } })
	const sent = "2026-11-20T11:00:00Z"
	for i, tt := range []struct {
		name, query string
		want        time.Duration // how long ago
	}{
		{"the sender does not say", "", time.Hour},
		{"the same time", fmt.Sprint("?t=", now.UnixMilli()), time.Hour},
		{"a difference that a slow request explains", fmt.Sprint("?t=", now.Add(-5*time.Minute).UnixMilli()), time.Hour},
		{"a slow clock", fmt.Sprint("?t=", now.Add(-50*time.Minute).UnixMilli()), 10 * time.Minute},
		{"a fast clock", fmt.Sprint("?t=", now.Add(time.Hour).UnixMilli()), 2 * time.Hour},
		{"a clock that has lost its date", "?t=0", 0},
		{"no number", "?t=now", time.Hour},
		{"a number that is too large", "?t=99999999999999999999", time.Hour},
		{"a time in the far past", "?t=-9223372036854775808", 0},
		{"a time in the far future", "?t=9223372036854775807", math.MaxInt64},
		{"another parameter", "?renew=1&t=0", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := fmt.Sprint("E", i)
			event := `{"muid":"m","event":"` + name + `","event_time":"` + sent + `"}`
			w.do("POST", clientHost, "/mark/"+string(w.Client.ID)+tt.query, "["+event+"]").Want(t, 200, `"accepted":1`)
			for _, e := range w.Events(t) {
				if e.Name == name && now.Sub(e.Time) != tt.want {
					t.Errorf("it was %v ago, want %v", now.Sub(e.Time), tt.want)
				}
				if e.Name == name && !strings.Contains(string(e.Raw), sent) {
					t.Errorf("raw data %s, want it as it was sent", e.Raw)
				}
			}
		})
	}
}

func TestMarkAnswersABatchEventByEvent(t *testing.T) {
	w := newWorld(t)
	large := `{"muid":"m","event":"A","x":"` + strings.Repeat("a", 64<<10) + `"}`
	r := w.mark(` [ {"muid":"m1","event":"First","email":"b@example.com"}, {"event":"A"}, 7, {"email":"b@example.com","event":"Second"},
		{"email":"nobody@example.com","event":"A"}, ` + large + `, {"muid":"m","event":"bad"} ] `)
	r.Want(t, 200, `{"accepted":2,"results":[{"status":201,"message":"Event accepted"},{"status":400,`+strings.TrimPrefix(missingIdentifier, "{"))
	var got struct {
		Accepted int
		Results  []struct{ Status int }
	}
	if err := json.Unmarshal([]byte(r.Body), &got); err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(got.Results); s != "[{201} {400} {400} {201} {404} {413} {400}]" {
		t.Errorf("results %s", s)
	}
	events := w.Events(t)
	if len(events) != 2 || events[1].MUID != "m1" || string(events[1].Raw) != `{"email":"b@example.com","event":"Second"}` {
		t.Errorf("stored %+v, want the two good ones, the second resolved by the first", events)
	}
}

// The memory of a batch is used again, also for other merchants. If it kept what fields need, it would grow with each batch.
func TestABatchKeepsNothing(t *testing.T) {
	w := newWorld(t)
	event := []byte(`{"muid":"m1","event":"A","email":"b@example.com"}`)
	b := &batch{elements: [][]byte{event}, events: make([]fields, 1), marks: make([]store.Mark, 1)}
	if refused := b.events[0].readMark(&b.marks[0], &w.Client, event, &sender{mayIdentify: true, bots: new(bots)}); refused != nil {
		t.Fatal(refused.message)
	}
	b.clear()
	if b.elements[0] != nil || !reflect.ValueOf(b.events[0]).IsZero() || !reflect.ValueOf(b.marks[0]).IsZero() {
		t.Errorf("the memory of a batch keeps %q, %+v, %+v", b.elements[0], b.events[0], b.marks[0])
	}
}

func TestMarkRefusesABatchAsAWhole(t *testing.T) {
	w := newWorld(t)
	good := `{"muid":"m","event":"A"}`
	for _, tt := range []struct {
		name, body string
		status     int
	}{
		{"when it is empty", `[]`, 400},
		{"when it has 1001 events", "[" + strings.Repeat(good+",", 1000) + good + "]", 400},
		{"when an element is broken", `[` + good + `,{"a":}]`, 400},
		{"when it ends early", `[` + good, 400},
		{"when text follows", `[` + good + `] ` + good, 400},
		{"when it is not UTF-8", "[" + good + ",\"\xff\"]", 400},
	} {
		t.Run(tt.name, func(t *testing.T) { w.mark(tt.body).Want(t, tt.status, `"success":false`) })
	}
	if got := w.Events(t); len(got) != 0 {
		t.Errorf("stored %d events of refused batches", len(got))
	}
	w.mark("["+strings.Repeat(good+",", 999)+good+"]").Want(t, 200, `{"accepted":1000,`)
}

func TestIDAnswers(t *testing.T) {
	w := newWorld(t)
	id := func(body string) tagtest.Reply { return w.do("POST", clientHost, "/id/"+string(w.Client.ID), body) }
	id(`{"email":"ann@example.com"}`).Want(t, 200, `{"success":true,"muid":null}`)
	id(`{"muid":"m\"1","email":"ann@example.com"}`).Want(t, 200, `{"success":true,"muid":"m\"1"}`)
	id(`{"email":"ANN@example.com"}`).Want(t, 200, `{"success":true,"muid":"m\"1"}`)
	id(`{"deviceId":"d"}`).Want(t, 200, `"muid":null`)
	id(`{}`).Want(t, 400, missingIdentifier)
	id(`{"email":" "}`).Want(t, 400, missingIdentifier)
	id(`[]`).Want(t, 400, "JSON object")
	id(`{`).Want(t, 400, "not valid JSON (error at byte 1)")
	w.do("POST", w.ServerSide.Host, "/id/"+string(w.ServerSide.ID), `{"email":"ann@example.com"}`).Want(t, 200, `m\"1`)
	if got := w.Events(t); len(got) != 0 {
		t.Errorf("/id recorded %d events", len(got))
	}
}

func TestMarkWhenTheEngineFails(t *testing.T) {
	f := &tagtest.Faulty{}
	w := newWorld(t, replaceEngine(f))
	f.OnRecord = func([]store.Mark) error { return store.Unavailable("disk is full") }
	for _, body := range []string{`{"muid":"m","event":"A"}`, `[{"muid":"m","event":"A"},{}]`} {
		r := w.mark(body)
		r.Want(t, 503, `{"success":false,"message":`)
		if r.Header.Get("Retry-After") != "1" || strings.Contains(r.Body, "disk") {
			t.Errorf("got Retry-After %q and %s", r.Header.Get("Retry-After"), r.Body)
		}
	}
	f.OnRecord = func([]store.Mark) error { return tagtest.ErrOnPurpose }
	w.mark(`{"muid":"m","event":"A"}`).Want(t, 500, `{"success":false,"message":"Unable to process request"}`)
}

// A body that is not UTF-8 is refused as compressed when its header or its first bytes say so. A readable body is
// accepted whatever its header says.
func TestACompressedBodyIsRefusedAsCompressed(t *testing.T) {
	w := newWorld(t)
	const brotli = "\x0b\x02\x80\xff"
	const compressed = "compressed bodies are not supported"
	for _, path := range []string{"/mark/", "/id/"} {
		path += string(w.Client.ID)
		w.do("POST", clientHost, path, brotli, "Content-Encoding", "br").Want(t, 400, compressed)
		w.do("POST", clientHost, path, "["+brotli, "Content-Encoding", "br").Want(t, 400, compressed)
		w.do("POST", clientHost, path, brotli).Want(t, 400, "UTF-8")
		w.do("POST", clientHost, path, brotli, "Content-Encoding", "identity").Want(t, 400, "UTF-8")
		w.do("POST", clientHost, path, "\x1f\x8b\x08").Want(t, 400, compressed)
	}
	w.do("POST", clientHost, "/mark/"+string(w.Client.ID), event, "Content-Encoding", "gzip").Want(t, 201, "")
}

func TestHalfOfASurrogatePairIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.mark(`[{"muid":"m","event":"A","pageTitle":"Hi \ud83d"},{"muid":"m","event":"A","pageTitle":"Hi \ud83d\ude00"}]`).Want(t, 200, `"accepted":2`)
	events := w.Events(t)
	if len(events) != 2 || !strings.Contains(string(events[0].Raw), `"Hi \ufffd"`) || !strings.Contains(string(events[1].Raw), `"Hi \ud83d\ude00"`) {
		t.Errorf("listed %+v", events)
	}
}

// behind is an engine whose directory still has a merchant that another node has deleted.
type behind struct{ store.Engine }

func (behind) Record(_ context.Context, marks []store.Mark) error {
	for i := range marks {
		marks[i].Outcome = store.Removed
	}
	return nil
}

// The answer is the one that follows when the directory knows of it.
func TestEventsOfAMerchantThatAnotherNodeHasDeleted(t *testing.T) {
	w := newWorld(t, func(cfg *Config) { cfg.Engine = behind{cfg.Engine} })
	w.mark(`{"muid":"m","event":"Login"}`).Want(t, 404, `{"success":false,"message":"Tag not found"}`)
	w.mark(`[{"muid":"m","event":"Login"}]`).Want(t, 200, `{"accepted":0,"results":[{"status":404,"success":false,"message":"Tag not found"}]}`)
}
