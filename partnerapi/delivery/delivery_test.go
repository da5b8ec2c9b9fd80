package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/partnerapi/delivery/kind"
	"mtagd/store"
	"mtagd/store/local"
)

// bed is a service over a real engine.
type bed struct {
	t      testing.TB
	dir    string
	engine store.Engine
	s      *Service
	keys   *Keyring
	log    bytes.Buffer
	m      store.Merchant
	tag    store.TagID
	allow  []netip.Prefix
	n      int
	dead   *atomic.Bool
	wait   func(failures int) time.Duration // Config.Backoff
	ahead  atomic.Int64                     // of the service's clock
}

func newBed(t testing.TB) *bed {
	return newBedWith(t, func(int) time.Duration { return 20 * time.Millisecond })
}

func newBedWith(t testing.TB, wait func(failures int) time.Duration) *bed {
	b := &bed{t: t, dir: t.TempDir(), wait: wait, allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	var err error
	if b.keys, err = OpenKeyring(filepath.Join(t.TempDir(), "secret.key")); err != nil {
		t.Fatal(err)
	}
	b.open()
	t.Cleanup(b.close)
	p := must(b.engine.AddPartner(t.Context(), "Acme"))
	b.m, b.tag = b.shop(p.ID)
	return b
}

func (b *bed) shop(p store.PartnerID) (store.Merchant, store.TagID) {
	b.t.Helper()
	m := must(b.engine.AddMerchant(b.t.Context(), p, store.NewMerchant{Name: "Shop"}))
	tag, _, err := b.engine.GenerateTag(b.t.Context(), m.ID, store.ClientSide, "")
	if err != nil {
		b.t.Fatal(err)
	}
	return m, tag.ID
}

func (b *bed) open() { b.reopen(func(store.Engine) {}) }

// reopen opens the engine, lets change change it, and starts to deliver.
func (b *bed) reopen(change func(e store.Engine)) {
	b.t.Helper()
	var err error
	if b.engine, err = local.Open(b.dir, local.Options{Log: slog.New(slog.DiscardHandler)}); err != nil {
		b.t.Fatal(err)
	}
	change(b.engine)
	b.start()
}

func (b *bed) start() {
	b.dead = new(atomic.Bool)
	b.s = Open(Config{
		Engine: mortal{b.engine, b.dead}, Keys: b.keys, Allow: b.allow, Log: slog.New(slog.NewTextHandler(&b.log, nil)), Now: func() time.Time { return time.Now().Add(time.Duration(b.ahead.Load())) },
		Backoff: b.wait, Interval: 20 * time.Millisecond,
	})
}

// shard waits for the only shard.
func (b *bed) shard() (sh *shard) {
	b.t.Helper()
	b.until("the shard runs", func() bool {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		sh = b.s.shards[0]
		return sh != nil
	})
	return sh
}

func (b *bed) close() {
	if b.s == nil {
		return
	}
	if err := b.s.Close(); err != nil {
		b.t.Error(err)
	}
	if err := b.engine.Close(); err != nil {
		b.t.Error(err)
	}
	b.s = nil
}

func (b *bed) send(muid, name, fields string) { b.sendTo(b.m.ID, b.tag, muid, name, fields) }

func (b *bed) sendTo(m store.MerchantID, tag store.TagID, muid, name, fields string) {
	b.t.Helper()
	b.n++
	raw := fmt.Sprintf(`{"event":%q,"muid":%q,"n":%d%s}`, name, muid, b.n, fields)
	marks := []store.Mark{{Merchant: m, Tag: tag, Identity: store.Identity{MUID: store.MUID(muid)}, Name: name, Time: time.Now(), Raw: []byte(raw)}}
	if err := b.engine.Record(b.t.Context(), marks); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) create(url string, change func(c *Change)) Destination {
	b.t.Helper()
	d, _ := b.createWith(url, change)
	return d
}

func (b *bed) createWith(url string, change func(c *Change)) (Destination, map[string]string) {
	b.t.Helper()
	c := Change{Type: new("webhook"), Settings: json.RawMessage(fmt.Sprintf(`{"url":%q}`, url))}
	if change != nil {
		change(&c)
	}
	d, made, err := b.s.Create(b.t.Context(), b.m, c)
	if err != nil {
		b.t.Fatal(err)
	}
	return d, made
}

func (b *bed) change(d Destination, c Change) {
	b.t.Helper()
	if _, _, err := b.s.Update(b.t.Context(), b.m, d.ID, c); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) replay(d Destination, r Replay) {
	b.t.Helper()
	if _, err := b.s.Replay(b.t.Context(), b.m, d.ID, r); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) status(d Destination) Status {
	b.t.Helper()
	return must(b.s.Status(b.t.Context(), must(b.s.Get(b.t.Context(), d.Merchant, d.ID))))
}

// until waits for a condition. It is patient: hundreds of requests take a busy machine more than a minute.
func (b *bed) until(what string, is func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("it did not come to this: %s\n%s", what, b.log.String())
		}
	}
}

