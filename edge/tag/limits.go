package tag

import (
	"log/slog"
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

const secondsPerDay = 24 * 60 * 60

// The kinds of buckets in limits.merchants.
const (
	kindEvents      byte = iota // of a merchant
	kindBytes                   // of a merchant
	kindSenderBytes             // of a merchant, from one address
)

// limits are the token buckets of the tag protocol. A nil limits admits everything.
type limits struct {
	addresses *limit.Addresses // nil: no limit
	merchants *limit.Buckets
	freeSpace func() uint64 // bytes that events may still take

	refusals *limit.Refusals
	log      *slog.Logger

	nextHint atomic.Int64 // when a proxy may be suspected again; nanoseconds since 1970
}

// newLimits makes limits. addressEvents is how many events one address may send in a second; 0 for no limit.
func newLimits(addressEvents int, freeSpace func() uint64, refusals *limit.Refusals, log *slog.Logger) *limits {
	l := &limits{merchants: limit.NewBuckets(), freeSpace: freeSpace, refusals: refusals, log: log}
	if perSecond := float64(addressEvents); perSecond > 0 {
		l.addresses = limit.NewAddresses(limit.Rate{PerSecond: perSecond, Burst: perSecond * addressBurst.Seconds()})
	}
	return l
}

// sender is a client that sends events for a merchant, and when its request began.
type sender struct {
	address     netip.Addr // as clientaddr.Of returns it
	merchant    store.MerchantID
	limits      store.MerchantLimits // of the merchant
	cookie      string               // the muid of the request's cookie
	now         time.Time
	mayIdentify bool // link identifiers to a muid, and resolve a muid by them
}

// admitRequest takes the tokens of a request. When there are none, it answers the request and returns false. admitBytes
// and admitEvents do the same for what else a request takes.
func (l *limits) admitRequest(ctx *fasthttp.RequestCtx, client netip.Addr, now time.Time) bool {
	return l == nil || l.takeAddress(ctx, client, 1+len(ctx.Request.Body())/bodyToken, now)
}

// admitBytes checks that the merchant may store more bytes today. It takes none: how many are stored is known only
// afterwards, and spendBytes takes them then.
func (l *limits) admitBytes(ctx *fasthttp.RequestCtx, from *sender) bool {
	if l == nil {
		return true
	}
	buckets, limited := l.dayBuckets(from)
	if !limited {
		return true
	}
	for _, b := range buckets {
		if wait := l.merchants.Take(b.key, 0, b.rate, from.now); wait > 0 {
			l.refusals.Count(limit.MerchantBytes, limit.Merchant(from.merchant))
			tooManyBytes.sendAfter(ctx, wait)
			return false
		}
	}
	return true
}

// admitEvents takes a token of the merchant for each event of a request, and one of the address for each event after the
// first.
func (l *limits) admitEvents(ctx *fasthttp.RequestCtx, from *sender, n int) bool {
	if l == nil {
		return true
	}
	if n > 1 && !l.takeAddress(ctx, from.address, n-1, from.now) {
		return false
	}
	perSecond := float64(from.limits.EventsPerSecond.Or(store.DefaultEventsPerSecond))
	if perSecond < 0 { // store.NoLimit
		return true
	}
	rate := limit.Rate{PerSecond: perSecond, Burst: perSecond * merchantBurst.Seconds()}
	wait := l.merchants.Take(l.merchants.Key(kindEvents, string(from.merchant)), int64(n), rate, from.now)
	if wait == 0 {
		return true
	}
	l.refusals.Count(limit.MerchantEvents, limit.Merchant(from.merchant))
	tooManyForMerchant.sendAfter(ctx, wait)
	return false
}

// spendMarks takes the bytes of the marks that were stored.
func (l *limits) spendMarks(from *sender, marks []store.Mark) {
	stored := 0
	for i := range marks {
		if marks[i].Outcome == store.Recorded {
			stored += len(marks[i].Raw) + besidesRaw
		}
	}
	l.spendBytes(from, stored)
}

// spendBytes takes bytes that were stored.
func (l *limits) spendBytes(from *sender, n int) {
	if l == nil || n == 0 {
		return
	}
	buckets, limited := l.dayBuckets(from)
	if !limited {
		return
	}
	for _, b := range buckets {
		l.merchants.Spend(b.key, int64(n), b.rate, from.now)
	}
}

func (l *limits) takeAddress(ctx *fasthttp.RequestCtx, client netip.Addr, n int, now time.Time) bool {
	wait := l.addresses.Take(client, int64(n), now)
	if wait == 0 {
		return true
	}
	l.refusals.Count(limit.AddressEvents, limit.Tenant{})
	l.hintAtProxy(ctx, now)
	tooManyFromAddress.sendAfter(ctx, wait)
	return false
}

// dayBucket is a bucket for the bytes of a day.
type dayBucket struct {
	key  limit.Key
	rate limit.Rate
}

// dayBuckets returns the buckets of a sender: its merchant's, and its own part of that. Without a limit it returns none.
func (l *limits) dayBuckets(from *sender) (buckets [2]dayBucket, limited bool) {
	bytes := float64(from.limits.BytesPerDay)
	switch {
	case bytes < 0: // store.NoLimit
		return buckets, false
	case bytes == 0:
		bytes = max(float64(l.freeSpace())/diskShare, leastDay)
	}
	rate := func(bytes float64) limit.Rate { return limit.Rate{PerSecond: bytes / secondsPerDay, Burst: bytes} }
	merchant := string(from.merchant)
	return [2]dayBucket{
		{l.merchants.Key(kindBytes, merchant), rate(bytes)},
		{l.merchants.PairKey(kindSenderBytes, merchant, from.address), rate(bytes / addressShare)},
	}, true
}

const hintInterval = time.Hour

// hintAtProxy tells the operator, once an hour, when the refused address may be a proxy with all visitors behind it.
func (l *limits) hintAtProxy(ctx *fasthttp.RequestCtx, now time.Time) {
	if len(ctx.Request.Header.Peek(fasthttp.HeaderXForwardedFor)) == 0 {
		return
	}
	next := l.nextHint.Load()
	if now.UnixNano() < next || !l.nextHint.CompareAndSwap(next, now.Add(hintInterval).UnixNano()) {
		return
	}
	l.log.Warn("requests with X-Forwarded-For are refused because their address sends too many: if it is a proxy, "+
		"see --proxy-protocol and --address-events-per-second", "cause", limit.AddressEvents.String())
}
