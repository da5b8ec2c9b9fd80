package partnerapi

import (
	"context"
	"slices"
	"sync"
	"time"

	"mtagd/store"
)

// ownersInterval is how often the service looks for new merchants of a partner while requests wait for events of all of
// them.
const ownersInterval = time.Second

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
		w.news, w.stop = a.watches.watch(f.partner)
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

// watches are the watches of all merchants of a partner. A partner may have thousands of readers and of merchants, so its
// readers share one call of Engine.Watch.
type watches struct {
	engine   store.Engine
	mu       sync.Mutex
	partners map[store.PartnerID]*partnerWatch // of the partners that have readers
}

// partnerWatch is the watch of one partner's merchants.
type partnerWatch struct {
	readers map[chan struct{}]struct{} // what the readers wait for; each holds one value
	ended   chan struct{}              // closed when the last reader has gone

	// Only run uses these.
	merchants []store.MerchantID // that are watched
	news      <-chan struct{}    // of these merchants
	stop      func()             // ends news
}

func newWatches(engine store.Engine) *watches {
	return &watches{engine: engine, partners: map[store.PartnerID]*partnerWatch{}}
}

// watch is Engine.Watch for all merchants of a partner. Those that get their first tag later are watched within
// ownersInterval; then the channel has a value, as they may have events already.
func (ws *watches) watch(partner store.PartnerID) (news <-chan struct{}, stop func()) {
	reader := make(chan struct{}, 1)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	p := ws.partners[partner]
	if p == nil {
		p = &partnerWatch{readers: map[chan struct{}]struct{}{}, ended: make(chan struct{})}
		p.merchants = ws.engine.Directory().MerchantsWithTags(partner)
		p.news, p.stop = ws.engine.Watch(p.merchants)
		ws.partners[partner] = p
		go ws.run(partner, p)
	}
	p.readers[reader] = struct{}{}
	return reader, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if delete(p.readers, reader); len(p.readers) == 0 && ws.partners[partner] == p {
			delete(ws.partners, partner)
			close(p.ended)
		}
	}
}

// run passes the news of a partner's merchants to its readers, until the last one has gone.
func (ws *watches) run(partner store.PartnerID, p *partnerWatch) {
	recheck := time.NewTicker(ownersInterval)
	defer recheck.Stop()
	defer func() { p.stop() }()
	for {
		select {
		case <-p.news:
		case <-recheck.C:
			merchants := ws.engine.Directory().MerchantsWithTags(partner)
			if slices.Equal(merchants, p.merchants) {
				continue
			}
			p.stop()
			p.merchants = merchants
			p.news, p.stop = ws.engine.Watch(merchants)
		case <-p.ended:
			return
		}
		ws.mu.Lock()
		for reader := range p.readers {
			select {
			case reader <- struct{}{}:
			default:
			}
		}
		ws.mu.Unlock()
	}
}