// sink is a receiver that can fail, and remembers what it has taken.
type sink struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(r *http.Request, body []byte) int // nil: 200
	taken  []got                                  // answered with 2xx, in order
	asked  int
}

type got struct {
	ID     string
	Number int
	MUID   string
	header http.Header
	body   []byte
}

func newSink(t testing.TB) *sink {
	s := &sink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.asked++
		answer := s.answer
		s.mu.Unlock()
		status := 200
		if answer != nil {
			status = answer(r, body)
		}
		if status/100 == 2 {
			s.take(t, r.Header, body)
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "answer %d", status)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) take(t testing.TB, header http.Header, body []byte) {
	type event struct {
		ID   string `json:"id"`
		MUID string `json:"muid"`
		Raw  struct {
			N int `json:"n"`
		} `json:"raw_data"`
	}
	var m struct {
		Type string `json:"type"`
		Data struct {
			event
			Events []event `json:"events"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		t.Errorf("a body that cannot be read: %v", err)
	}
	events := m.Data.Events
	if m.Type == "event.recorded" {
		events = []event{m.Data.event}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.taken = append(s.taken, got{e.ID, e.Raw.N, e.MUID, header, body})
	}
}

func (s *sink) answerWith(answer func(r *http.Request, body []byte) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *sink) all() []got {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.taken)
}

// distinct returns the numbers of the events, each once, in the order of the first time.
func distinct(all []got) (numbers []int) {
	seen := map[int]bool{}
	for _, g := range all {
		if !seen[g.Number] {
			seen[g.Number] = true
			numbers = append(numbers, g.Number)
		}
	}
	return numbers
}

// expectOrder expects all events up to n, those of each visitor in order, and each with one id.
func (b *bed) expectOrder(all []got, n int) {
	b.t.Helper()
	if got := len(distinct(all)); got != n {
		b.t.Errorf("%d of %d events have arrived", got, n)
	}
	last, ids, seen := map[string]int{}, map[int]string{}, map[int]bool{}
	for _, g := range all {
		if id, known := ids[g.Number]; known && id != g.ID {
			b.t.Errorf("event %d has the ids %s and %s", g.Number, id, g.ID)
		}
		ids[g.Number] = g.ID
		if !seen[g.Number] && g.Number < last[g.MUID] {
			b.t.Errorf("event %d of %s came after %d", g.Number, g.MUID, last[g.MUID])
		}
		seen[g.Number] = true
		last[g.MUID] = max(last[g.MUID], g.Number)
	}
}

func TestEventsArriveOnceAndInOrder(t *testing.T) {
	for _, batch := range []int{1, 10} {
		b, s := newBed(t), newSink(t)
		b.send("before", "Purchase", "")
		d := b.create(s.URL, func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"url":%q,"batchSize":%d}`, s.URL, batch)) })
		b.n = 0
		for i := range 200 {
			b.send(fmt.Sprint("m", i%7), "Purchase", "")
		}
		b.until("all delivered", func() bool { return b.status(d).Delivered == 200 })
		b.expectOrder(s.all(), 200)
		if n := len(s.all()); n != 200 {
			t.Errorf("%d events were sent, want 200", n)
		}
	}
}

func TestOneVisitorThatFailsHoldsUpNoOther(t *testing.T) {
	b, s := newBed(t), newSink(t)
	var fails sync.Map
	fails.Store("m3", true)
	s.answerWith(func(_ *http.Request, body []byte) int {
		if _, is := fails.Load("m3"); is && bytes.Contains(body, []byte(`"muid":"m3"`)) {
			return 500
		}
		return 200
	})
	d := b.create(s.URL, nil)
	for i := range 100 {
		b.send(fmt.Sprint("m", i%5), "Purchase", "")
	}
	b.until("all others delivered", func() bool { return b.status(d).Delivered == 80 })
	if st := b.status(d); st.Word != "active" || st.Retries != 20 {
		t.Errorf("status %+v, want 20 retries", st)
	}
	fails.Delete("m3")
	b.until("all delivered", func() bool { return b.status(d).Delivered == 100 })
	b.expectOrder(s.all(), 100)
}

