package partnerapi

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"mtagd/partnerapi/export"
	"mtagd/store"
)

const feedPath = "/v1/partners/events/feed"

// shops are a partner with merchants that have a tag each.
type shops struct {
	*partner
	ids, tags []string
}

func (s *service) shops(n int) *shops {
	s.t.Helper()
	p := &shops{partner: s.partner("Agency")}
	for i := range n {
		p.add(fmt.Sprintf("Shop %d", i))
	}
	return p
}

// add adds a merchant.
func (p *shops) add(name string) {
	p.t.Helper()
	p.ids = append(p.ids, p.merchant(name))
	p.tags = append(p.tags, p.generate(p.ids[len(p.ids)-1], "client-side", "").str("tagId"))
}

// send records an event of a merchant.
func (p *shops) send(shop int, name string) {
	p.t.Helper()
	p.service.record(p.ids[shop], p.tags[shop], event{at: "2026-11-01T00:00:00Z", name: name})
}

func TestFeedPages(t *testing.T) {
	s := newService(t)
	p, other := s.shops(2), s.shops(1)
	p.send(0, "A")
	other.send(0, "Theirs")
	p.send(1, "B")
	p.send(0, "C")

	first := p.get(feedPath + "?limit=2").is(200)
	if first.names() != "A B" {
		t.Errorf("the first page has %s", first.names())
	}
	first.has("hasMore", true).keys("", "events", "cursor", "hasMore")
	first.keys("events.0", fieldsIn(export.Feed)...)
	first.has("events.0.merchantId", p.ids[0]).has("events.0.tagId", p.tags[0]).has("events.1.merchantId", p.ids[1])
	first.has("events.0.event_time", "2026-11-01T00:00:00Z").has("events.0.receivedAt", "2026-11-20T08:30:00Z")
	second := p.get(feedPath+"?after="+first.str("cursor")).is(200).has("hasMore", false)
	if second.names() != "C" {
		t.Errorf("the second page has %s", second.names())
	}
	end := p.get(feedPath+"?after="+second.str("cursor")).is(200).has("hasMore", false)
	if end.names() != "" {
		t.Errorf("the page after the last has %s", end.names())
	}
	p.send(0, "D")
	if got := p.get(feedPath + "?after=" + end.str("cursor")).is(200).names(); got != "D" {
		t.Errorf("after the end comes %s, want D", got)
	}
	if got := p.get(feedPath + "?after=latest").is(200).names(); got != "" {
		t.Errorf("from now on there is %s", got)
	}
	if got := p.get(feedPath + "?merchantId=" + p.ids[1]).is(200).names(); got != "B" {
		t.Errorf("the feed of one merchant has %s, want B", got)
	}
	if got := p.get(feedPath + "?merchantId=" + p.ids[1] + "&after=" + first.str("cursor")).is(200).names(); got != "" {
		t.Errorf("a cursor of all merchants gives %s for one of them", got)
	}
	empty := p.merchant("Without a tag")
	if got := p.get(feedPath + "?merchantId=" + empty).is(200).names(); got != "" {
		t.Errorf("a merchant without a tag has %s", got)
	}
	p.get(feedPath+"?merchantId="+other.ids[0]).fails(403, "FORBIDDEN", denied)
	p.get(feedPath+"?merchantId="+nobody).fails(404, "NOT_FOUND", missing)
	for query, why := range map[string]string{
		"after=":        "after must not be empty",
		"after=x":       "after is not a cursor of this service",
		"limit=0":       "limit must be a whole number, 1 or more",
		"limit=1001":    "limit must be at most 1000",
		"wait=31":       "wait must be a whole number of seconds, at most 30",
		"wait=-1":       "wait must be a whole number of seconds, at most 30",
		"events=A":      "events is not a query parameter of this request",
		"merchantId=":   "merchantId must not be empty",
		"after=a&after": "after is given more than once",
	} {
		p.get(feedPath+"?"+query).fails(400, "VALIDATION_ERROR", "Invalid request parameters: "+why)
	}
}

