package tag

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/store"
)

// Every request to a tag host takes a token of the client's address, whatever its answer: a flood of wrong requests
// costs the server as much as one of events. Each 16 KiB of its body takes another one, because reading them costs as
// much as the rest of a request. In a batch each further event takes one too. Only GET /health is free: its answer costs
// no more than a refusal, and the health checks of a load balancer must not fail because of somebody else at its address.
//
// Events and look-ups of muids also take a token each of their merchant, over all its tags.
//
// A merchant may store only so many bytes a day. So somebody who has nothing but a tag id, which is in every page, cannot
// fill the disk. One address may store half of that, which leaves the other half for the merchant's visitors.
//
// The figures: one server takes 15,000 to 20,000 single events a second on two processors. One address may take a tenth
// of that, and thirty seconds' worth at once. An office or a mobile network with thousands of visitors sends less than a
// hundred a second. A backend that sends 60 batches of 1,000 events after an outage gets them in at once. A merchant may
// take half of the server with single events. One address cannot use up a merchant's rate.
const (
	// DefaultAddressEvents is how many events one address may send in a second.
	DefaultAddressEvents = 2000

	addressBurst  = 30 * time.Second // at the address's rate
	merchantBurst = 10 * time.Second
	bodyToken     = 16 << 10 // bytes of a body that take a token

	diskShare    = 10      // a merchant may store a tenth of the free disk space in a day,
	leastDay     = 1 << 30 // but always this many bytes
	addressShare = 2       // one address may store half of what its merchant may
	besidesRaw   = 128     // bytes that an event takes on the disk besides its raw bytes: its ids, its place in the index, links
)

const day = 24 * time.Hour

// The kinds of buckets in limits.merchants.
const (
	kindEvents      byte = iota // of a merchant
	kindBytes                   // of a merchant
	kindSenderBytes             // of a merchant, from one address
)

// limits are the token buckets of the tag protocol.
type limits struct {
	addresses *limit.Addresses // nil: no limit
	merchants *limit.Buckets
	freeSpace func() uint64 // bytes that events may still take

	nextHint atomic.Int64 // when a proxy may be suspected again; nanoseconds since 1970
}

// newLimits returns nil when there are no limits.
func newLimits(cfg *Config) *limits {
	if !cfg.Limits {
		return nil
	}
	l := &limits{merchants: limit.NewBuckets(), freeSpace: cfg.Engine.FreeSpace}
	if perSecond := float64(cfg.AddressEvents); perSecond > 0 {
		l.addresses = limit.NewAddresses(limit.Rate{PerSecond: perSecond, Burst: perSecond * addressBurst.Seconds()})
	}
	return l
}

// sender is a client that sends events for a merchant.
type sender struct {
	address     netip.Addr // as clientaddr.Of returns it
	merchant    store.MerchantID
	limits      store.MerchantLimits // of the merchant
	cookie      string               // the muid of the request's cookie
	mayIdentify bool                 // link identifiers to a muid, and resolve a muid by them
}

// admitRequest takes the tokens of a request. When there are none, it answers the request and returns false. admitBytes
// and admitEvents do the same for what else a request takes.
func (s *Server) admitRequest(ctx *fasthttp.RequestCtx, client netip.Addr) bool {
	return s.limits == nil || s.takeAddress(ctx, client, 1+len(ctx.Request.Body())/bodyToken, s.cfg.Now())
}

// admitBytes checks that the merchant may store more bytes today. What it stores is known only when it is stored:
// spendBytes takes them.
func (s *Server) admitBytes(ctx *fasthttp.RequestCtx, from *sender) bool {
	if s.limits == nil {
		return true
	}
	wait := s.limits.useBytes(from, 0, s.cfg.Now())
	if wait == 0 {
		return true
	}
	s.cfg.Refusals.Count(limit.MerchantBytes, limit.Merchant(from.merchant))
	tooManyBytes.sendAfter(ctx, wait)
	return false
}