func TestADestinationThatIsDownLosesNothing(t *testing.T) {
	b, s := newBed(t), newSink(t)
	s.answerWith(func(*http.Request, []byte) int { return 503 })
	other := newSink(t)
	d, o := b.create(s.URL, nil), b.create(other.URL, nil)
	for i := range 50 {
		b.send(fmt.Sprint("m", i%5), "Purchase", "")
	}
	b.until("the other has all", func() bool { return b.status(o).Delivered == 50 })
	b.until("it fails", func() bool { // on a busy machine, its answer may once come too late: that is another reason
		st := b.status(d)
		return st.Word == "failing" && st.LastError != nil && strings.Contains(*st.LastError, "503")
	})
	if st := b.status(d); st.Retries != 0 {
		t.Errorf("%+v", st)
	}
	// A kill: the states of the last second are lost.
	b.kill()
	for i := range 50 {
		b.send(fmt.Sprint("m", i%5), "Purchase", "")
	}
	s.answerWith(nil)
	// What the other got right before the kill may be sent again, and is then counted again.
	b.until("all delivered", func() bool { return b.status(d).Delivered == 100 && len(distinct(other.all())) == 100 })
	b.expectOrder(s.all(), 100)
	b.expectOrder(other.all(), 100)
}

// kill ends the service without its last states, as a kill would.
func (b *bed) kill() {
	b.t.Helper()
	b.dead.Store(true)
	b.close()
	b.open()
}

// mortal is an engine that writes no documents once it is dead.
type mortal struct {
	store.Engine
	dead *atomic.Bool
}

func (m mortal) PutDocuments(ctx context.Context, docs []store.Document) error {
	if m.dead.Load() {
		return nil
	}
	return m.Engine.PutDocuments(ctx, docs)
}

func TestAKillWhileEventsAreSentLosesNothing(t *testing.T) {
	b, s := newBed(t), newSink(t)
	s.answerWith(func(*http.Request, []byte) int { time.Sleep(time.Millisecond); return 200 })
	d := b.create(s.URL, nil)
	for round := range 4 {
		for i := range 200 {
			b.send(fmt.Sprint("m", i%9), "Purchase", "")
		}
		b.until("some delivered", func() bool { return len(s.all()) > 200*round+50 })
		b.kill()
	}
	b.until("all delivered", func() bool { return len(distinct(s.all())) == 800 })
	b.expectOrder(s.all(), 800)
	_ = d
}

func TestAFilterConsentAndNames(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, func(c *Change) {
		c.Events, c.Filter, c.Consent = &[]string{"Purchase"}, new(`value > 10`), &[]string{"ad_storage"}
	})
	yes := `,"consent":{"ad_storage":"granted"}`
	b.send("m", "PageView", `,"value":11`+yes)
	b.send("m", "Purchase", `,"value":9`+yes)
	b.send("m", "Purchase", `,"value":11`)
	b.send("m", "Purchase", `,"value":11,"consent":{"ad_storage":"denied"}`)
	b.send("m", "Purchase", `,"value":11`+yes)
	b.until("one delivered", func() bool { return b.status(d).Delivered == 1 })
	if st := b.status(d); st.Filtered != 1 || st.NoConsent != 2 {
		t.Errorf("%+v", st)
	}
	if all := s.all(); len(all) != 1 || all[0].Number != 5 {
		t.Errorf("%+v", all)
	}
}

func TestGonePauses(t *testing.T) {
	b, s := newBed(t), newSink(t)
	s.answerWith(func(*http.Request, []byte) int { return 410 })
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("it is paused", func() bool { return b.status(d).Word == "paused" })
	if st := b.status(d); st.LastError == nil || !strings.Contains(*st.LastError, "410") {
		t.Errorf("%+v", st)
	}
	b.send("m", "Purchase", "")
	s.answerWith(nil)
	b.change(d, Change{Paused: new(false)})
	b.until("all delivered", func() bool { return b.status(d).Delivered == 2 })
	b.expectOrder(s.all(), 2)
}

func TestAPausedDestinationWaits(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("the first is delivered", func() bool { return b.status(d).Delivered == 1 })
	pause := func(is bool) {
		b.change(d, Change{Paused: &is})
	}
	pause(true)
	for range 10 {
		b.send("m", "Purchase", "")
	}
	b.close()
	b.open()
	if n := len(s.all()); n != 1 {
		t.Errorf("%d events while it was paused", n)
	}
	pause(false)
	b.until("all delivered", func() bool { return b.status(d).Delivered == 11 })
	b.expectOrder(s.all(), 11)
}

