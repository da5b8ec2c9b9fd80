package partnerapi

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// A listing of one event reserves the memory of perEvent bytes.
const perEvent = 2 * store.MaxEventBytes

func TestListingsWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		directory := store.NewDirectory()
		for _, id := range []store.PartnerID{"a", "b", "c", "d"} {
			directory.SetPartner(store.Partner{ID: id, Limits: store.PartnerLimits{AnswerBytes: 2 * perEvent}})
		}
		l := newListings(4*perEvent, directory, time.Minute)
		reserve := func(partner store.PartnerID) *reservation {
			t.Helper()
			m, err := l.reserve(t.Context(), partner, perEvent)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		first, second := reserve("a"), reserve("a")
		if _, err := l.reserve(t.Context(), "a", perEvent); store.KindOf(err) != store.KindBusy {
			t.Errorf("over the partner's share: got %v, want an error of kind busy", err)
		}
		other, another := reserve("b"), reserve("c")
		if _, err := l.reserve(t.Context(), "d", perEvent); store.KindOf(err) != store.KindUnavailable {
			t.Errorf("over the memory of all: got %v, want an error of kind unavailable", err)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := l.reserve(gone, "a", perEvent); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that has gone: got %v", err)
		}
		begun := time.Now()
		time.AfterFunc(time.Second, func() { first.keep(0) })
		third := reserve("d")
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("waited %v, want the second until another answer was built", waited)
		}
		synctest.Wait() // until keep has returned
		for _, m := range []*reservation{first, second, other, another, third} {
			m.release()
		}
		if n := l.budget.Reserved(); n != 0 {
			t.Errorf("%d bytes are still reserved", n)
		}
	})
}

// unread is a service whose clients have not read their answers.
func unread(t *testing.T, s *service, bytes int64) *api {
	a := newAPI(Config{
		Engine:  s.engine,
		Log:     slog.New(slog.DiscardHandler),
		Now:     s.now,
		Context: endless,
		WhenAnswered: func(_ *fasthttp.RequestCtx, call func()) {
			t.Cleanup(call)
		},
	})
	partners, err := s.engine.Partners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range partners {
		if _, err := s.engine.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner {
			p.Limits.AnswerBytes = store.Limit(bytes)
			return p
		}); err != nil {
			t.Fatal(err)
		}
	}
	a.listings.timeout = time.Millisecond
	s.handle = a.routes()
	return a
}

func TestUnreadListingsUseUpThePartnersMemory(t *testing.T) {
	s := newService(t)
	p, other := s.partner("Agency"), s.partner("Other")
	large := strings.Repeat("x", 60<<10)
	path := func(p *partner) string {
		id := p.merchant("Shop")
		tag := p.generate(id, "client-side", "").str("tagId")
		s.record(id, tag, event{at: "2026-11-01T00:00:00Z", name: "A", raw: `{"x":"` + large + `"}`})
		return events + "?limit=1&merchantId=" + id
	}
	mine, theirs := path(p), path(other)

	a := unread(t, s, 5*perEvent/2)
	read := 0
	for p.get(mine).status == 200 {
		read++
	}
	// The last listing needed perEvent bytes beside those of the answers, each of which is about as large as its event.
	if read != 4 {
		t.Errorf("%d large answers were under way, want 4", read)
	}
	refused := p.get(mine)
	refused.fails(429, "SERVICE_ERROR", "Too many requests at once. Please try again")
	if string(refused.header.Peek("Retry-After")) == "" {
		t.Error("429 without Retry-After")
	}
	p.get(merchants).is(200)
	other.get(theirs).is(200)
	if n := a.listings.budget.Held(p.ID); n < int64(read*len(large)) || n > int64(read)*store.MaxEventBytes {
		t.Errorf("%d bytes are reserved for %d answers", n, read)
	}
}
