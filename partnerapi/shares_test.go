package partnerapi

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
)

func TestSlots(t *testing.T) {
	acquire := func(t *testing.T, l *shares, partner store.PartnerID) func() {
		t.Helper()
		release, err := l.acquire(t.Context(), partner)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	t.Run("a request waits when all slots are taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newSlots(2, time.Minute, errVerifications)
			acquire(t, l, "a")
			release := acquire(t, l, "a")
			acquired := false
			go func() { acquire(t, l, "a"); acquired = true }()
			synctest.Wait()
			if acquired {
				t.Error("a third request got a slot")
			}
			release()
			synctest.Wait()
			if !acquired {
				t.Error("the free slot was not taken")
			}
		})
	})
	t.Run("no slot in time is an error of kind busy", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newSlots(1, time.Minute, errVerifications)
			acquire(t, l, "a")
			start := time.Now()
			if _, err := l.acquire(t.Context(), "a"); store.KindOf(err) != store.KindBusy {
				t.Errorf("got %v, want an error of kind busy", err)
			}
			if waited := time.Since(start); waited != time.Minute {
				t.Errorf("waited %v, want %v", waited, time.Minute)
			}
		})
	})
	t.Run("a client that has gone waits no longer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newSlots(1, time.Minute, errVerifications)
			acquire(t, l, "a")
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			if _, err := l.acquire(ctx, "a"); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want the context's error", err)
			}
			if waited := time.Since(start); waited != time.Second {
				t.Errorf("waited %v, want %v", waited, time.Second)
			}
		})
	})
	t.Run("partners do not wait for each other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newSlots(1, time.Minute, errVerifications)
			acquire(t, l, "a")
			start := time.Now()
			acquire(t, l, "b")
			if waited := time.Since(start); waited != 0 {
				t.Errorf("waited %v, want no wait", waited)
			}
		})
	})
}

// Partners that export as much as they may leave slots to the next ones.
func TestExportsOfManyPartners(t *testing.T) {
	l := newExportSlots()
	for i, want := range []int{4, 4, 4, 2, 1, 1} {
		p, got := store.PartnerID(rune('a'+i)), 0
		for ; ; got++ {
			if _, err := l.acquire(t.Context(), p); err != nil {
				break
			}
		}
		if got != want {
			t.Errorf("partner %d has %d exports under way, want %d", i, got, want)
		}
	}
}

// crowdedDNS is a Verifier that answers once as many checks are under way as there are slots.
type crowdedDNS struct {
	underWay, most atomic.Int64
	full           chan struct{}
	once           sync.Once
}

func (c *crowdedDNS) Verify(context.Context, string) store.DNSFinding {
	n := c.underWay.Add(1)
	defer c.underWay.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	if n >= verificationsPerPartner {
		c.once.Do(func() { close(c.full) })
	}
	<-c.full
	return store.DNSFinding{Verdict: store.DNSCorrect}
}

func TestVerificationsBeyondTheLimitWait(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	host := p.generate(id, "server-side", "example.com").str("record.name") + ".example.com"
	dns := &crowdedDNS{full: make(chan struct{})}
	s.serve(s.engine, dns)

	var all sync.WaitGroup
	for range 2 * verificationsPerPartner {
		all.Go(func() { p.postf(verify, `{"merchantId":%q,"subdomain":%q}`, id, host).is(200) })
	}
	all.Wait()
	if most := dns.most.Load(); most > verificationsPerPartner {
		t.Errorf("%d checks at once, want at most %d", most, verificationsPerPartner)
	}
}