func TestReplay(t *testing.T) {
	b, s := newBed(t), newSink(t)
	for range 20 {
		b.send("m", "Purchase", "")
	}
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("the last is delivered", func() bool { return b.status(d).Delivered == 1 })
	from := time.Now().Add(-time.Hour)
	b.replay(d, Replay{From: &from})
	b.until("all delivered", func() bool { st := b.status(d); return st.Delivered == 22 && st.Replays == 0 })
	if n := len(distinct(s.all())); n != 21 {
		t.Errorf("%d different events, want 21", n)
	}
	b.send("m", "Purchase", "")
	b.until("it goes on", func() bool { return b.status(d).Delivered == 23 })
	all, err := b.s.Deliveries(t.Context(), d, Delivered, "")
	if err != nil || len(all) == 0 {
		t.Fatalf("%v, %v", all, err)
	}
	again := all[0]
	if again.Status != 200 || again.Answer != "answer 200" || len(again.EventIDs) != 1 {
		t.Errorf("%+v", again)
	}
	b.replay(d, Replay{Delivery: again.ID})
	b.until("one is sent again", func() bool { return b.status(d).Delivered == 24 })
	if last := s.all()[23]; last.Number != 22 {
		t.Errorf("event %d was sent again", last.Number)
	}
}

func TestErasedEventsAreNotSent(t *testing.T) {
	b, s := newBed(t), newSink(t)
	var tries atomic.Int64
	s.answerWith(func(*http.Request, []byte) int { tries.Add(1); return 500 })
	d := b.create(s.URL, nil)
	b.send("erased", "Purchase", "")
	b.send("kept", "Purchase", "")
	b.until("it fails", func() bool { return b.status(d).Word == "failing" })
	if _, err := b.engine.Erase(t.Context(), b.m.ID, store.Identity{MUID: "erased"}, store.ErasureOptions{}); err != nil {
		t.Fatal(err)
	}
	before := tries.Load() // one of them may have been under way
	b.until("it is tried again", func() bool { return tries.Load() >= before+2 })
	s.answerWith(nil)
	b.until("one is delivered", func() bool { return b.status(d).Delivered == 1 })
	if all := s.all(); len(all) != 1 || all[0].MUID != "kept" {
		t.Errorf("%+v", all)
	}
}

func TestADeletedDestinationIsGone(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("delivered", func() bool { return b.status(d).Delivered == 1 })
	if err := b.s.Delete(t.Context(), b.m, d.ID); err != nil {
		t.Fatal(err)
	}
	b.until("nothing is left", func() bool {
		for _, kind := range store.DocumentKinds {
			if docs, err := b.engine.Documents(t.Context(), kind, b.m.ID, ""); err != nil || len(docs) > 0 {
				return false
			}
		}
		return true
	})
	b.send("m", "Purchase", "")
	if err := b.s.Delete(t.Context(), b.m, d.ID); store.KindOf(err) != store.KindNotFound {
		t.Errorf("deleted twice: %v", err)
	}
	if n := len(s.all()); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestFailuresInBetweenChangeNoOrder(t *testing.T) {
	for _, batch := range []int{1, 7} {
		b, s := newBed(t), newSink(t)
		var n atomic.Int64
		s.answerWith(func(*http.Request, []byte) int {
			if n.Add(1)%3 == 0 {
				return 503
			}
			return 200
		})
		d := b.create(s.URL, func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"url":%q,"batchSize":%d}`, s.URL, batch)) })
		for i := range 150 {
			b.send(fmt.Sprint("m", i%5), "Purchase", "")
		}
		b.until("all delivered", func() bool { return len(distinct(s.all())) == 150 && b.status(d).Delivered >= 150 })
		b.expectOrder(s.all(), 150)
	}
}

// Events that the destination never takes hold up no other visitor: whether they come alone or in one request with others, and
// also when there are more of them than lanes.
func TestEventsThatAlwaysFail(t *testing.T) {
	for _, batch := range []int{1, 100} {
		for _, bad := range []int{1, 40} {
			t.Run(fmt.Sprintf("%d in requests of up to %d", bad, batch), func(t *testing.T) {
				b, s := newBed(t), newSink(t)
				s.answerWith(func(_ *http.Request, body []byte) int {
					if bytes.Contains(body, []byte(`"Refund"`)) {
						return 500
					}
					return 200
				})
				d := b.create(s.URL, func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"url":%q,"batchSize":%d}`, s.URL, batch)) })
				b.send("A", "Refund", "")
				b.until("it fails", func() bool { return b.status(d).Word == "failing" })
				for i := range bad - 1 {
					b.send(fmt.Sprint("A", i), "Refund", "")
				}
				for i := range 30 {
					b.send(fmt.Sprint("B", i), "Purchase", "")
				}
				b.until("the others are delivered", func() bool { st := b.status(d); return st.Delivered == 30 && st.Retries == bad })
			})
		}
	}
}

