// Package watch wakes those who wait for events of merchants.
package watch

import (
	"slices"
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
	of      map[string]map[chan struct{}]struct{} // by the ids of merchants and partners: they are UUIDs, so all differ
}

// Watch implements store.Feed.
func (w *Watchers) Watch(merchants []store.MerchantID) (news <-chan struct{}, stop func()) {
	return watch(w, merchants)
}

// WatchPartner implements store.Feed.
func (w *Watchers) WatchPartner(partner store.PartnerID) (news <-chan struct{}, stop func()) {
	return watch(w, []store.PartnerID{partner})
}

func watch[ID ~string](w *Watchers, ids []ID) (news <-chan struct{}, stop func()) {
	c, ids := make(chan struct{}, 1), slices.Clone(ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]map[chan struct{}]struct{}{}
	}
	for _, id := range ids {
		if w.of[string(id)] == nil {
			w.of[string(id)] = map[chan struct{}]struct{}{}
		}
		w.of[string(id)][c] = struct{}{}
	}
	w.waiting.Store(len(w.of) > 0)
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			if delete(w.of[string(id)], c); len(w.of[string(id)]) == 0 {
				delete(w.of, string(id))
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
	ids := map[string]bool{} // many merchants may have one partner, for whom many wait
	for _, m := range merchants {
		id := m.String()
		ids[id] = true
		if w.OwnerOf != nil {
			ids[string(w.OwnerOf(store.MerchantID(id)))] = true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range ids {
		for c := range w.of[id] {
			select {
			case c <- struct{}{}:
			default: // it holds a value already
			}
		}
	}
}
