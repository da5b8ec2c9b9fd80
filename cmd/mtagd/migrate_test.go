package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store/postgres/pgtest"
)

// senders send events with an event_id each, until all are acknowledged. They send again what is not, as the tag does.
type senders struct {
	b       *taggedService
	pause   time.Duration // between events of a sender
	to      atomic.Pointer[service]
	all     sync.WaitGroup
	stop    atomic.Bool
	sent    atomic.Int64 // acknowledged events
	refused atomic.Int64 // answers 503
}

func (s *senders) start(workers int) {
	s.to.Store(s.b.service)
	for w := range workers {
		s.all.Go(func() {
			for i := 0; !s.stop.Load(); i++ {
				id := fmt.Sprintf("w%d-%d", w, i)
				for {
					a, err := s.to.Load().do(s.b.client, request{host: tagHost, method: "POST", path: "/mark/" + s.b.tag,
						body: fmt.Sprintf(`{"muid":%q,"event":"Purchase","event_id":%q}`, id, id)})
					if err == nil && a.status == http.StatusCreated {
						s.sent.Add(1)
						time.Sleep(s.pause)
						break
					}
					if err == nil && a.status != http.StatusServiceUnavailable {
						s.b.t.Errorf("an event is answered %d %s", a.status, a.body)
						return
					}
					if err == nil {
						s.refused.Add(1)
						if a.header.Get("Retry-After") == "" {
							s.b.t.Error("503 without Retry-After")
						}
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
}

// await waits until so many events are acknowledged.
func (s *senders) await(n int64) {
	s.b.t.Helper()
	for deadline := time.Now().Add(startTimeout); s.sent.Load() < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.b.t.Fatalf("%d of %d events are acknowledged: %s", s.sent.Load(), n, s.b.Log())
		}
	}
}

func (s *senders) end() int {
	s.stop.Store(true)
	s.all.Wait()
	return int(s.sent.Load())
}

// A running server moves into a database under load. Every acknowledged event is listed once; the feed goes on where it was; and the
// same process goes on with the same addresses.
func TestMigrateUnderLoad(t *testing.T) {
	b := newTaggedService(t)
	url := pgtest.NewServer(t).URL("postgres")
	s := &senders{b: b, pause: 2 * time.Millisecond}
	s.start(4)
	s.await(200)
	cursor := b.api("GET", "/v1/partners/events/feed?limit=100", "")["cursor"].(string)

	out, err := exec.Command("mtagd", "migrate", "--data", b.data, "--to", url).Output()
	if err != nil {
		failed, _ := errors.AsType[*exec.ExitError](err)
		t.Fatalf("%v: %s: %s", err, failed.Stderr, b.Log())
	}
	var result struct{ Events, Merchants int }
	if err := json.Unmarshal(out, &result); err != nil || result.Events < 200 || result.Merchants != 1 {
		t.Errorf("the command prints %s", out)
	}
	s.await(s.sent.Load() + 200)
	n := s.end()
	t.Logf("%s; %d events, %d answers 503", out, n, s.refused.Load())

	listed, total := b.muids()
	if len(listed) != n || total != n {
		t.Errorf("%d events are listed of %d muids, want %d", total, len(listed), n)
	}
	fed := 100
	for more := true; more; {
		page := b.api("GET", "/v1/partners/events/feed?limit=1000&after="+cursor, "")
		fed += len(page["events"].([]any))
		cursor, more = page["cursor"].(string), page["hasMore"].(bool)
	}
	if fed != n {
		t.Errorf("the feed has %d events, want %d", fed, n)
	}
	a, err := b.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag, body: `{"muid":"w0-0","event":"Purchase","event_id":"w0-0"}`})
	if err != nil || a.status != http.StatusCreated {
		t.Errorf("a repeated event is answered %d %s, %v", a.status, a.body, err)
	}
	if _, again := b.muids(); again != n {
		t.Errorf("after a repeated event %d are listed, want %d", again, n)
	}
	if err := b.stop(); err != nil {
		t.Error(err)
	}

	if out, err := exec.Command("mtagd", serveArgs(b.data, b.zone.address, nil)...).CombinedOutput(); err == nil || !strings.Contains(string(out), "its data has moved to postgres://") {
		t.Errorf("serve on the old directory: %v: %s", err, out)
	}
	if out, err := exec.Command("mtagd", "migrate", "--data", b.data, "--to", url).CombinedOutput(); err != nil || !strings.Contains(string(out), " moved to ") {
		t.Errorf("the same migration again: %v: %s", err, out)
	}
	node, err := startService(b.data, b.zone.address, "--store", url)
	if err != nil {
		t.Fatal(err)
	}
	b.service = node
	if _, again := b.muids(); again != n {
		t.Errorf("after a restart %d events are listed, want %d", again, n)
	}
	if err := node.stop(); err != nil {
		t.Error(err)
	}
}
