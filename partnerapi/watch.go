package partnerapi

import (
	"context"
	"time"

	"mtagd/store"
)

// watch is a reader of the feed: where it is, and what it waits for.
type watch struct {
	api  *api
	feed feed
	news <-chan struct{} // nil: the reader does not wait
	stop func()          // ends the watch
}

// newWatch begins a watch, before the feed is read: then nothing is missed.
func (a *api) newWatch(f feed) *watch {
	w := &watch{api: a, feed: f, stop: func() {}}
	switch {
	case f.wait == 0:
	case f.merchant != "":
		w.news, w.stop = a.Engine.Watch([]store.MerchantID{f.merchant})
	default:
		w.news, w.stop = a.Engine.WatchPartner(f.partner)
	}
	return w
}

// owners returns whose events are read now.
func (w *watch) owners() []store.MerchantID {
	if w.feed.merchant != "" {
		return []store.MerchantID{w.feed.merchant}
	}
	return w.api.Engine.Directory().MerchantsWithTags(w.feed.partner)
}

// wait waits until there may be events. It returns false when the time is over or ctx ends first.
func (w *watch) wait(ctx context.Context, most time.Duration) bool {
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-w.news:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	return false
}

// mayGoOn checks again what was checked when a request began to follow the feed. It returns after how long to check the next
// time. errKeyEnded: the key was revoked or has expired, or the session has ended. errNoMerchant: the merchant was deleted.
func (a *api) mayGoOn(ctx context.Context, f feed) (next time.Duration, err error) {
	next, ok := a.validFor(f.caller)
	if !ok {
		return 0, errKeyEnded
	}
	if f.merchant != "" {
		if _, err := a.Engine.Merchant(ctx, f.merchant); store.KindOf(err) == store.KindNotFound {
			return 0, errNoMerchant
		}
	}
	return next, nil
}

// validFor returns how long a stream or an export may go on without another look, and false when it must end: its key or its
// session is not valid any more.
func (a *api) validFor(c caller) (time.Duration, bool) {
	now, directory := a.Now(), a.Engine.Directory()
	next := a.heartbeat
	if c.session.ID != "" {
		_, _, ok := directory.Session(c.session.ID, now)
		return min(next, c.session.ExpiresAt.Sub(now)), ok
	}
	key, ok := directory.Key(c.key.ID)
	if key.ExpiresAt != nil {
		next = min(next, key.ExpiresAt.Sub(now))
	}
	return next, ok && key.Valid(now)
}
