package local

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"mtagd/store/local/codec"
	"mtagd/store/watch"
)

// watchers wake those who wait for events. All requests wait for the committer, so it only notes the merchants of its
// events, and only if somebody waits. A goroutine wakes them.
type watchers struct {
	*watch.Watchers
	last atomic.Uint64 // the last chunk on disk

	noting sync.Mutex  // never held for long
	news   []uuid.UUID // merchants with newly committed events

	work  chan struct{} // holds a value when there is news
	ended chan struct{}
	run   sync.WaitGroup
}

// newsPause is how long a watcher waits at most to be woken. Without the pause, each commit would wake it.
const newsPause = 10 * time.Millisecond

func newWatchers(all *watch.Watchers) *watchers {
	return &watchers{Watchers: all, work: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (w *watchers) start() { w.run.Go(w.wakeAll) }

// close ends the goroutine. After that, watchers are not woken.
func (w *watchers) close() {
	close(w.ended)
	w.run.Wait()
}

// note notes the events of a commit. Only the committer calls it.
func (w *watchers) note(events []codec.Event, last uint64) {
	w.last.Store(last)
	if !w.Any() {
		return
	}
	w.noting.Lock()
	defer w.noting.Unlock()
	for i := range events {
		if i == 0 || events[i].Merchant != events[i-1].Merchant { // consecutive events often have the same merchant
			w.news = append(w.news, uuid.UUID(events[i].Merchant))
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
		w.Wake(news)
		select {
		case <-time.After(newsPause):
		case <-w.ended:
			return
		}
	}
}
