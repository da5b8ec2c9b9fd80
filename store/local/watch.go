package local

import (
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store/local/codec"
)

// watchers are the calls of Watch that wait for events of merchants. All requests wait for the committer, so it only notes
// the merchants of its events, and only if there are watchers. A goroutine wakes the watchers.
type watchers struct {
	last atomic.Uint64 // the last chunk on disk

	noting  sync.Mutex          // never held for long; taken after mu
	waiting bool                // there are watchers
	news    []codec.MerchantKey // merchants with newly committed events

	mu sync.Mutex
	of map[codec.MerchantKey]map[chan struct{}]struct{}

	work  chan struct{} // holds a value when there is news
	ended chan struct{}
	run   sync.WaitGroup
}

// newsPause is how long a watcher waits at most to be woken. Without the pause, each commit would wake it.
const newsPause = 10 * time.Millisecond

func newWatchers(last uint64) *watchers {
	w := &watchers{of: map[codec.MerchantKey]map[chan struct{}]struct{}{}, work: make(chan struct{}, 1), ended: make(chan struct{})}
	w.last.Store(last)
	return w
}

func (w *watchers) start() { w.run.Go(w.wakeAll) }

// close ends the goroutine. After that, watchers are not woken.
func (w *watchers) close() {
	close(w.ended)
	w.run.Wait()
}

// note notes the events of a commit. Only the committer calls it.
func (w *watchers) note(events []codec.Event, last uint64) {
	w.noting.Lock()
	defer w.noting.Unlock()
	w.last.Store(last)
	if !w.waiting {
		return
	}
	for i := range events {
		if i == 0 || events[i].Merchant != events[i-1].Merchant { // consecutive events often have the same merchant
			w.news = append(w.news, events[i].Merchant)
		}
	}
	select {
	case w.work <- struct{}{}:
	default:
	}
}

// wakeAll wakes the watchers of merchants that have new events.
func (w *watchers) wakeAll() {
	for {
		select {
		case <-w.work:
		case <-w.ended:
			return
		}
		w.noting.Lock()
		news := w.news
		w.news = nil
		w.noting.Unlock()
		w.mu.Lock()
		for _, m := range news {
			for c := range w.of[m] {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
		w.mu.Unlock()
		select {
		case <-time.After(newsPause):
		case <-w.ended:
			return
		}
	}
}

// watch implements store.Feed's Watch.
func (w *watchers) watch(merchants []codec.MerchantKey) (news <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	change := func(change func(m codec.MerchantKey)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, m := range merchants {
			change(m)
		}
		w.noting.Lock()
		defer w.noting.Unlock()
		w.waiting = len(w.of) > 0
	}
	change(func(m codec.MerchantKey) {
		if w.of[m] == nil {
			w.of[m] = map[chan struct{}]struct{}{}
		}
		w.of[m][c] = struct{}{}
	})
	return c, func() {
		change(func(m codec.MerchantKey) {
			if delete(w.of[m], c); len(w.of[m]) == 0 {
				delete(w.of, m)
			}
		})
	}
}