// A retry is found again behind more events of other merchants than one read of the feed goes through.
func TestARetryBehindManyOthers(t *testing.T) {
	b, s := newBed(t), newSink(t)
	other, tag := b.shop(b.m.Partner)
	d := b.create(s.URL, nil)
	b.send("x", "Purchase", "")
	b.until("the first", func() bool { return b.status(d).Delivered == 1 })
	pause := func(is bool) {
		b.change(d, Change{Paused: &is})
	}
	pause(true)
	for i := range 32 {
		marks := make([]store.Mark, 1000)
		for j := range marks {
			marks[j] = store.Mark{Merchant: other.ID, Tag: tag, Identity: store.Identity{MUID: store.MUID(fmt.Sprint(i, "-", j))}, Name: "PageView",
				Time: time.Now(), Raw: []byte(`{"event":"PageView"}`)}
		}
		if err := b.engine.Record(t.Context(), marks); err != nil {
			t.Fatal(err)
		}
	}
	s.answerWith(func(_ *http.Request, body []byte) int {
		if bytes.Contains(body, []byte(`"A"`)) {
			return 500
		}
		return 200
	})
	b.send("A", "Purchase", "")
	b.send("B", "Purchase", "")
	pause(false)
	b.until("B is delivered, A waits", func() bool { st := b.status(d); return st.Delivered == 2 && st.Retries == 1 })
	b.close()
	s.answerWith(nil)
	b.open()
	b.until("no retries", func() bool { st := b.status(d); return st.Retries == 0 && st.Delivered+st.Erased+st.Dead == 3 })
	if st, sent := b.status(d), distinct(s.all()); st.Delivered != 3 || len(sent) != 3 { // A may be sent twice: close cuts an attempt off
		t.Errorf("%v were delivered: %+v", sent, st)
	}
}

// What was read before its erasure was done is not sent afterwards.
func TestAnErasureWhileARoundRuns(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, nil)
	b.send("x", "Purchase", "")
	b.until("the first", func() bool { return b.status(d).Delivered == 1 })
	block, asked := make(chan struct{}), make(chan struct{}, 10)
	s.answerWith(func(*http.Request, []byte) int {
		asked <- struct{}{}
		<-block
		return 200
	})
	b.send("x", "Purchase", "")
	<-asked
	b.send("A", "Purchase", "")
	b.until("it waits", func() bool {
		sh := b.shard()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return len(sh.of[b.m.ID].runners[0].pending) == 1
	})
	e := must(b.engine.Erase(t.Context(), b.m.ID, store.Identity{MUID: "A"}, store.ErasureOptions{}))
	b.until("it is erased", func() bool {
		list, _, err := b.engine.Erasures(t.Context(), b.m.ID, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(o store.Erasure) bool { return o.ID == e.ID && o.State == store.ErasureDone })
	})
	close(block)
	b.until("all", func() bool { st := b.status(d); return st.Delivered+st.Erased == 3 })
	for _, got := range s.all() {
		if got.MUID == "A" {
			t.Error("an erased event was sent")
		}
	}
}

// An erasure may be done within milliseconds, while a round has events of the person left.
func TestAnErasureBetweenTwoRequestsOfARound(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, nil)
	block, asked := make(chan struct{}), make(chan struct{}, 100)
	s.answerWith(func(*http.Request, []byte) int {
		asked <- struct{}{}
		select {
		case <-block:
		case <-t.Context().Done(): // the test has failed
		}
		return 200
	})
	// Another erasure, so that the list of erasures is known already and fresh.
	erase := func(muid store.MUID) store.ErasureID {
		e := must(b.engine.Erase(t.Context(), b.m.ID, store.Identity{MUID: muid}, store.ErasureOptions{}))
		return e.ID
	}
	erase("other")
	b.send("x", "Purchase", "")
	<-asked
	b.send("A", "Purchase", "")
	b.send("A", "Purchase", "")
	b.until("both wait", func() bool { // one that is not attached reads both when its request has ended
		sh := b.shard()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		r := sh.of[b.m.ID].runners[0]
		return len(r.pending) == 2 || !r.attached
	})
	block <- struct{}{}
	<-asked // the first of A
	id := erase("A")
	b.until("it is erased", func() bool {
		e, err := b.engine.Erasure(t.Context(), id)
		return err == nil && e.State == store.ErasureDone
	})
	close(block)
	b.until("all", func() bool { st := b.status(d); return st.Delivered+st.Erased == 3 })
	if n := len(s.all()); n != 2 {
		t.Errorf("%d events were sent, want 2: the second of A was sent after its erasure was done", n)
	}
}

// failing is an engine that writes no documents while fail is set.
type failing struct {
	mortal
	fail *atomic.Bool
}

func (f failing) PutDocuments(ctx context.Context, docs []store.Document) error {
	if f.fail.Load() {
		return store.Unavailable("the disk is full")
	}
	return f.mortal.PutDocuments(ctx, docs)
}

