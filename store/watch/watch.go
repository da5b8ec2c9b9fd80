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
	OwnerOf func(store.MerchantID) store.PartnerID // Directory.Owner; nil: nobody waits for a partner

	waiting atomic.Bool
	mu      sync.Mutex
	of      map[key]map[chan struct{}]struct{}
}

// key is whose events somebody waits for: a merchant's, or those of all merchants of a partner.
type key struct {
	merchant uuid.UUID
	partner  store.PartnerID
}

// Watch implements store.Feed. No merchant has an id that is not a UUID.
func (w *Watchers) Watch(merchants []store.MerchantID) (news <-chan struct{}, stop func()) {
	var keys []key
	for _, id := range merchants {
		if m, err := uuid.Parse(string(id)); err == nil {
			keys = append(keys, key{merchant: m})
		}
	}
	return w.watch(keys)
}

// WatchPartner implements store.Feed.
func (w *Watchers) WatchPartner(partner store.PartnerID) (news <-chan struct{}, stop func()) {
	return w.watch([]key{{partner: partner}})
}

func (w *Watchers) watch(keys []key) (news <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[key]map[chan struct{}]struct{}{}
	}
	for _, k := range keys {
		if w.of[k] == nil {
			w.of[k] = map[chan struct{}]struct{}{}
		}
		w.of[k][c] = struct{}{}
	}
	w.waiting.Store(len(w.of) > 0)
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, k := range keys {
			if delete(w.of[k], c); len(w.of[k]) == 0 {
				delete(w.of, k)
			}
		}
		w.waiting.Store(len(w.of) > 0)
	}
}

// Any reports whether somebody waits. An engine that asks after its feed has new events misses nobody.
func (w *Watchers) Any() bool { return w.waiting.Load() }

// Wake wakes those who wait for events of these merchants. The directory must have their tags.
func (w *Watchers) Wake(merchants []uuid.UUID) {
	if !w.Any() {
		return
	}
	keys := map[key]bool{} // many merchants may have one partner, for whom many wait
	for _, m := range merchants {
		keys[key{merchant: m}] = true
		if w.OwnerOf != nil {
			keys[key{partner: w.OwnerOf(store.MerchantID(m.String()))}] = true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range keys {
		for c := range w.of[k] {
			select {
			case c <- struct{}{}:
			default: // it holds a value already
			}
		}
	}
}
