package certs

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"mtagd/store"
)

// turns decides which order goes to the CA next, or has its DNS checked next. An order needs a slot and a token. The slots
// limit how many orders are in progress; the tokens keep to the CA's limit on new orders. There is one queue per partner
// of orders that wait for them, and the partners take turns (round robin). So 300 waiting orders of one partner delay the
// first order of another partner by at most one order. The service's own hosts go before all partners.
//
// A token is reserved for a turn until the turn ends. It is spent only if the CA has counted the order.
type turns struct {
	mu           sync.Mutex
	tokens       *rate.Limiter // of the CA's limit on new orders
	reserved     int           // tokens of the turns in progress
	slots        int           // free slots
	refusedUntil time.Time     // before this the CA refuses the orders of all hosts
	queues       []*queue      // the next one to be served first; none is empty
	timer        *time.Timer   // calls serve again when the next token is due, or at refusedUntil
}

// queue holds the orders of one partner that wait for their turn. The partner is empty for the service's own hosts.
type queue struct {
	partner store.PartnerID
	waiting []*turn
}

// turn is the turn of one order: it waits, then it is in progress until end.
type turn struct {
	host   string
	since  time.Time
	begins chan struct{} // closed when the wait is over
}

func newTurns(tokens *rate.Limiter, slots int) *turns {
	return &turns{tokens: tokens, slots: slots}
}

// wait returns when it is the host's turn. The caller must call end afterwards. An urgent order goes before the other
// orders of its partner. The error is that of ctx.
func (t *turns) wait(ctx context.Context, partner store.PartnerID, host string, urgent bool) error {
	mine := &turn{host: host, since: time.Now(), begins: make(chan struct{})}
	t.mu.Lock()
	t.join(partner, mine, urgent)
	t.serve()
	t.mu.Unlock()
	select {
	case <-mine.begins:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	left := t.leave(mine)
	t.mu.Unlock()
	if !left { // its turn has begun at the same moment
		t.end(false)
	}
	return ctx.Err()
}

// join adds a turn to its partner's queue. The caller holds t.mu.
func (t *turns) join(partner store.PartnerID, mine *turn, urgent bool) {
	i := slices.IndexFunc(t.queues, func(q *queue) bool { return q.partner == partner })
	if i < 0 {
		if i = len(t.queues); partner == "" {
			i = 0
		}
		t.queues = slices.Insert(t.queues, i, &queue{partner: partner})
	}
	q := t.queues[i]
	place := len(q.waiting)
	if urgent {
		place = 0
	}
	q.waiting = slices.Insert(q.waiting, place, mine)
}

// find returns the queue and place of the first waiting turn that match accepts; q is -1 without one. t.mu is held.
func (t *turns) find(match func(*turn) bool) (q, place int) {
	for q, queue := range t.queues {
		if place := slices.IndexFunc(queue.waiting, match); place >= 0 {
			return q, place
		}
	}
	return -1, 0
}

func isOf(host string) func(*turn) bool { return func(w *turn) bool { return w.host == host } }

// leave removes a turn that still waits. It returns false when the turn has begun. The caller holds t.mu.
func (t *turns) leave(mine *turn) bool {
	i, j := t.find(func(w *turn) bool { return w == mine })
	if i < 0 {
		return false
	}
	q := t.queues[i]
	if q.waiting = slices.Delete(q.waiting, j, j+1); len(q.waiting) == 0 {
		t.queues = slices.Delete(t.queues, i, i+1)
	}
	return true
}

// end ends the turn of an order. counted says that the CA has counted the order: then its token is spent.
func (t *turns) end(counted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots++
	t.reserved--
	if counted {
		t.tokens.Allow() // there is a token: it was reserved
	}
	t.serve()
}

// learn takes over how many tokens all nodes together have left, beside those of turns in progress; it may be negative.
func (t *turns) learn(left float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if spent := int(t.tokens.Tokens() - float64(t.reserved) - left); spent > 0 {
		t.tokens.AllowN(time.Now(), spent)
	}
}

// refuseUntil lets no turn begin before a time. Turns in progress go on.
func (t *turns) refuseUntil(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refusedUntil = later(t.refusedUntil, until)
}

// refused returns when turns begin again; a time in the past when nothing stops them.
func (t *turns) refused() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refusedUntil
}

// serve lets as many turns begin as there are slots and tokens. The caller holds t.mu.
func (t *turns) serve() {
	for t.slots > 0 && len(t.queues) > 0 {
		if wait := t.untilNext(); wait > 0 {
			t.serveIn(wait)
			return
		}
		q := t.queues[0]
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		if len(q.waiting) == 0 {
			t.queues = t.queues[1:]
		} else if q.partner != "" {
			t.queues = append(t.queues[1:], q)
		}
		t.slots--
		t.reserved++
		close(next.begins)
	}
}

// untilNext returns how long it takes until the CA allows another order; 0 when it does now. The caller holds t.mu.
func (t *turns) untilNext() time.Duration {
	if wait := time.Until(t.refusedUntil); wait > 0 {
		return wait
	}
	missing := float64(t.reserved+1) - t.tokens.Tokens()
	if t.tokens.Limit() == rate.Inf || missing <= 0 {
		return 0
	}
	wait := time.Duration(missing / float64(t.tokens.Limit()) * float64(time.Second))
	return max(wait, time.Millisecond) // a rounding error must not make it 0
}

// serveIn calls serve after a while, instead of at the time of an earlier call. The caller holds t.mu.
func (t *turns) serveIn(wait time.Duration) {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = time.AfterFunc(wait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.serve()
	})
}

// bringForward makes a host's waiting order the next one of its partner.
func (t *turns) bringForward(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q, i := t.find(isOf(host)); q >= 0 {
		waiting := t.queues[q].waiting
		w := waiting[i]
		copy(waiting[1:i+1], waiting[:i])
		waiting[0] = w
	}
}

// before returns how many orders go before that of a host, and whether that waits for its turn.
func (t *turns) before(host string) (n int, waits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, place := t.find(isOf(host))
	if i < 0 {
		return 0, false
	}
	for j, other := range t.queues {
		switch {
		case j == i:
			n += place
		case other.partner == "": // they all go first
			n += len(other.waiting)
		case t.queues[i].partner == "":
		case j < i: // it has one turn more before this order
			n += min(len(other.waiting), place+1)
		default:
			n += min(len(other.waiting), place)
		}
	}
	return n, true
}

// waiting returns how many orders wait for their turn, and since when the first of them does.
func (t *turns) waiting() (n int, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range t.queues {
		n += len(q.waiting)
		for _, w := range q.waiting {
			if since.IsZero() || w.since.Before(since) {
				since = w.since
			}
		}
	}
	return n, since
}
