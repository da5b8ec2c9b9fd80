package certs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"mtagd/store"
)

// turnWorld has orders that wait for their turn, inside a synctest bubble: its clock stands still until all wait.
type turnWorld struct {
	*testing.T
	*turns
	running sync.WaitGroup
	cancel  context.CancelFunc
	ctx     context.Context

	mu     sync.Mutex
	served []string // hosts, in the order of their turns
}

func newTurnWorld(t *testing.T, tokens *rate.Limiter, slots int) *turnWorld {
	w := &turnWorld{T: t, turns: newTurns(tokens, slots)}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	return w
}

// order makes an order that ends as soon as its turn has begun.
func (w *turnWorld) order(partner store.PartnerID, host string, urgent, counted bool) {
	w.running.Go(func() {
		if w.wait(w.ctx, partner, host, urgent) != nil {
			return
		}
		w.mu.Lock()
		w.served = append(w.served, host)
		w.mu.Unlock()
		w.end(counted)
	})
	synctest.Wait()
}

func (w *turnWorld) stopAll() {
	w.cancel()
	w.running.Wait()
}

func (w *turnWorld) hosts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.served)
}

// spent is a limiter of Let's Encrypt's rate whose tokens are spent.
func spent() *rate.Limiter {
	l := newOrderLimiter("https://acme-v02.api.letsencrypt.org/directory")
	l.AllowN(time.Now(), letsEncryptBurst)
	return l
}

func TestPartnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, spent(), ordersAtOnce)
		defer w.stopAll()
		for i := range 300 {
			w.order("A", fmt.Sprintf("a%d", i), false, true)
		}
		w.order("B", "b0", false, true)
		w.order("B", "b1", false, true)
		w.order("", "own", false, true)
		time.Sleep(5 * letsEncryptEvery)
		synctest.Wait()
		if got, want := w.hosts(), []string{"own", "a0", "b0", "a1", "b1"}; !slices.Equal(got, want) {
			t.Errorf("served %v, want %v", got, want)
		}
	})
}

func TestOrdersKeepToTheLimitOfLetsEncrypt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, newOrderLimiter("https://acme-v02.api.letsencrypt.org/directory"), ordersAtOnce)
		defer w.stopAll()
		for i := range 700 {
			w.order("A", fmt.Sprint(i), false, true)
		}
		for _, c := range []struct {
			sleep time.Duration
			want  int
		}{{0, 300}, {35 * time.Second, 300}, {2 * time.Second, 301}, {3*time.Hour - 37*time.Second, 600}} {
			time.Sleep(c.sleep)
			synctest.Wait()
			if n := len(w.hosts()); n != c.want {
				t.Errorf("%d orders, want %d", n, c.want)
			}
		}
	})
}

func TestOrderThatTheCADidNotCountSpendsNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, rate.NewLimiter(rate.Every(time.Hour), 1), ordersAtOnce)
		defer w.stopAll()
		for i := range 3 {
			w.order("A", fmt.Sprint(i), false, false)
		}
		w.order("A", "counted", false, true)
		w.order("A", "waits", false, true)
		if got, want := w.hosts(), []string{"0", "1", "2", "counted"}; !slices.Equal(got, want) {
			t.Errorf("served %v, want %v", got, want)
		}
	})
}

func TestSlotsLimitTheOrdersInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, rate.NewLimiter(rate.Inf, 0), 2)
		defer w.stopAll()
		for _, host := range []string{"a", "b"} {
			if err := w.wait(w.ctx, "A", host, false); err != nil {
				t.Fatal(err)
			}
		}
		w.order("A", "c", false, true)
		if got := w.hosts(); len(got) > 0 {
			t.Errorf("%v began without a slot", got)
		}
		w.end(true)
		synctest.Wait()
		if got := w.hosts(); !slices.Equal(got, []string{"c"}) {
			t.Errorf("served %v, want c", got)
		}
		w.end(true)
	})
}

func TestOrderIsBroughtForwardInTheQueueOfItsPartner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, spent(), ordersAtOnce)
		defer w.stopAll()
		for _, host := range []string{"a0", "a1", "a2", "a3"} {
			w.order("A", host, false, true)
		}
		w.order("B", "b0", false, true)
		w.bringForward("a2")
		w.bringForward("unknown")
		w.order("A", "urgent", true, true)
		time.Sleep(6 * letsEncryptEvery)
		synctest.Wait()
		if got, want := w.hosts(), []string{"urgent", "b0", "a2", "a0", "a1", "a3"}; !slices.Equal(got, want) {
			t.Errorf("served %v, want %v", got, want)
		}
	})
}

func TestNoTurnBeginsWhileTheCARefusesAllHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, rate.NewLimiter(rate.Inf, 0), ordersAtOnce)
		defer w.stopAll()
		w.refuseUntil(time.Now().Add(time.Hour))
		w.refuseUntil(time.Now().Add(time.Minute)) // does not shorten it
		w.order("A", "a", false, true)
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if got := w.hosts(); len(got) > 0 {
			t.Errorf("%v began too early", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.hosts(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("served %v, want a", got)
		}
	})
}

func TestCancelledWaitLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, spent(), 1)
		defer w.stopAll()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.wait(ctx, "A", "a", false); err == nil {
			t.Fatal("a turn began without a token")
		}
		if n, _ := w.waiting(); n != 0 {
			t.Errorf("%d orders wait", n)
		}
		w.order("B", "b", false, true)
		time.Sleep(letsEncryptEvery)
		synctest.Wait()
		if got := w.hosts(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("served %v, want b", got)
		}
	})
}

// What partners read must agree with what happens.
func TestOrdersBeforeAnOrderAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, spent(), ordersAtOnce)
		defer w.stopAll()
		began := time.Now()
		before := map[string]int{}
		for partner, n := range map[store.PartnerID]int{"A": 5, "B": 2, "C": 1, "": 2, "D": 3} {
			for i := range n {
				w.order(partner, fmt.Sprint(partner, i), false, true)
			}
		}
		for _, q := range w.queues {
			for _, waiting := range q.waiting {
				n, waits := w.before(waiting.host)
				if !waits {
					t.Errorf("%s does not wait", waiting.host)
				}
				before[waiting.host] = n
			}
		}
		if n, since := w.waiting(); n != 13 || !since.Equal(began) {
			t.Errorf("%d orders wait since %s, want 13 since %s", n, since, began)
		}
		time.Sleep(20 * letsEncryptEvery)
		synctest.Wait()
		for i, host := range w.hosts() {
			if before[host] != i {
				t.Errorf("%d orders went before %s, but %d were announced", i, host, before[host])
			}
		}
		if _, waits := w.before("A0"); waits || len(w.hosts()) != 13 {
			t.Errorf("served %v, want all", w.hosts())
		}
	})
}