// Dead letters are written again when they could not be written.
func TestDeadLettersOfAFailedFlush(t *testing.T) {
	b, s := newBed(t), newSink(t)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	fail := new(atomic.Bool)
	cfg := b.s.Config
	cfg.Engine, cfg.Metrics = failing{mortal{b.engine, b.dead}, fail}, nil
	b.s = Open(cfg)
	d := b.create(s.URL, nil)
	b.send("x", "Purchase", "")
	b.until("the first", func() bool { return b.status(d).Delivered == 1 })
	fail.Store(true)
	sh := b.shard()
	sh.mu.Lock()
	r := sh.of[b.m.ID].runners[0]
	r.st.Letters++
	r.noteDelivery(Delivery{At: time.Now(), State: Dead, Events: 1})
	r.markDirty()
	sh.mu.Unlock()
	if err := sh.flush(t.Context()); err == nil {
		t.Fatal("no error")
	}
	fail.Store(false)
	if err := sh.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := b.s.Deliveries(t.Context(), d, Dead, ""); err != nil || len(all) != 1 {
		t.Errorf("%d dead letters are stored, %v; want 1", len(all), err)
	}
}

// A merchant that is deleted takes its destinations along, at once.
func TestADeletedMerchantIsForgotten(t *testing.T) {
	b, s := newBed(t), newSink(t)
	b.create(s.URL, nil)
	runners := func() int {
		sh := b.shard()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if of := sh.of[b.m.ID]; of != nil {
			return len(of.runners)
		}
		return 0
	}
	b.until("it runs", func() bool { return runners() == 1 })
	if _, err := b.engine.DeleteMerchant(t.Context(), b.m.ID); err != nil {
		t.Fatal(err)
	}
	b.until("it is gone", func() bool { return runners() == 0 })
}

