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
// events, and only if somebody waits. A timer wakes them.
type watchers struct {
	*watch.Watchers
	last atomic.Uint64 // the last chunk on disk

	noting sync.Mutex  // never held for long
	news   []uuid.UUID // merchants with newly committed events; nil: no timer runs
	woken  time.Time   // when watchers were woken last
}

// newsPause is how long a watcher waits at most to be woken. Without the pause, each commit would wake it.
const newsPause = 10 * time.Millisecond

// note notes the events of a commit. Only the committer calls it.
func (w *watchers) note(events []codec.Event, last uint64) {
	w.last.Store(last)
	if len(events) == 0 || !w.Any() {
		return
	}
	w.noting.Lock()
	defer w.noting.Unlock()
	if w.news == nil {
		time.AfterFunc(newsPause-time.Since(w.woken), w.wakeAll)
	}
	for i := range events {
		if i == 0 || events[i].Merchant != events[i-1].Merchant { // consecutive events often have the same merchant
			w.news = append(w.news, uuid.UUID(events[i].Merchant))
		}
	}
}

// wakeAll wakes the watchers of merchants that have new events.
func (w *watchers) wakeAll() {
	w.noting.Lock()
	news := w.news
	w.news, w.woken = nil, time.Now()
	w.noting.Unlock()
	w.Wake(news)
}
