package certs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mholt/acmez/v3/acme"
	"golang.org/x/time/rate"

	"mtagd/store/pgtest"
	"mtagd/tlsmgr/acmetest"
)

func TestSixthFailureInAnHourIsNotRisked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(newStorage(Config{Dir: t.TempDir()}))
		first := time.Now()
		for range 5 {
			if next := l.nextTry("a.test"); time.Now().Before(next) {
				t.Fatalf("fewer than five attempts failed, but the next one is delayed until %s", next)
			}
			if err := l.failed(t.Context(), "a.test", acme.ChallengeTypeHTTP01, true, time.Time{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		for i := range 3 { // an attempt as early as allowed, which fails
			want := first.Add(time.Hour + time.Duration(i)*time.Minute)
			if next := l.nextTry("a.test"); !next.Equal(want) {
				t.Errorf("next try at %s, want %s", next, want)
			}
			time.Sleep(time.Until(want))
			if err := l.failed(t.Context(), "a.test", acme.ChallengeTypeHTTP01, true, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		if next := l.nextTry("b.test"); time.Now().Before(next) {
			t.Error("another host is delayed")
		}
		time.Sleep(2 * time.Hour)
		if next := l.nextTry("a.test"); time.Now().Before(next) {
			t.Errorf("delayed until %s after two hours without a failure", next)
		}
	})
}

func TestSuccessKeepsTheFailuresOfTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(newStorage(Config{Dir: t.TempDir()}))
		for range 5 {
			if err := l.failed(t.Context(), "a.test", acme.ChallengeTypeHTTP01, true, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.succeeded(t.Context(), "a.test", acme.ChallengeTypeHTTP01); err != nil {
			t.Fatal(err)
		}
		if next := l.nextTry("a.test"); !time.Now().Before(next) {
			t.Error("the CA still counts these failures")
		}
		time.Sleep(2 * time.Hour)
		if err := l.succeeded(t.Context(), "a.test", acme.ChallengeTypeHTTP01); err != nil {
			t.Fatal(err)
		}
		if len(l.hosts) != 0 {
			t.Error("a host without failures is still held in memory")
		}
	})
}

func TestRefusalOfAHostIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimits(newStorage(Config{Dir: t.TempDir()}))
		until := time.Now().Add(34 * time.Hour)
		if err := l.failed(t.Context(), "a.test", acme.ChallengeTypeHTTP01, false, until); err != nil {
			t.Fatal(err)
		}
		if err := l.failed(t.Context(), "a.test", acme.ChallengeTypeHTTP01, false, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if next := l.nextTry("a.test"); !next.Equal(until) {
			t.Errorf("next try at %s, want %s", next, until)
		}
	})
}

// What was noted while the clock was a year ahead delays nothing for a year.
func TestClockThatWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := newStorage(Config{Dir: t.TempDir()})
		l := newLimits(storage)
		ahead := time.Now().AddDate(1, 0, 0)
		h := hostLimits{RefusedUntil: ahead, Challenge: acme.ChallengeTypeHTTP01}
		for range failuresAllowed {
			h.Failures = append(h.Failures, ahead)
		}
		l.mu.Lock()
		if err := l.save(t.Context(), "a.test", h); err != nil {
			t.Fatal(err)
		}
		news, failures, err := l.load(t.Context(), "a.test")
		if err != nil || !news.IsZero() || failures != 0 {
			t.Errorf("the last of %d failures was at %s, %v", failures, news, err)
		}
		l.hosts["a.test"] = &h // as this process knows it when the clock is set back
		if next := l.nextTry("a.test"); time.Now().Before(next) {
			t.Errorf("the next try is at %s", next)
		}

		a := newAllowance(storage, "ca", newTurns(rate.NewLimiter(rate.Every(time.Minute), 3), ordersAtOnce))
		if err := storage.Store(t.Context(), a.file, []byte(`{"tokens":0,"at":"`+ahead.Format(time.RFC3339)+`"}`)); err != nil {
			t.Fatal(err)
		}
		if err := a.add(t.Context(), -1); err != nil {
			t.Error(err)
		}
	})
}

