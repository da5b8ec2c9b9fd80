// Package budget shares what is scarce among those who need it at the same time: memory for the request bodies of clients
// and the answers to partners, slots for verifications, connections to a database. It counts in bytes, or in slots. Each
// holder may have a share of the total at most. A reservation that does not fit waits for its turn: what is freed goes to
// the waiting holders in turn, those with nothing reserved first. So a holder that asks often does not delay the others.
package budget

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Why a reservation was refused.
var (
	ErrShare = errors.New("the holder has its whole share reserved")
	ErrTotal = errors.New("the whole budget is reserved")
)

// Budget is an amount of bytes that holders reserve and release. K identifies a holder. A Budget keeps nothing of a
// holder that has nothing reserved and does not wait. Its methods are safe for concurrent use.
type Budget[K comparable] struct {
	total int64
	share func(K) int64
	fair  bool // see Fair

	mu       sync.Mutex
	reserved int64
	holders  map[K]*holder
	turns    []*holder // those whose first waiter fits their share, the next one first
}

type holder struct {
	share    int64
	reserved int64
	waiting  []*waiter // in order of arrival
	inTurn   bool      // whether it is in turns
}

type waiter struct {
	bytes   int64
	granted chan struct{} // closed when its bytes are reserved
}

// New returns a budget of total bytes. share returns how many of them a holder may reserve; it must be fast. A holder
// without a reservation gets one of any size up to the total, even if its share is smaller.
func New[K comparable](total int64, share func(K) int64) *Budget[K] {
	return &Budget[K]{total: total, share: share, holders: map[K]*holder{}}
}

// Turns returns a budget of n slots. Holders take turns; one may have all slots while no other waits.
func Turns[K comparable](n int64) *Budget[K] { return New(n, func(K) int64 { return n }) }

// Fair makes the holders leave room for each other, and returns b: after a reservation, a holder has at most as much as is
// free. So there is some room for the next holder, however many there are, and those with the most wait. A holder without
// a reservation gets what it asks for if that is free. Fair must be called before anything is reserved.
func (b *Budget[K]) Fair() *Budget[K] {
	b.fair = true
	return b
}

// TryReserve reserves bytes for a holder if they fit now. Otherwise it returns ErrShare or ErrTotal.
func (b *Budget[K]) TryReserve(key K, bytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.holder(key)
	defer b.forgetIdle(key, h)
	return b.take(h, bytes)
}

// Overdraw reserves bytes for a holder even if they do not fit. The caller has made sure that others soon release as many.
func (b *Budget[K]) Overdraw(key K, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holder(key).reserved += bytes
	b.reserved += bytes
}

// Reserve waits for its turn until bytes fit, and reserves them. When ctx ends first, it returns what they do not fit into.
func (b *Budget[K]) Reserve(ctx context.Context, key K, bytes int64) error {
	b.mu.Lock()
	h := b.holder(key)
	if b.take(h, bytes) == nil {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{bytes, make(chan struct{})}
	h.waiting = append(h.waiting, w)
	b.grant(h)
	b.mu.Unlock()

	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		return b.giveUp(key, h, w)
	}
}

// giveUp removes a waiter, unless its turn came at the last moment.
func (b *Budget[K]) giveUp(key K, h *holder, w *waiter) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(h.waiting, w)
	if i < 0 {
		return nil
	}
	h.waiting = slices.Delete(h.waiting, i, i+1)
	err := ErrTotal
	if !h.fits(w.bytes) {
		err = ErrShare
	}
	b.grant(h) // those behind it may fit
	b.forgetIdle(key, h)
	return err
}

// Release returns reserved bytes. A reservation may be released in parts.
func (b *Budget[K]) Release(key K, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.holder(key)
	h.reserved -= bytes
	b.reserved -= bytes
	b.grant(h)
	b.forgetIdle(key, h)
}

// Held returns how many bytes a holder has reserved.
func (b *Budget[K]) Held(key K) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holders[key]; h != nil {
		return h.reserved
	}
	return 0
}

// Reserved returns how many bytes all holders together have reserved.
func (b *Budget[K]) Reserved() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserved
}

// holder returns the holder with a key, with its share as of now.
func (b *Budget[K]) holder(key K) *holder {
	h := b.holders[key]
	if h == nil {
		h = new(holder)
		b.holders[key] = h
	}
	h.share = b.share(key)
	return h
}

func (b *Budget[K]) forgetIdle(key K, h *holder) {
	if h.reserved == 0 && len(h.waiting) == 0 {
		delete(b.holders, key)
	}
}

// take reserves bytes if they fit and no earlier request of the holder waits.
func (b *Budget[K]) take(h *holder, bytes int64) error {
	switch {
	case len(h.waiting) > 0 || !h.fits(bytes):
		return ErrShare
	case !b.fits(bytes) || !b.leavesRoom(h, bytes):
		return ErrTotal
	}
	h.reserved += bytes
	b.reserved += bytes
	return nil
}

// grant reserves bytes for waiters that fit now: holders take turns, those with nothing reserved first. Pass the holder
// whose reservation or waiters have changed; it joins the turns.
func (b *Budget[K]) grant(changed *holder) {
	if len(changed.waiting) > 0 && !changed.inTurn {
		changed.inTurn = true
		b.turns = append(b.turns, changed)
	}
	for len(b.turns) > 0 {
		next := b.nextTurn()
		if next < 0 {
			return
		}
		h := b.turns[next]
		if len(h.waiting) == 0 || !h.fits(h.waiting[0].bytes) {
			h.inTurn = false // until its next change
			b.turns = slices.Delete(b.turns, next, next+1)
			continue
		}
		w := h.waiting[0]
		if !b.fits(w.bytes) {
			return
		}
		h.waiting = h.waiting[1:]
		h.reserved += w.bytes
		b.reserved += w.bytes
		close(w.granted)
		b.turns = append(slices.Delete(b.turns, next, next+1), h)
	}
}

// nextTurn returns the place in turns of the holder whose turn it is; -1 when all of them have to leave room for others.
func (b *Budget[K]) nextTurn() int {
	if i := slices.IndexFunc(b.turns, func(h *holder) bool { return h.reserved == 0 }); i >= 0 {
		return i
	}
	return slices.IndexFunc(b.turns, func(h *holder) bool { return len(h.waiting) == 0 || b.leavesRoom(h, h.waiting[0].bytes) })
}

// leavesRoom reports whether a holder leaves as much to others as it has.
func (b *Budget[K]) leavesRoom(h *holder, bytes int64) bool {
	return !b.fair || h.reserved == 0 || h.reserved+bytes <= b.total-b.reserved-bytes
}

func (h *holder) fits(bytes int64) bool { return h.reserved == 0 || h.reserved+bytes <= h.share }

func (b *Budget[K]) fits(bytes int64) bool { return b.reserved == 0 || b.reserved+bytes <= b.total }