// What comes in after an erasure was asked for is another event of the person, and is sent.
func TestLaterEventsOfAnErasedPerson(t *testing.T) {
	b := newBed(t)
	var person store.Identity
	person.Add(store.Email, "a@example.com")
	if _, err := b.engine.Erase(t.Context(), b.m.ID, person, store.ErasureOptions{}); err != nil {
		t.Fatal(err)
	}
	list, _, err := b.engine.Erasures(t.Context(), b.m.ID, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	gone := must(b.s.erasingOf(t.Context(), b.m.ID))
	e := kind.Event{Received: store.Received{Event: store.Event{MUID: "x", Raw: []byte(`{"email":" A@example.com"}`)}, ReceivedAt: list[0].At}}
	if !gone.has(&e) {
		t.Error("an event from before is sent")
	}
	if e.ReceivedAt = list[0].At.Add(time.Microsecond); gone.has(&e) {
		t.Error("a later event counts as erased")
	}
	e.ReceivedAt, e.Raw = list[0].At, []byte(`{"email":"b@example.com"}`)
	if gone.has(&e) {
		t.Error("an event of another person counts as erased")
	}
}

// forgetful is an engine that does not know its erasures while fail is set.
type forgetful struct {
	mortal
	fail *atomic.Bool
}

func (f forgetful) Erasures(ctx context.Context, m store.MerchantID, offset, limit int) ([]store.Erasure, int, error) {
	if f.fail.Load() {
		return nil, 0, store.Unavailable("the disk is full")
	}
	return f.mortal.Erasures(ctx, m, offset, limit)
}

func TestNothingIsSentWhileErasuresAreNotKnown(t *testing.T) {
	b, s := newBed(t), newSink(t)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	fail := new(atomic.Bool)
	cfg := b.s.Config
	cfg.Engine, cfg.Metrics = forgetful{mortal{b.engine, b.dead}, fail}, nil
	b.s = Open(cfg)
	d := b.create(s.URL, nil)
	fail.Store(true)
	b.send("x", "Purchase", "")
	b.until("it waits", func() bool { st := b.status(d); return st.LastError != nil && *st.LastError == notKnown })
	if n := len(s.all()); n > 0 {
		t.Errorf("%d events were sent", n)
	}
	fail.Store(false)
	b.until("it is delivered", func() bool { return b.status(d).Delivered == 1 })
}

// Cursors of another store end: a retry becomes a dead letter, a replay ends, and a destination pauses.
func TestCursorsOfAnotherStore(t *testing.T) {
	b, s := newBed(t), newSink(t)
	lost, d := b.create(s.URL, nil), b.create(s.URL, nil)
	b.send("x", "Purchase", "")
	b.until("the first", func() bool { return b.status(d).Delivered+b.status(lost).Delivered == 2 })
	b.close()
	b.reopen(func(e store.Engine) {
		put := func(id string, change func(st *state)) {
			doc, err := e.Document(t.Context(), store.DeliveryStates, b.m.ID, id)
			var st state
			if err == nil {
				err = json.Unmarshal(doc.Content, &st)
			}
			change(&st)
			text, mErr := json.Marshal(st)
			doc.Content = text
			if err := errors.Join(err, mErr, e.PutDocuments(t.Context(), []store.Document{doc})); err != nil {
				t.Fatal(err)
			}
		}
		put(d.ID, func(st *state) {
			st.Retry = []retry{{After: "another", At: "place", Who: 1, Tries: 1}}
			st.Replays = []replaying{{Of: 1, After: "another"}}
		})
		put(lost.ID, func(st *state) { st.Cursor, st.Attached = "another", false })
	})
	b.until("one letter", func() bool {
		st := b.status(d)
		return st.DeadLetters == 1 && st.Retries == 0 && st.Replays == 0 && st.Dead == 1
	})
	b.until("a pause", func() bool { return b.status(lost).Word == "paused" })
	b.send("x", "Purchase", "")
	b.until("it goes on", func() bool { return b.status(d).Delivered == 2 })
}

func TestReplaysAreBounded(t *testing.T) {
	b, s := newBed(t), newSink(t)
	s.answerWith(func(*http.Request, []byte) int { return 503 })
	d := b.create(s.URL, nil)
	b.send("x", "Purchase", "")
	b.until("it fails", func() bool { return b.status(d).Word == "failing" })
	from := time.Now().Add(-time.Hour)
	for range maxReplays {
		b.replay(d, Replay{From: &from})
	}
	for range 2 { // begun or not
		if _, err := b.s.Replay(t.Context(), b.m, d.ID, Replay{From: &from}); store.KindOf(err) != store.KindBusy {
			t.Errorf("one more: %v, want KindBusy", err)
		}
		b.until("all have begun", func() bool { return b.status(d).Replays == maxReplays })
	}
	s.answerWith(nil)
	b.until("all are done", func() bool { return b.status(d).Replays == 0 })
	if _, err := b.s.Replay(t.Context(), b.m, d.ID, Replay{From: &from}); err != nil {
		t.Error(err)
	}
}

// A destination that is paused while a round runs gets nothing more of it, and the rest later.
func TestAPauseWhileARoundRuns(t *testing.T) {
	b, s := newBed(t), newSink(t)
	asked, release := make(chan struct{}, 10), make(chan struct{})
	s.answerWith(func(*http.Request, []byte) int {
		asked <- struct{}{}
		<-release
		return 200
	})
	d := b.create(s.URL, func(c *Change) { c.Paused = new(true) })
	for range 5 {
		b.send("m", "Purchase", "")
	}
	pause := func(is bool) {
		b.change(d, Change{Paused: &is})
	}
	pause(false)
	<-asked
	pause(true)
	close(release)
	b.until("the round ends", func() bool { return b.status(d).Delivered > 0 })
	if n := len(s.all()); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
	pause(false)
	b.until("all are delivered", func() bool { return b.status(d).Delivered == 5 })
	b.expectOrder(s.all(), 5)
	if n := len(s.all()); n != 5 {
		t.Errorf("%d events were sent, want 5", n)
	}
}

// late is an engine whose next answer about a destination comes late.
type late struct {
	mortal
	next           *atomic.Bool
	asked, release chan struct{}
}

func (l late) Destination(ctx context.Context, m store.MerchantID, id string) (store.Document, error) {
	doc, err := l.mortal.Destination(ctx, m, id)
	if l.next.CompareAndSwap(true, false) {
		close(l.asked)
		<-l.release
	}
	return doc, err
}

// A destination that is paused while it is opened stays paused.
func TestAPauseWhileADestinationIsOpened(t *testing.T) {
	b, s := newBed(t), newSink(t)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	l := late{mortal{b.engine, b.dead}, new(atomic.Bool), make(chan struct{}), make(chan struct{})}
	cfg := b.s.Config
	cfg.Engine, cfg.Metrics = l, nil
	b.s = Open(cfg)
	d := b.create(s.URL, nil)
	b.send("m", "Purchase", "")
	b.until("the first", func() bool { return b.status(d).Delivered == 1 })
	sh := b.shard()
	sh.mu.Lock()
	r := sh.of[b.m.ID].runners[0]
	r.setRoute(nil)
	sh.mu.Unlock()
	l.next.Store(true)
	b.send("m", "Purchase", "")
	<-l.asked
	b.change(d, Change{Paused: new(true)})
	close(l.release)
	b.until("it rests", func() bool {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return !r.running && !r.queued
	})
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !r.off {
		t.Error("it goes on")
	}
}

// erases is an engine with an erasure that has not begun.
type erases struct {
	mortal
	person store.Person
}

func (e erases) Erasures(context.Context, store.MerchantID, int, int) ([]store.Erasure, int, error) {
	return []store.Erasure{{Person: e.person, State: store.ErasurePending, At: time.Now()}}, 1, nil
}

func TestAPreviewOfAnErasedPerson(t *testing.T) {
	b, s := newBed(t), newSink(t)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := b.s.Config
	cfg.Engine, cfg.Metrics = erases{mortal{b.engine, b.dead}, store.Person{MUIDs: []store.IdentityKey{store.MUIDKey("erased")}}}, nil
	b.s = Open(cfg)
	d := b.create(s.URL, nil)
	b.send("erased", "Purchase", "")
	all, err := b.s.Preview(t.Context(), d, "", true)
	if err != nil || len(all) != 1 || !strings.Contains(all[0].Result, "erased") {
		t.Errorf("%+v, %v", all, err)
	}
}

// An event that was not sent, or long ago, is found by its id, with the reason.
func TestAPreviewOfOneEvent(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, func(c *Change) { c.Consent = &[]string{"ad_storage"} })
	b.send("m", "Purchase", "")
	for range 15 {
		b.send("m", "Purchase", agreed)
	}
	first := must(b.engine.Events(t.Context(), store.Query{Merchant: b.m.ID, SortBy: store.ByTime, Asc: true, Limit: 2})).Events
	for i, want := range []string{"not sent: it needs consent to ad_storage", "send"} {
		all, err := b.s.Preview(t.Context(), d, first[i].ID, false)
		if err != nil || len(all) != 1 || all[0].EventID != first[i].ID || all[0].Result != want {
			t.Errorf("%+v, %v", all, err)
		}
	}
	b.until("sent", func() bool { return b.status(d).Delivered == 15 })
	for _, id := range []store.EventID{first[1].ID, ""} { // a test is the same event as the delivery, and not another one without a tag
		all, err := b.s.Preview(t.Context(), d, id, false)
		var body struct{ Data json.RawMessage }
		if err == nil {
			err = json.Unmarshal(all[0].Body, &body)
		}
		if err != nil || !slices.ContainsFunc(s.all(), func(g got) bool { return bytes.Contains(g.body, body.Data) }) {
			t.Errorf("what would be sent is %s, %v", body.Data, err)
		}
	}
	b.m, b.tag = b.shop(b.m.Partner)
	other := b.create(s.URL, nil)
	for _, of := range []struct {
		d    Destination
		id   store.EventID
		want store.Kind
	}{{other, first[0].ID, store.KindNotFound}, {d, "evt_0000000002hp2002", store.KindNotFound}, {d, "evt_0000000000000000", store.KindNotFound},
		{d, "evt_vvvvvvvvvvvvvvvv", store.KindNotFound}, {d, "cur" + first[0].ID[3:], store.KindInvalid}} {
		if _, err := b.s.Preview(t.Context(), of.d, of.id, false); store.KindOf(err) != of.want {
			t.Errorf("%s: %v", of.id, err)
		}
	}
}

