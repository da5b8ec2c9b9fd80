package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
)

func TestAChangeCountsFromTheNextRequestOn(t *testing.T) {
	b, before, after := newBed(t), newSink(t), newSink(t)
	d := b.create(before.URL, func(c *Change) {
		c.Settings, c.Paused = json.RawMessage(fmt.Sprintf(`{"url":%q,"batchSize":2}`, before.URL)), new(true)
	})
	var once sync.Once
	before.answerWith(func(*http.Request, []byte) int {
		once.Do(func() {
			if _, _, err := b.s.Update(t.Context(), b.m, d.ID, Change{Settings: json.RawMessage(fmt.Sprintf(`{"url":%q,"batchSize":3}`, after.URL)),
				Filter: new("n > 10"), Secrets: map[string]string{"signing": ""}}); err != nil {
				t.Error(err)
			}
		})
		return 200
	})
	for i := range 20 {
		b.send(fmt.Sprint("m", i%7), "Purchase", "")
	}
	sh, latest := b.shard(), must(b.engine.Latest(t.Context()))
	b.until("the shard has read all: then they are sent in one round", func() bool {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return sh.head == latest
	})
	b.change(d, Change{Paused: new(false)})
	b.until("all are done", func() bool { st := b.status(d); return st.Delivered+st.Filtered == 20 })
	if n := distinct(before.all()); !slices.Equal(n, []int{1, 2}) {
		t.Errorf("the server before the change got %v", n)
	}
	all := after.all()
	if n := distinct(all); !slices.Equal(n, []int{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}) {
		t.Errorf("the server after the change got %v", n)
	}
	if !slices.ContainsFunc(all, func(g got) bool { return bytes.Count(g.body, []byte(`"eventId"`)) == 3 }) {
		t.Error("no request has three events, the batch size after the change")
	}
	for _, g := range all {
		if n := len(bytes.Fields([]byte(g.header.Get("webhook-signature")))); n != 2 {
			t.Errorf("%d signatures, want those of the new and the old secret", n)
		}
	}
}

// A secret must not go to a stranger's server by a change of somebody who does not have it.
func TestASecretIsNotSentToAnotherServer(t *testing.T) {
	b := newBed(t)
	for _, tt := range []struct{ kind, secret, before, same, other string }{
		{"webhook", "authorization", `{"url":"https://shop.example/a"}`, `{"url":"https://SHOP.example/b","batchSize":2}`, `{"url":"https://evil.example/a"}`},
		{"webhook", "authorization", `{"url":"https://shop.example/a"}`, `{"url":"https://shop.example/b"}`, `{"url":"http://shop.example/a"}`},
		{"webhook", "authorization", `{"url":"https://shop.example/a"}`, `{"url":"https://shop.example/b"}`, `{"url":"https://shop.example:444/a"}`},
		{"webhook", "authorization", `{"URL":"https://shop.example/a"}`, `{"url":"https://shop.example/b"}`, `{"Url":"https://evil.example/a"}`},
		{"meta", "accessToken", `{"pixelId":"123456"}`, `{"pixelId":"1234567"}`, `{"pixelId":"123456","endpoint":"https://evil.example"}`},
		{"kafka", "password", `{"brokers":"a.example","user":"u"}`, `{"brokers":"a.example","user":"u","mechanism":"PLAIN"}`,
			`{"brokers":"b.example","user":"u","mechanism":"PLAIN"}`},
		{"nats", "password", `{"host":"a.example"}`, `{"host":"a.example","subject":"s"}`, `{"host":"a.example:4223"}`},
		{"postgresql", "password", `{"host":"a.example","database":"d","user":"u"}`, `{"host":"a.example","database":"e","user":"u"}`,
			`{"host":"b.example","database":"d","user":"u"}`},
	} {
		secret := map[string]string{tt.secret: "secret-of-the-merchant"}
		d, _, err := b.s.Create(t.Context(), b.m, Change{Type: new(tt.kind), Settings: json.RawMessage(tt.before), Secrets: secret})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.s.Update(t.Context(), b.m, d.ID, Change{Settings: json.RawMessage(tt.same)}); err != nil {
			t.Errorf("%s: the same server: %v", tt.kind, err)
		}
		_, _, err = b.s.Update(t.Context(), b.m, d.ID, Change{Settings: json.RawMessage(tt.other)})
		if now, _ := b.s.Get(t.Context(), b.m.ID, d.ID); store.KindOf(err) != store.KindInvalid || string(now.Settings) != tt.same {
			t.Errorf("%s: another server: %v, and the settings are %s", tt.kind, err, now.Settings)
		}
		if _, _, err := b.s.Update(t.Context(), b.m, d.ID, Change{Settings: json.RawMessage(tt.other), Secrets: secret}); err != nil {
			t.Errorf("%s: another server with the secret: %v", tt.kind, err)
		}
	}
	d := b.create("https://shop.example/", nil) // a secret that signs is not sent
	if _, _, err := b.s.Update(t.Context(), b.m, d.ID, Change{Settings: json.RawMessage(`{"url":"https://other.example/"}`)}); err != nil {
		t.Error(err)
	}
}

// slow is an engine that reads states only when it may.
type slow struct {
	mortal
	asked, release chan struct{}
}

func (s slow) Documents(ctx context.Context, kind store.DocumentKind, m store.MerchantID, under string) ([]store.Document, error) {
	if kind == store.DeliveryStates && m == "" {
		close(s.asked)
		<-s.release
	}
	return s.mortal.Documents(ctx, kind, m, under)
}

// A change counts also when a shard is being opened, and has read the destination already.
func TestAChangeWhileAShardIsOpened(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create(s.URL, nil)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	engine := slow{mortal{b.engine, new(atomic.Bool)}, make(chan struct{}), make(chan struct{})}
	b.s = Open(Config{Engine: engine, Keys: b.keys, Allow: b.allow, Log: slog.New(slog.DiscardHandler), Now: time.Now, Interval: 20 * time.Millisecond})
	<-engine.asked
	b.change(d, Change{Filter: new("n > 1")})
	b.send("m", "Purchase", "")
	b.send("m", "Purchase", "")
	close(engine.release)
	b.until("delivered", func() bool { return b.status(d).Delivered > 0 })
	if n := distinct(s.all()); !slices.Equal(n, []int{2}) {
		t.Errorf("it got %v", n)
	}
}

// Destinations that were created when the case of names did not matter go on.
func TestSettingsWithNamesInAnotherCase(t *testing.T) {
	b, s := newBed(t), newSink(t)
	d := b.create("", func(c *Change) { c.Settings = json.RawMessage(fmt.Sprintf(`{"URL":%q,"BATCHsize":7}`, s.URL)) })
	b.send("m", "Purchase", "")
	b.until("the event is delivered", func() bool { return b.status(d).Delivered == 1 })
	if all := s.all(); !bytes.Contains(all[0].body, []byte(`"event.batch"`)) {
		t.Errorf("batchSize is not read: %s", all[0].body)
	}
}