func TestALargePageEndsBeforeItsLimit(t *testing.T) {
	s := newService(t)
	p := s.shops(1)
	body := `{"a":"` + strings.Repeat("x", 60<<10) + `"}`
	for range 40 {
		s.recordRaw(p.ids[0], p.tags[0], body)
	}
	seen, after := 0, ""
	for range 10 {
		a := p.get(feedPath + "?limit=1000" + after).is(200)
		if len(a.body) > pageBytes+beyondPage {
			t.Errorf("a page has %d bytes", len(a.body))
		}
		seen += strings.Count(a.body, `"id"`)
		after = "&after=" + a.str("cursor")
		if a.at("hasMore") == false {
			break
		}
	}
	if seen != 40 {
		t.Errorf("the pages have %d events, want 40", seen)
	}
	if held := s.api.listings.budget.Held(p.ID); held != 0 {
		t.Errorf("%d bytes are still reserved", held)
	}
}

// recordRaw records an event with a body.
func (s *service) recordRaw(merchant, tag, raw string) {
	s.t.Helper()
	if err := s.engine.Record(s.t.Context(), []store.Mark{{
		Merchant: store.MerchantID(merchant), Tag: store.TagID(tag), Identity: store.Identity{MUID: "user-1"},
		Name: "Raw", Time: s.now(), Raw: []byte(raw),
	}}); err != nil {
		s.t.Fatal(err)
	}
}

func TestAPageWaitsForEvents(t *testing.T) {
	s := newService(t)
	p := s.shops(2)
	after := "&after=" + p.get(feedPath).is(200).str("cursor")
	waits := make(chan context.CancelFunc, 1)
	s.api.Waiting = func(*fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		waits <- cancel
		return ctx, cancel
	}
	ask := func(query string, meanwhile func(stop func())) answer {
		t.Helper()
		var a answer
		var asking sync.WaitGroup
		asking.Go(func() { a = p.get(feedPath + "?wait=30" + after + query) })
		meanwhile(<-waits)
		asking.Wait()
		return a.is(200)
	}
	if got := ask("", func(func()) { p.send(1, "A") }); got.names() != "A" {
		t.Errorf("the page has %s, want A", got.names())
	}
	if got := ask("&merchantId="+p.ids[0], func(stop func()) { stop() }); got.names() != "" || got.at("hasMore") != false {
		t.Errorf("a page that must not wait any longer has %s", got.body)
	}
	after = "&after=" + p.get(feedPath).is(200).str("cursor")
	if got := ask("", func(func()) {
		p.add("New")
		p.send(2, "B")
	}); got.names() != "B" {
		t.Errorf("the page has %s, want the new merchant's B", got.names())
	}
}

func TestWhoWaitsNeedsASlot(t *testing.T) {
	s := newService(t)
	s.limits = true
	s.serve(s.engine, &s.dns)
	p := s.shops(1)
	if _, err := s.engine.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner {
		p.Limits.FeedReaders = 1
		return p
	}); err != nil {
		t.Fatal(err)
	}
	release, err := s.api.readers.acquire(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	p.get(feedPath+"?wait=1").fails(429, "SERVICE_ERROR", "Too many requests at once. Please try again")
	p.request("GET", feedPath, "", "Authorization", "Bearer "+p.key, "Accept", "text/event-stream").is(429)
	p.get(feedPath).is(200)
	release()
	p.send(0, "A")
	p.get(feedPath + "?wait=1").is(200)
}

// streamClient reads streams of a service.
type streamClient struct {
	t    *testing.T
	http *http.Client
}

func newStreamClient(t *testing.T, s *service) *streamClient {
	listener := fasthttputil.NewInmemoryListener()
	s.listen(listener)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop) // the server waits for streams
	s.api.Waiting = func(*fasthttp.RequestCtx) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) }
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return listener.Dial() }}
	t.Cleanup(transport.CloseIdleConnections)
	return &streamClient{t, &http.Client{Transport: transport, Timeout: time.Minute}}
}

