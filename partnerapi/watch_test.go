package partnerapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// until waits until a condition is true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute: " + what)
		}
	}
}

// mayNotGoOn are the reasons why a request that follows the feed of a merchant ends.
var mayNotGoOn = []struct {
	is     string
	happen func(p *shops) error
	status int
}{
	{"the key is revoked", (*shops).revokeKey, 401},
	{"the merchant is deleted", func(p *shops) error {
		_, err := p.engine.DeleteMerchant(context.Background(), store.MerchantID(p.ids[0]))
		return err
	}, 404},
	{"the partner is deleted", func(p *shops) error {
		_, err := p.engine.DeletePartner(context.Background(), p.ID, true)
		return err
	}, 401},
}

func (p *shops) revokeKey() error {
	id, err := store.APIKey(p.key).ID()
	if err == nil {
		_, err = p.engine.RevokeKey(context.Background(), id, true)
	}
	return err
}

func TestARequestThatWaitsEndsWhen(t *testing.T) {
	for _, c := range mayNotGoOn {
		t.Run(c.is, func(t *testing.T) {
			s := newService(t)
			s.api.heartbeat = 10 * time.Millisecond
			p := s.shops(1)
			var a answer
			var asking sync.WaitGroup
			asked := time.Now()
			asking.Go(func() { a = p.get(feedPath + "?wait=30&merchantId=" + p.ids[0]) })
			until(t, "it waits", func() bool { return s.api.readers.budget.Held(p.ID) == 1 })
			if err := c.happen(p); err != nil {
				t.Fatal(err)
			}
			asking.Wait()
			if a.status != c.status {
				t.Errorf("got %d %s, want %d", a.status, a.body, c.status)
			}
			if time.Since(asked) >= 30*time.Second {
				t.Error("it has waited until its end")
			}
		})
	}
}

func TestAStreamEndsWhen(t *testing.T) {
	for _, c := range mayNotGoOn {
		t.Run(c.is, func(t *testing.T) {
			s := newService(t)
			s.api.heartbeat = 10 * time.Millisecond
			p := s.shops(1)
			_, next := newStreamClient(t, s).open(p.partner, "?merchantId="+p.ids[0])
			p.send(0, "A")
			if _, data := next(); !strings.Contains(data, `"A"`) {
				t.Fatalf("the first event is %s", data)
			}
			if err := c.happen(p); err != nil {
				t.Fatal(err)
			}
			if _, data := next(); data != "" {
				t.Errorf("then comes %s", data)
			}
		})
	}
}

func TestABusyStreamHasHeartbeats(t *testing.T) {
	s := newService(t)
	s.api.heartbeat = 50 * time.Millisecond
	p := s.shops(1)
	response, _ := newStreamClient(t, s).open(p.partner, "")
	beats, events, begun := 0, 0, time.Now()
	for lines := bufio.NewScanner(response.Body); beats < 5 && lines.Scan(); {
		switch text := lines.Text(); {
		case strings.HasPrefix(text, ": still here"):
			beats++
		case strings.HasPrefix(text, "data: "), strings.HasPrefix(text, "retry: "):
			events++
			p.send(0, "Busy") // so that the stream has always something to write
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("a stream of %d events has %d heartbeats in a minute", events, beats)
		}
	}
	if beats < 5 || events < 2 {
		t.Errorf("the stream ended with %d events and %d heartbeats", events, beats)
	}
}

// A client that does not read must not hold up the stop of the service.
func TestAnExportEndsWhenTheServiceStops(t *testing.T) {
	s := newService(t)
	p := s.shops(1)
	for i := range 20 {
		s.recordRaw(p.ids[0], p.tags[0], fmt.Sprintf(`{"i":%d,"a":"%s"}`, i, strings.Repeat("x", 60<<10)))
	}
	c := newStreamClient(t, s)
	stops := make(chan context.CancelFunc, 1)
	s.api.Waiting = func(*fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(context.Background())
		stops <- cancel
		return ctx, cancel
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://api.example.net"+exportPath+"?merchantId="+p.ids[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.key)
	r.Header.Set("Accept-Encoding", "identity")
	response, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	(<-stops)() // the client does not read on
	until(t, "the export gives back its slot", func() bool { return s.api.exports.budget.Held(p.ID) == 0 })
	if n, err := io.Copy(io.Discard, response.Body); err == nil {
		t.Errorf("the client takes an export for complete that ended after %d bytes more", n)
	}
	if strings.Contains(s.log.String(), "failed") {
		t.Errorf("the stop is logged as a failure: %s", s.log.String())
	}
}