// admitEvents takes a token of the merchant for each event of a request, and one of the address for each event after the
// first.
func (s *Server) admitEvents(ctx *fasthttp.RequestCtx, from *sender, n int) bool {
	if s.limits == nil {
		return true
	}
	now := s.cfg.Now()
	if n > 1 && !s.takeAddress(ctx, from.address, n-1, now) {
		return false
	}
	perSecond := float64(from.limits.EventsPerSecond.Or(store.DefaultEventsPerSecond))
	if perSecond < 0 { // store.NoLimit
		return true
	}
	l := s.limits.merchants
	rate := limit.Rate{PerSecond: perSecond, Burst: perSecond * merchantBurst.Seconds()}
	wait := l.Take(l.Key(kindEvents, string(from.merchant)), int64(n), rate, now)
	if wait == 0 {
		return true
	}
	s.cfg.Refusals.Count(limit.MerchantEvents, limit.Merchant(from.merchant))
	tooManyForMerchant.sendAfter(ctx, wait)
	return false
}

// spendMarks takes the bytes of the marks that were stored.
func (s *Server) spendMarks(from *sender, marks []store.Mark) {
	stored := 0
	for i := range marks {
		if marks[i].Outcome == store.Recorded {
			stored += len(marks[i].Raw) + besidesRaw
		}
	}
	s.spendBytes(from, stored)
}

// spendBytes takes bytes that were stored.
func (s *Server) spendBytes(from *sender, n int) {
	if s.limits != nil && n > 0 {
		s.limits.useBytes(from, int64(n), s.cfg.Now())
	}
}

func (s *Server) takeAddress(ctx *fasthttp.RequestCtx, client netip.Addr, n int, now time.Time) bool {
	wait := s.limits.addresses.Take(client, int64(n), now)
	if wait == 0 {
		return true
	}
	s.cfg.Refusals.Count(limit.AddressEvents, limit.Tenant{})
	s.hintAtProxy(ctx, now)
	tooManyFromAddress.sendAfter(ctx, wait)
	return false
}

// useBytes spends n bytes of a merchant's day. With n = 0 it returns how long the sender must wait until it may store
// something.
func (l *limits) useBytes(from *sender, n int64, now time.Time) (wait time.Duration) {
	bytes := float64(from.limits.BytesPerDay)
	switch {
	case bytes < 0: // store.NoLimit
		return 0
	case bytes == 0:
		bytes = max(float64(l.freeSpace())/diskShare, leastDay)
	}
	for _, bucket := range [...]struct {
		key   limit.Key
		bytes float64
	}{
		{l.merchants.Key(kindBytes, string(from.merchant)), bytes},
		{l.merchants.PairKey(kindSenderBytes, string(from.merchant), from.address), bytes / addressShare},
	} {
		rate := limit.Rate{PerSecond: bucket.bytes / day.Seconds(), Burst: bucket.bytes}
		if n > 0 {
			l.merchants.Spend(bucket.key, n, rate, now)
		} else if wait = l.merchants.Take(bucket.key, 0, rate, now); wait > 0 {
			return wait
		}
	}
	return 0
}

const hintInterval = time.Hour

// hintAtProxy tells the operator, once an hour, when the refused address may be a proxy with all visitors behind it.
func (s *Server) hintAtProxy(ctx *fasthttp.RequestCtx, now time.Time) {
	if len(ctx.Request.Header.Peek(fasthttp.HeaderXForwardedFor)) == 0 {
		return
	}
	next := s.limits.nextHint.Load()
	if now.UnixNano() < next || !s.limits.nextHint.CompareAndSwap(next, now.Add(hintInterval).UnixNano()) {
		return
	}
	s.cfg.Log.Warn("requests with X-Forwarded-For are refused because their address sends too many: if it is a proxy, "+
		"see --proxy-protocol and --address-events-per-second", "cause", limit.AddressEvents.String())
}
