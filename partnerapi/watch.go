package partnerapi

import (
	"context"
	"time"

	"mtagd/store"
)

// reader is a request that reads the feed: what it wants, where it is, and what it waits for.
type reader struct {
	api      *api
	partner  store.PartnerID
	caller   caller
	merchant store.MerchantID // empty: all of the partner's
	bot      *bool            // only events of bots, or only those of others; nil for all
	after    store.Cursor
	wait     time.Duration
	news     <-chan struct{} // set by watch
	stop     func()          // set by watch, which it ends
}

// watch begins to watch for events, before the feed is read: then nothing is missed.
func (f *reader) watch() {
	if f.merchant != "" {
		f.news, f.stop = f.api.Engine.Watch([]store.MerchantID{f.merchant})
	} else {
		f.news, f.stop = f.api.Engine.WatchPartner(f.partner)
	}
}

// await waits until there may be events. It returns false when the time is over or ctx ends first.
func (f *reader) await(ctx context.Context, most time.Duration) bool {
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case <-f.news:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	return false
}

// owners returns whose events are read now.
func (f *reader) owners() []store.MerchantID {
	if f.merchant != "" {
		return []store.MerchantID{f.merchant}
	}
	return f.api.Engine.Directory().MerchantsWithTags(f.partner)
}

// mayGoOn checks again what was checked when the request began. It returns after how long to check the next time.
// errKeyEnded: the key was revoked or has expired, or the session has ended. errNoMerchant: the merchant was deleted.
func (f *reader) mayGoOn(ctx context.Context) (next time.Duration, err error) {
	next, ok := f.api.validFor(f.caller)
	if !ok {
		return 0, errKeyEnded
	}
	if f.merchant != "" {
		if _, err := f.api.Engine.Merchant(ctx, f.merchant); store.KindOf(err) == store.KindNotFound {
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
