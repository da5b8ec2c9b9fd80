package partnerapi

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
)

func TestLine(t *testing.T) {
	enter := func(t *testing.T, l *line, partner store.PartnerID) func() {
		t.Helper()
		leave, err := l.enter(partner)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	t.Run("who finds all places taken waits for one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLine(2, time.Minute)
			enter(t, l, "a")
			leave := enter(t, l, "a")
			entered := false
			go func() { enter(t, l, "a"); entered = true }()
			synctest.Wait()
			if entered {
				t.Error("a third was let in")
			}
			leave()
			synctest.Wait()
			if !entered {
				t.Error("a free place was not given away")
			}
		})
	})
	t.Run("a line that does not move sends away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLine(1, time.Minute)
			enter(t, l, "a")
			start := time.Now()
			if _, err := l.enter("a"); store.KindOf(err) != store.KindBusy {
				t.Errorf("got %v, want an error of kind busy", err)
			}
			if waited := time.Since(start); waited != time.Minute {
				t.Errorf("waited %v", waited)
			}
		})
	})
	t.Run("partners do not stand in each other's way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLine(1, time.Minute)
			enter(t, l, "a")
			start := time.Now()
			enter(t, l, "b")
			if waited := time.Since(start); waited != 0 {
				t.Errorf("waited %v", waited)
			}
		})
	})
}

// crowd is a DNS that answers when as many look-ups are under way as there may be.
type crowd struct {
	under, most atomic.Int64
	full        chan struct{}
	once        sync.Once
}

func (c *crowd) Verify(context.Context, string) store.DNSFinding {
	n := c.under.Add(1)
	defer c.under.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	if n >= lookupsPerPartner {
		c.once.Do(func() { close(c.full) })
	}
	<-c.full
	return store.DNSFinding{Verdict: store.DNSCorrect}
}

func TestVerificationsBeyondTheLimitWaitInLine(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	id := p.merchant("Shop")
	host := p.generate(id, "server-side", "example.com").str("record.name") + ".example.com"
	dns := &crowd{full: make(chan struct{})}
	s.serve(s.engine, dns)

	var all sync.WaitGroup
	for range 2 * lookupsPerPartner {
		all.Go(func() { p.postf(verify, `{"merchantId":%q,"subdomain":%q}`, id, host).is(200) })
	}
	all.Wait()
	if most := dns.most.Load(); most > lookupsPerPartner {
		t.Errorf("%d look-ups at once, want %d at most", most, lookupsPerPartner)
	}
}
