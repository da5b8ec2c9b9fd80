package certs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

func newTurnWorld(t *testing.T, slots int) *turnWorld {
	w := &turnWorld{T: t, turns: newTurns(slots)}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	return w
}

// newPausedWorld has a CA that refuses all orders for an hour.
func newPausedWorld(t *testing.T, slots int) *turnWorld {
	w := newTurnWorld(t, slots)
	w.refuseUntil(time.Now().Add(time.Hour))
	return w
}

// order makes an order that ends as soon as its turn has begun.
func (w *turnWorld) order(partner store.PartnerID, host string, urgent bool) {
	w.running.Go(func() {
		end, err := w.wait(w.ctx, partner, host, urgent)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.served = append(w.served, host)
		w.mu.Unlock()
		end()
	})
	synctest.Wait()
}

func (w *turnWorld) stopAll() {
	w.cancel()
	w.running.Wait()
	w.stop()
}

func (w *turnWorld) hosts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.served)
}

func TestPartnersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPausedWorld(t, 1)
		defer w.stopAll()
		for i := range 300 {
			w.order("A", fmt.Sprintf("a%d", i), false)
		}
		w.order("B", "b0", false)
		w.order("B", "b1", false)
		w.order("", "own", false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := w.hosts(), []string{"own", "a0", "b0", "a1", "b1", "a2"}; !slices.Equal(got[:len(want)], want) {
			t.Errorf("served %v, want %v", got, want)
		}
	})
}

func TestOrdersFeelTheirWayAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPausedWorld(t, 3)
		defer w.stopAll()
		var ends []func()
		for i := range 9 {
			w.running.Go(func() {
				if end, err := w.wait(w.ctx, "A", fmt.Sprint(i), false); err == nil {
					w.mu.Lock()
					defer w.mu.Unlock()
					ends = append(ends, end)
				}
			})
		}
		end := func(i int) {
			w.mu.Lock()
			end := ends[i]
			w.mu.Unlock()
			end()
		}
		expect := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(ends) != want {
				t.Errorf("%s, %d orders have begun, want %d", when, len(ends), want)
			}
		}
		time.Sleep(time.Hour)
		expect("after the refusal", 1)
		end(0)
		expect("after one order without a refusal", 3)
		end(1)
		expect("after two", 5)
		w.refuseUntil(time.Now())
		end(2) // it began before the second refusal, and says nothing about it
		end(3)
		expect("after the second refusal, with one order in progress", 5)
		end(4)
		expect("without one", 6)
		end(5)
		expect("after an order without a refusal", 8)
		end(6)
		end(7)
		expect("at the end", 9)
		end(8)
	})
}

func TestSlotsLimitTheOrdersInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, 2)
		defer w.stopAll()
		var ends []func()
		for _, host := range []string{"a", "b"} {
			end, err := w.wait(w.ctx, "A", host, false)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		w.order("A", "c", false)
		if got := w.hosts(); len(got) > 0 {
			t.Errorf("%v began without a slot", got)
		}
		ends[0]()
		synctest.Wait()
		if got := w.hosts(); !slices.Equal(got, []string{"c"}) {
			t.Errorf("served %v, want c", got)
		}
		ends[1]()
	})
}

func TestOrderIsBroughtForwardInTheQueueOfItsPartner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPausedWorld(t, 1)
		defer w.stopAll()
		for _, host := range []string{"a0", "a1", "a2", "a3"} {
			w.order("A", host, false)
		}
		w.order("B", "b0", false)
		w.bringForward("a2")
		w.bringForward("unknown")
		w.order("A", "urgent", true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got, want := w.hosts(), []string{"urgent", "b0", "a2", "a0", "a1", "a3"}; !slices.Equal(got, want) {
			t.Errorf("served %v, want %v", got, want)
		}
	})
}

func TestNoTurnBeginsWhileTheCARefusesAllHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTurnWorld(t, ordersAtOnce)
		defer w.stopAll()
		w.refuseUntil(time.Now().Add(time.Hour))
		w.refuseUntil(time.Now().Add(time.Minute)) // does not shorten it
		w.order("A", "a", false)
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
		w := newPausedWorld(t, 1)
		defer w.stopAll()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.wait(ctx, "A", "a", false); err == nil {
			t.Fatal("a turn began while the CA refuses all hosts")
		}
		if n, _ := w.waiting(); n != 0 {
			t.Errorf("%d orders wait", n)
		}
		w.order("B", "b", false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := w.hosts(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("served %v, want b", got)
		}
	})
}

// What partners read must agree with what happens.
func TestOrdersBeforeAnOrderAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newPausedWorld(t, 1)
		defer w.stopAll()
		began := time.Now()
		before := map[string]int{}
		for partner, n := range map[store.PartnerID]int{"A": 5, "B": 2, "C": 1, "": 2, "D": 3} {
			for i := range n {
				w.order(partner, fmt.Sprint(partner, i), false)
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
		time.Sleep(time.Hour)
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
