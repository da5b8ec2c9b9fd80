// Package watch wakes those who wait for events of merchants.
package watch

import (
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"mtagd/store"
)

// Watchers are those who wait. The zero value has none.
type Watchers struct {
	waiting atomic.Bool
	mu      sync.Mutex
	of      map[uuid.UUID]map[chan struct{}]struct{} // by merchant
}

// Watch implements store.Feed. No merchant has an id that is not a UUID.
func (w *Watchers) Watch(merchants []store.MerchantID) (news <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[uuid.UUID]map[chan struct{}]struct{}{}
	}
	var keys []uuid.UUID
	for _, id := range merchants {
		m, err := uuid.Parse(string(id))
		if err != nil {
			continue
		}
		if w.of[m] == nil {
			w.of[m] = map[chan struct{}]struct{}{}
		}
		w.of[m][c] = struct{}{}
		keys = append(keys, m)
	}
	w.waiting.Store(len(w.of) > 0)
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, m := range keys {
			if delete(w.of[m], c); len(w.of[m]) == 0 {
				delete(w.of, m)
			}
		}
		w.waiting.Store(len(w.of) > 0)
	}
}

// Any reports whether somebody waits. An engine that asks after its feed has new events misses nobody.
func (w *Watchers) Any() bool { return w.waiting.Load() }

// Wake wakes those who wait for events of these merchants.
func (w *Watchers) Wake(merchants []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range merchants {
		for c := range w.of[m] {
			select {
			case c <- struct{}{}:
			default: // it holds a value already
			}
		}
	}
}