// A kill before dead letters are looked for loses no replay of them, also when a later replay has begun.
func TestReplaysAreNotedInOrder(t *testing.T) {
	b, s := newBed(t), newSink(t)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	fail := new(atomic.Bool)
	cfg := b.s.Config
	cfg.Engine, cfg.Metrics = failing{mortal{b.engine, b.dead}, fail}, nil
	b.s = Open(cfg)
	var all []Destination
	for range 20 { // which begin at once after the kill
		all = append(all, b.create(s.URL, nil))
	}
	b.send("x", "Purchase", "")
	b.until("all have it", func() bool { return len(s.all()) == len(all) })
	fail.Store(true)
	from := time.Now().Add(-time.Hour)
	for _, d := range all {
		for _, replay := range []Replay{{DeadLetters: true}, {From: &from}} {
			if _, err := b.s.Replay(t.Context(), b.m, d.ID, replay); err != nil {
				t.Fatal(err)
			}
		}
	}
	sh := b.shard()
	sh.mu.Lock()
	for _, r := range sh.of[b.m.ID].runners {
		if r.begun != 2 || r.st.Replayed != 0 {
			t.Errorf("begun %d, noted %d", r.begun, r.st.Replayed)
		}
	}
	sh.mu.Unlock()
	b.kill()
	for _, d := range all {
		b.until("both have begun", func() bool {
			st, err := b.s.stateOf(t.Context(), b.m.ID, d.ID)
			return err == nil && st.Replayed == 2
		})
	}
}
