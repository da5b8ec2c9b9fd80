package delivery

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"mtagd/store"
)

func TestWebhooksAreToldOfErasures(t *testing.T) {
	b, s := newBed(t), newSink(t)
	var mu sync.Mutex
	var ids []string
	var bodies [][]byte
	var secret, refuses string
	fails := true
	s.answerWith(func(r *http.Request, body []byte) int {
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasPrefix(string(body), `{"type":"person.erased"`) {
			t.Errorf("it got %s", body)
		}
		wh, err := standardwebhooks.NewWebhook(secret)
		if err == nil {
			err = wh.Verify(body, r.Header)
		}
		if err != nil {
			t.Error(err)
		}
		ids, bodies = append(ids, r.Header.Get("webhook-id")), append(bodies, body)
		switch {
		case fails:
			return 500
		case refuses != "" && strings.Contains(string(body), refuses):
			return 400
		}
		return 204
	})
	erase := func(id store.Identity) store.Erasure {
		return must(b.engine.Erase(t.Context(), b.m.ID, id, store.ErasureOptions{}))
	}
	person := func(email string) (id store.Identity) {
		id.Add(store.Email, email)
		return id
	}
	erase(person("before@example.com")) // before there is a destination
	time.Sleep(2 * time.Millisecond)
	mu.Lock()
	d, made := b.createWith(s.URL, func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"url":%q,"erasures":true}`, s.URL)) })
	secret = made["signing"]
	mu.Unlock()
	silent := b.create(s.URL, func(c *Change) { c.Name = new("not told") })
	meta := b.createPlatform("meta", `{"pixelId":"123456"}`, map[string]string{"accessToken": "x"})
	linked := person("ann@example.com")
	linked.MUID, linked.Source = "muid-of-ann", store.BySecret
	if _, err := b.engine.Resolve(t.Context(), b.m.ID, linked); err != nil {
		t.Fatal(err)
	}
	e := erase(person("ann@example.com"))
	state := func(of string) (a Ask) {
		for _, a := range must(b.s.Asks(t.Context(), b.m.ID, []store.Erasure{e}))[0] {
			if a.Destination == of {
				return a
			}
		}
		t.Fatalf("the receipt has no %s", of)
		return a
	}
	b.until("it is tried again", func() bool {
		a := state(d.ID)
		mu.Lock()
		defer mu.Unlock()
		return len(ids) > 1 && a.State == AskPending && a.Reason != nil && strings.Contains(*a.Reason, "500")
	})
	b.close()
	b.open() // it goes on after a restart
	mu.Lock()
	fails = false
	mu.Unlock()
	b.until("it has taken it", func() bool { a := state(d.ID); return a.State == Asked && a.At != nil && a.Reason == nil })
	if a, m := state(silent.ID), state(meta.ID); a.State != NotPossible || m.State != NotPossible {
		t.Errorf("%+v, %+v", a, m)
	}
	mu.Lock()
	ids = slices.Compact(ids)
	var got struct {
		Data struct {
			MUIDs       []string `json:"muidHashes"`
			Identifiers []string `json:"identifierHashes"`
			Erasure     string   `json:"erasureId"`
		}
	}
	err := json.Unmarshal(bodies[0], &got)
	muid, email := store.MUIDKey(store.MUID("muid-of-ann")), linked.Keys()[0]
	if err != nil || !slices.Equal(got.Data.MUIDs, []string{hex.EncodeToString(muid[:])}) || !slices.Equal(got.Data.Identifiers, []string{hex.EncodeToString(email[:])}) ||
		got.Data.Erasure != string(e.ID) || len(ids) != 1 {
		t.Errorf("it got %v %s, %v", ids, bodies[0], err)
	}
	mu.Unlock()
	pause := func(is bool) {
		b.change(d, Change{Paused: &is})
	}
	pause(true)
	e = erase(person("older@example.com"))
	mu.Lock()
	refuses = string(erase(person("newer@example.com")).ID)
	mu.Unlock()
	pause(false)
	b.until("one that is refused holds up no other", func() bool { return state(d.ID).State == Asked })
	mu.Lock()
	fails = true
	before := len(bodies)
	mu.Unlock()
	e = erase(person("late@example.com"))
	b.until("it is tried", func() bool { mu.Lock(); defer mu.Unlock(); return len(bodies) > before })
	b.ahead.Store(int64(maxAskAge + time.Hour))
	if a := state(d.ID); a.State != AskFailed {
		t.Errorf("after 72 hours it is %+v", a)
	}
}

// A webhook that refuses many requests to erase gets all others, and the refused ones again only after a pause.
func TestManyRefusedRequestsToErase(t *testing.T) {
	var pauses atomic.Int64
	b, s := newBedWith(t, func(int) time.Duration { pauses.Add(1); return 20 * time.Millisecond }), newSink(t)
	var mu sync.Mutex
	tries, taken := map[string]int{}, 0
	s.answerWith(func(r *http.Request, body []byte) int {
		mu.Lock()
		defer mu.Unlock()
		if id := r.Header.Get("webhook-id"); tries[id] > 0 || len(tries) <= asksAtOnce {
			tries[id]++
			return 400
		}
		taken++
		return 200
	})
	d := b.create(s.URL, func(c *Change) {
		c.Settings, c.Paused = json.RawMessage(fmt.Sprintf(`{"url":%q,"erasures":true}`, s.URL)), new(true)
	})
	for i := range 2*asksAtOnce + 3 {
		var who store.Identity
		who.Add(store.Email, fmt.Sprintf("%d@example.com", i))
		must(b.engine.Erase(t.Context(), b.m.ID, who, store.ErasureOptions{}))
	}
	b.change(d, Change{Paused: new(false)})
	b.until("the others are told, and the refused ones again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return taken == asksAtOnce+2 && !slices.ContainsFunc(slices.Collect(maps.Values(tries)), func(n int) bool { return n < 3 })
	})
	mu.Lock()
	defer mu.Unlock()
	for _, n := range tries {
		if int64(n) > pauses.Load()+1 {
			t.Errorf("a request was sent %d times with %d pauses", n, pauses.Load())
		}
	}
}

// Webhooks that hang take all places. They are cut off, so that others are told of erasures, too, and get their events.
func TestAHangingWebhookDelaysNoOther(t *testing.T) {
	b, s, hole := newBed(t), newSink(t), newSink(t)
	release := make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	t.Cleanup(open)
	hole.answerWith(func(*http.Request, []byte) int { <-release; return 200 })
	sh := b.shard()
	sh.mu.Lock()
	sh.healthy.free = 2
	sh.mu.Unlock()
	erasures := func(url string) func(c *Change) {
		return func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"url":%q,"erasures":true}`, url)) }
	}
	for range 6 {
		b.create(hole.URL, erasures(hole.URL))
	}
	asked := func(s *sink) int { s.mu.Lock(); defer s.mu.Unlock(); return s.asked }
	var who store.Identity
	who.Add(store.Email, "ann@example.com")
	e := must(b.engine.Erase(t.Context(), b.m.ID, who, store.ErasureOptions{}))
	b.until("they hang", func() bool { return asked(hole) >= 2 })
	b.create(s.URL, erasures(s.URL))
	must(b.engine.Erase(t.Context(), b.m.ID, who, store.ErasureOptions{}))
	b.until("it is told", func() bool { return asked(s) == 1 })
	b.send("m", "Purchase", "")
	b.until("it gets its event", func() bool { return asked(s) == 2 })
	open()
	b.until("all are told", func() bool {
		for _, a := range must(b.s.Asks(t.Context(), b.m.ID, []store.Erasure{e}))[0] {
			if a.State != Asked {
				return false
			}
		}
		return true
	})
}

// Each look at the destinations asks all that are due, however many there are.
func TestOneLookAsksAllDestinations(t *testing.T) {
	looks := make(chan struct{}, 100)
	looks <- struct{}{}
	b, s := newBedWith(t, func(int) time.Duration { <-looks; return time.Millisecond }), newSink(t)
	t.Cleanup(sync.OnceFunc(func() { close(looks) }))
	sh := b.shard()
	sh.mu.Lock()
	sh.healthy.free = 2
	sh.usual = time.Hour // no request is cut off on a slow machine: it would be sent again at a look that does not come
	sh.mu.Unlock()
	const webhooks = 12
	for range webhooks {
		b.createWith(s.URL, func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"url":%q,"erasures":true}`, s.URL)) })
	}
	var who store.Identity
	who.Add(store.Email, "ann@example.com")
	must(b.engine.Erase(t.Context(), b.m.ID, who, store.ErasureOptions{}))
	looks <- struct{}{}
	b.until("all are told", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.asked == webhooks })
}
