package certs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"mtagd/store/pgtest"
	"mtagd/tlsmgr/acmetest"
)

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
			return n.take(t.Context())
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
		n.tokens = rate.NewLimiter(rate.Every(time.Hour), 100)
		nodes[i] = n.add()
		nodes[i].serves(n.ownHost)
	}
	n.until("all tokens are spent", func() bool {
		_, spent := errors.AsType[errTooSoon](nodes[0].certs.ca.allowance.take(t.Context()))
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
