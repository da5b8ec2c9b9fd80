package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store/testenv"
)

// moodySink takes what destinations send, and remembers it. Now and then it answers 503 or nonsense, hangs, or takes a
// request and says nothing.
type moodySink struct {
	*httptest.Server
	calm atomic.Bool

	mu       sync.Mutex
	requests int
	ids      map[string]string // by event: the id that it came with
	order    []string          // events as they came for the first time
	wrong    []string
}

// sentEvent is an event as a webhook gets it, or as the Conversions API of Meta does.
type sentEvent struct {
	ID      string    `json:"id"`
	RawData *rawEvent `json:"raw_data"`

	EventID string `json:"event_id"`
}

type rawEvent struct {
	EventID string `json:"event_id"`
}

func newMoodySink(t *testing.T, random *rand.Rand) *moodySink {
	s := &moodySink{ids: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the service was killed
		}
		var sent struct{ Data json.RawMessage }
		var of struct {
			sentEvent
			Events []sentEvent
		}
		var events []sentEvent
		if err = json.Unmarshal(body, &sent); err == nil {
			if err = json.Unmarshal(sent.Data, &events); err != nil { // not Meta's
				err = json.Unmarshal(sent.Data, &of)
				if events = of.Events; events == nil {
					events = []sentEvent{of.sentEvent}
				}
			}
		}
		s.mu.Lock()
		s.requests++
		mood := random.IntN(40)
		if s.calm.Load() {
			mood = -1
		}
		if err != nil {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: %v", body, err))
		}
		if takes := mood < 1 || mood > 4; takes {
			for _, e := range events {
				s.take(e)
			}
		}
		s.mu.Unlock()
		switch mood {
		case 0: // taken, but the answer does not come
			panic(http.ErrAbortHandler)
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2: // nonsense
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				fmt.Fprint(c, "220 mail.example ESMTP\r\n")
				c.Close()
			}
		case 3:
			time.Sleep(50 * time.Millisecond)
			panic(http.ErrAbortHandler)
		case 4:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			fmt.Fprintf(w, `{"events_received":%d}`, len(events)) // Meta's answer; after an empty one, the events are sent again
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// take notes an event. The caller holds mu.
func (s *moodySink) take(e sentEvent) {
	event, id := e.EventID, e.EventID
	if e.RawData != nil {
		event, id = e.RawData.EventID, e.ID
	}
	if before, known := s.ids[event]; known && before != id {
		s.wrong = append(s.wrong, fmt.Sprintf("%s has the ids %s and %s", event, before, id))
	} else if !known {
		s.order = append(s.order, event)
	}
	s.ids[event] = id
}

func (s *moodySink) has(event string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.ids[event]
	return has
}

// TestDrillDeliveriesSurviveKills kills the service while visitors' events come in and go out to destinations that fail in
// many ways. In the end each destination has every acknowledged event that it may have, with one id, and those of each
// visitor in order. An ad platform has no event without consent.
func TestDrillDeliveriesSurviveKills(t *testing.T) {
	testenv.Drill(t)
	const visitors = 8
	b := newTaggedServiceIn(t, t.TempDir(), "--delivery-allow", "127.0.0.0/8", "--limits", "off")
	random := testenv.Random(t)
	mood := func() *rand.Rand { return rand.New(rand.NewPCG(random.Uint64(), 0)) }
	single, batches, platform := newMoodySink(t, mood()), newMoodySink(t, mood()), newMoodySink(t, mood())
	create := func(body string, values ...any) {
		b.api("POST", "/v1/partners/merchant/"+b.merchant+"/destinations", fmt.Sprintf(body, values...))
	}
	create(`{"type":"webhook","settings":{"url":%q}}`, single.URL)
	create(`{"type":"webhook","settings":{"url":%q,"batchSize":20}}`, batches.URL)
	create(`{"type":"meta","settings":{"pixelId":"123456","endpoint":%q},"secrets":{"accessToken":"x"}}`, platform.URL)
	const agreed = `"consent":{"ad_storage":"granted","ad_user_data":"granted"}`
	acknowledged, next := map[string]bool{}, [visitors]int{}
	rounds := testenv.Rounds(2)
	for range rounds {
		var mu sync.Mutex
		var all sync.WaitGroup
		var acks atomic.Int64
		enough := make(chan struct{})
		for v := range visitors {
			all.Go(func() {
				for {
					n := next[v]
					next[v]++
					event, consent := fmt.Sprintf("%d-%d", v, n), agreed
					if n%3 == 0 {
						consent = `"consent":{"ad_storage":"granted","ad_user_data":"denied"}`
					}
					a, err := b.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag,
						body: fmt.Sprintf(`{"muid":"visitor-%d","event":"Purchase","event_id":%q,"value":1,"currency":"EUR",%s}`, v, event, consent)})
					if err != nil || a.status != http.StatusCreated {
						return // the service was killed
					}
					mu.Lock()
					acknowledged[event] = n%3 != 0
					mu.Unlock()
					if acks.Add(1) == 300 {
						close(enough)
					}
				}
			})
		}
		<-enough
		if err := b.kill(); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		b.start()
	}
	for _, s := range []*moodySink{single, batches, platform} {
		s.calm.Store(true)
	}
	for event, agreed := range acknowledged {
		for name, s := range map[string]*moodySink{"single": single, "batches": batches, "platform": platform} {
			for deadline := time.Now().Add(2 * time.Minute); (agreed || s != platform) && !s.has(event); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s has no event %s", name, event)
				}
			}
		}
	}
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	for name, s := range map[string]*moodySink{"single": single, "batches": batches, "platform": platform} {
		for _, wrong := range s.wrong {
			t.Errorf("%s: %s", name, wrong)
		}
		last := map[int]int{}
		for _, event := range s.order {
			var v, n int
			if _, err := fmt.Sscanf(event, "%d-%d", &v, &n); err != nil {
				t.Fatal(err)
			}
			if at, has := last[v]; has && n < at {
				t.Errorf("%s: event %s came after %d", name, event, at)
			}
			if last[v] = n; s == platform && n%3 == 0 {
				t.Errorf("the platform has event %s, without consent", event)
			}
		}
		t.Logf("%s: %d kills, %d events acknowledged, %d events taken in %d requests", name, rounds, len(acknowledged), len(s.order), s.requests)
	}
}