func TestTypeOfChallenge(t *testing.T) {
	l := newLimits(newStorage(Config{Dir: t.TempDir()}))
	if got := l.challenge("a.test"); got != acme.ChallengeTypeTLSALPN01 {
		t.Errorf("the first attempt uses %s", got)
	}
	if err := l.failed(t.Context(), "a.test", otherChallenge(acme.ChallengeTypeTLSALPN01), true, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if got := l.challenge("a.test"); got != acme.ChallengeTypeHTTP01 {
		t.Errorf("after a failure with the other type, the attempt uses %s", got)
	}
	if got := l.challenge("b.test"); got != acme.ChallengeTypeTLSALPN01 {
		t.Errorf("a failure of another host changes the type to %s", got)
	}
	if err := l.succeeded(t.Context(), "a.test", acme.ChallengeTypeHTTP01); err != nil {
		t.Fatal(err)
	}
	if got := l.challenge("b.test"); got != acme.ChallengeTypeHTTP01 {
		t.Errorf("the attempt uses %s, not the type that works", got)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Time{
		"":                              {},
		"120":                           now.Add(2 * time.Minute),
		"0":                             now,
		"-5":                            {},
		"soon":                          {},
		"Sun, 22 Nov 2026 13:00:00 GMT": now.Add(time.Hour),
		"Sun, 22 Nov 2099 13:00:00 GMT": now.Add(maxRetryAfter),
		"2000000000":                    now.Add(maxRetryAfter),
		"99999999999999999999":          {},
	} {
		if got := retryAfter(value, now); !got.Equal(want) {
			t.Errorf("Retry-After: %s is %s, want %s", value, got, want)
		}
	}
}

// Two nodes, or two processes one after the other, have the CA's limit once.
func TestNodesShareAnAllowance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = time.Minute
		storage := newStorage(Config{Dir: t.TempDir()})
		var nodes [2]*allowance
		for i := range nodes {
			nodes[i] = newAllowance(storage, "ca", newTurns(rate.NewLimiter(rate.Every(every), 3), ordersAtOnce))
		}
		a, b := nodes[0], nodes[1]
		begin := func(n *allowance) error {
			if err := n.turns.wait(t.Context(), "A", "host", false); err != nil {
				t.Fatal(err)
			}
			return n.add(t.Context(), -1)
		}
		for _, n := range []*allowance{a, a, b} {
			if err := begin(n); err != nil {
				t.Fatal(err)
			}
			n.turns.end(true)
		}
		if wait := b.turns.untilNext(); wait < every-time.Second {
			t.Errorf("the node that has taken the last token lets the next order begin in %v", wait)
		}
		began := time.Now()
		err := begin(a) // it does not know of the last order
		if soon, ok := errors.AsType[errTooSoon](err); !ok || soon.until.Sub(began).Round(time.Second) != every {
			t.Errorf("a fourth order gets %v, want errTooSoon in %v", err, every)
		}
		a.turns.end(false)
		if err := begin(a); err != nil { // when the next token is due
			t.Error(err)
		}
		if waited := time.Since(began); waited < every || waited > every+time.Second {
			t.Errorf("the next order begins after %v, want %v", waited, every)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.giveBack(ended); err != nil {
			t.Error(err)
		}
		a.turns.end(false)
		if err := begin(a); err != nil { // with the token that was given back
			t.Error(err)
		}
		if waited := time.Since(began); waited > every+time.Second {
			t.Errorf("the order after one that was not counted begins after %v", waited)
		}
		a.turns.end(true)
	})
}

// When one node has spent all tokens, the next order waits, whatever node it is on.
func TestOrdersOfAllNodesCount(t *testing.T) {
	t.Parallel()
	n := newNodes(t, pgtest.Database(t), acmetest.Options{})
	var nodes [2]*node
	for i := range nodes {
		n.tokens = rate.NewLimiter(rate.Every(time.Hour), 20) // the own host may need several
		nodes[i] = n.add()
		nodes[i].serves(n.ownHost)
	}
	n.until("all tokens are spent", func() bool {
		_, spent := errors.AsType[errTooSoon](nodes[0].certs.ca.allowance.add(t.Context(), -1))
		return spent
	})
	before := n.ca.Orders()
	tag := n.addTag("shop.com", true)
	n.until("both nodes wait", func() bool {
		for _, node := range nodes {
			_, queued := node.certs.ca.turns.before(tag.Host)
			if !queued && time.Until(node.certs.Certificate(tag.Host).NextTry) < longEnough {
				return false
			}
		}
		return true
	})
	if orders := n.ca.Orders() - before; orders != 0 {
		t.Errorf("%d orders without a token", orders)
	}
}