// open opens a stream. A header without a value is not sent. The function reads its next event: the cursor, and the data.
func (c *streamClient) open(p *partner, query string, headers ...string) (response *http.Response, next func() (id, data string)) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), "GET", "http://api.example.net"+feedPath+query, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.key)
	r.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	response, err = c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return response, func() (id, data string) {
		for lines.Scan() {
			if value, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				id = value
			}
			if value, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				data = value
			}
			if lines.Text() == "" && data != "" {
				return id, data
			}
		}
		if err := lines.Err(); err != nil {
			c.t.Errorf("the stream was cut off: %v", err)
		}
		return "", ""
	}
}

func TestStream(t *testing.T) {
	s := newService(t)
	p, other := s.shops(2), s.shops(1)
	c := newStreamClient(t, s)
	p.send(0, "A")
	other.send(0, "Theirs")
	response, next := c.open(p.partner, "")
	if got := response.Header.Get("Content-Type"); response.StatusCode != 200 || got != "text/event-stream" {
		t.Fatalf("got %s with Content-Type %s", response.Status, got)
	}
	want := func(next func() (id, data string), name string) (id string) {
		t.Helper()
		id, data := next()
		if !strings.Contains(data, `"event_name":"`+name+`"`) {
			t.Fatalf("the next event is %s, want %s", data, name)
		}
		return id
	}
	first := want(next, "A")
	s.recordRaw(p.ids[1], p.tags[1], "{\"a\":\r\n\"b\"\n}")
	if _, data := next(); !strings.Contains(data, `"raw_data":{"a":  "b" }}`) {
		t.Errorf("an event with line breaks is streamed as %s", data)
	}
	p.add("New")
	p.send(2, "C")
	second := want(next, "C")

	_, again := c.open(p.partner, "?after=latest", "Last-Event-ID", first)
	want(again, "Raw")
	want(again, "C")
	_, one := c.open(p.partner, "?merchantId="+url.QueryEscape(p.ids[0])+"&after="+second)
	p.send(1, "D")
	p.send(0, "E")
	want(one, "E")
	want(again, "D")
	want(again, "E")
	for accept, want := range map[string]bool{
		"text/event-stream": true, "application/json, Text/Event-Stream;q=0.1": true, "text/event-stream;charset=utf-8": true,
		"text/event-stream;q=0": false, "text/event-stream; Q=0.000, */*": false, "text/event-streams": false, "": false,
	} {
		var r fasthttp.RequestCtx
		r.Request.Header.Set("Accept", accept)
		if got := acceptsStream(&r); got != want {
			t.Errorf("Accept: %s asks for a stream: %t", accept, got)
		}
	}
	p.request("GET", feedPath+"?wait=3", "", "Authorization", "Bearer "+p.key, "Accept", "text/event-stream").
		invalid("wait", "is not for a stream, which has no end")
	p.request("GET", feedPath, "", "Authorization", "Bearer "+p.key, "Accept", "text/event-stream", "Last-Event-ID", "x").
		invalid("after", "is not a cursor of this service")
}

func TestAStreamEndsCleanly(t *testing.T) {
	s := newService(t)
	p := s.shops(1)
	c := newStreamClient(t, s)
	stops := make(chan context.CancelFunc, 4)
	open := s.api.Waiting
	s.api.Waiting = func(r *fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
		ctx, cancel := open(r)
		stops <- cancel
		return ctx, cancel
	}
	t.Run("when the service stops", func(t *testing.T) {
		_, next := c.open(p.partner, "?after=latest")
		<-stops // of the handler
		(<-stops)()
		if _, data := next(); data != "" {
			t.Errorf("a stopped stream has %s", data)
		}
	})
	t.Run("when the key is revoked, before the next event", func(t *testing.T) {
		_, next := c.open(p.partner, "?after=latest")
		p.send(0, "A")
		if _, data := next(); !strings.Contains(data, `"A"`) {
			t.Fatalf("the first event is %s", data)
		}
		id, err := store.APIKey(p.key).ID()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.engine.RevokeKey(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
		p.send(0, "B")
		if _, data := next(); data != "" {
			t.Errorf("after the key was revoked comes %s", data)
		}
	})
	for deadline := time.Now().Add(time.Minute); s.api.readers.budget.Held(p.ID) != 0; {
		if time.Now().After(deadline) {
			t.Fatal("a stream that has ended keeps its slot")
		}
		time.Sleep(time.Millisecond)
	}
}
