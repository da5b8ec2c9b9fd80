package read

import (
	"sync"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// watches has those who wait for events.
type watches struct {
	mu  sync.Mutex
	all map[uuid.UUID]map[chan struct{}]bool // by merchant
}

// Watch implements store.Feed. Events of this node wake watchers immediately, those of other nodes within
// control.FollowInterval.
func (r *Reader) Watch(merchants []store.MerchantID) (news <-chan struct{}, stop func()) {
	told := make(chan struct{}, 1)
	w := &r.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[uuid.UUID]map[chan struct{}]bool{}
	}
	var keys []uuid.UUID
	for _, id := range merchants {
		key, ok := conn.KeyOf(id)
		if !ok {
			continue
		}
		if w.all[key] == nil {
			w.all[key] = map[chan struct{}]bool{}
		}
		w.all[key][told] = true
		keys = append(keys, key)
	}
	return told, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, key := range keys {
			if delete(w.all[key], told); len(w.all[key]) == 0 {
				delete(w.all, key)
			}
		}
	}
}

// Tell wakes the watchers of these merchants.
func (r *Reader) Tell(merchants []uuid.UUID) {
	w := &r.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range merchants {
		for told := range w.all[m] {
			select {
			case told <- struct{}{}:
			default: // it holds a value already
			}
		}
	}
}
