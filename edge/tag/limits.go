package tag

import (
	"net/netip"
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
// Events and look-ups of muids also take a token each of their merchant, over all its tags. A merchant may take half of
// the server with single events, and one address cannot use up a merchant's rate.
//
// The bytes stored in a day are limited too, because whoever has nothing but a tag id, which is in every page, must not
// fill the disk. A merchant has a tenth of the free space. One address may store half of that for the merchant, which
// leaves the other half for the merchant's visitors. Tag ids are easy to collect, and a partner can make many merchants.
// So one address has a tenth over all merchants too, and a partner a quarter over all its merchants.
const (
	merchantBurst = 10 * time.Second
	bodyToken     = 16 << 10 // bytes of a body that take a token

	diskShare        = 10      // a merchant, or an address, may store a tenth of the free disk space in a day,
	partnerDiskShare = 4       // and a partner a quarter,
	leastDay         = 1 << 30 // a merchant or an address may store this much, if it is no more than
	leastShare       = 4       // a quarter of the free space
	addressShare     = 2       // one address may store half of what its merchant may
	besidesRaw       = 128     // bytes of an event on the disk besides its raw bytes: ids, index, links
)

const secondsPerDay = 24 * 60 * 60

// The kinds of buckets in limits.buckets.
const (
	kindEvents       byte = iota // of a merchant
	kindBytes                    // of a merchant
	kindSenderBytes              // of a merchant, from one address
	kindAddressBytes             // from one address
	kindPartnerBytes             // of a partner
)

// limits are the token buckets of the tag protocol. A nil limits admits everything.
type limits struct {
	clients   *limit.Clients // nil: addresses have no limit
	buckets   *limit.Buckets
	freeSpace func() uint64 // bytes that events may still take
	refusals  *limit.Refusals
}

func newLimits(clients *limit.Clients, nodes *limit.Exchange, freeSpace func() uint64, refusals *limit.Refusals) *limits {
	return &limits{clients: clients, buckets: nodes.NewBuckets(limit.OfTenants), freeSpace: freeSpace, refusals: refusals}
}

// sender is a client that sends events for a merchant, and when its request began.
type sender struct {
	address      netip.Addr // as clientaddr.Of returns it
	merchant     store.MerchantID
	limits       store.MerchantLimits // of the merchant
	partner      store.PartnerID
	partnerBytes store.Limit // of the partner, in a day
	cookie       string      // the muid of the request's cookie
	now          time.Time
	behind       time.Duration // of the sender's clock, as Route.clockBehind returns it
	mayIdentify  bool          // link identifiers to a muid, and resolve a muid by them
	withSecret   bool          // the request has the merchant's secret
	bots         *bots
	isBot        bool   // its User-Agent calls itself a bot
	parsed       int    // user agents of events
	client       []byte // store.Mark.Client of events whose visitors agree; nil: of none
	browsers     Browsers
	limited      *answer // why admit has refused the request

	portions    [5]limit.Portion // what admit takes: bytes are strict, events are not
	refusals    [5]*answer       // what to answer when the bucket of a portion is empty
	numPortions int
	admitted    bool // admit has taken the portions
	stored      int  // bytes that were stored
}

// admitRequest takes the tokens of a request. When there are none, it answers the request and returns false. It is the first
// thing that happens to a request: whatever a refusal costs later, the address has paid for it.
func (l *limits) admitRequest(ctx *fasthttp.RequestCtx, client netip.Addr, now time.Time) bool {
	return l == nil || l.takeAddress(ctx, client, 1+len(ctx.Request.Body())/bodyToken, now)
}

// admit decides whether a sender may send a number of events with a number of bytes in all. Suspended tags were refused
// before (refusalByState), and so were bodies for which there is no memory (edge, bodies.go). It
//
//  1. takes the bytes of the merchant, the address and the partner, as if all events were stored. Only afterwards it is
//     known how many were: settle gives back the bytes of the others.
//  2. takes a token of the merchant for each event.
//  3. takes a token of the address for each event after the first: admitRequest has taken that of the first.
//
// When one of them has none left, admit takes nothing, answers the request and returns false.
func (l *limits) admit(ctx *fasthttp.RequestCtx, from *sender, events, bytes int) bool {
	if l == nil {
		return true
	}
	bytes += events * besidesRaw
	l.findPortions(from, int64(events), int64(bytes))
	portions := from.portions[:from.numPortions]
	if wait, empty := l.buckets.TakeAll(portions, from.now); wait > 0 {
		from.limited = from.refusals[empty]
		countRefusal(l.refusals, from.limited, from)
		from.limited.sendAfter(ctx, wait)
		return false
	}
	if events > 1 && !l.takeAddress(ctx, from.address, events-1, from.now) {
		from.limited = tooManyFromAddress
		l.buckets.GiveBack(portions, from.now)
		return false
	}
	from.admitted = true
	return true
}

// settle takes the bytes that a request has stored instead of those that admit has taken.
func (l *limits) settle(from *sender) {
	if l != nil && from.admitted {
		l.buckets.Settle(from.portions[:from.numPortions], int64(from.stored), from.now)
	}
}

func (l *limits) takeAddress(ctx *fasthttp.RequestCtx, client netip.Addr, n int, now time.Time) bool {
	wait := l.clients.Take(ctx, client, n, now)
	if wait > 0 {
		tooManyFromAddress.sendAfter(ctx, wait)
	}
	return wait == 0
}

// findPortions sets the portions of a sender. A limit that the operator has lifted has none. What the operator has set
// for the bytes of a merchant holds for those who send to it: an address may store as much, even if its own share is
// less. It does not change the limit of the partner.
func (l *limits) findPortions(from *sender, events, bytes int64) {
	from.numPortions = 0
	free := max(float64(l.freeSpace()), leastShare) // without any, the engine refuses what this admits
	add := func(p limit.Portion, refused *answer) {
		from.portions[from.numPortions], from.refusals[from.numPortions] = p, refused
		from.numPortions++
	}
	addBytes := func(key limit.Key, inDay float64, refused *answer) {
		add(limit.Portion{Key: key, Rate: limit.Rate{PerSecond: inDay / secondsPerDay, Burst: inDay}, Tokens: bytes, Strict: true}, refused)
	}
	ofMerchant := from.limits.BytesPerDay
	share := max(free/diskShare, min(leastDay, free/leastShare))
	inDay := float64(ofMerchant.Or(store.Limit(share)))
	if ofMerchant != store.NoLimit {
		addBytes(l.buckets.Key(kindBytes, string(from.merchant)), inDay, tooManyBytes)
	}
	if n := float64(from.limits.EventsPerSecond.Or(store.DefaultEventsPerSecond)); n >= 0 { // else store.NoLimit
		add(limit.Portion{Key: l.buckets.Key(kindEvents, string(from.merchant)), Rate: limit.RateFor(n, merchantBurst), Tokens: events}, tooManyForMerchant)
	}
	if ofMerchant != store.NoLimit && l.clients != nil {
		addBytes(l.buckets.PairKey(kindSenderBytes, string(from.merchant), from.address), inDay/addressShare, tooManyBytes)
		addBytes(l.buckets.AddressKey(kindAddressBytes, from.address), max(share, inDay), tooManyBytesFromAddress)
	}
	if set := from.partnerBytes; set != store.NoLimit {
		addBytes(l.buckets.Key(kindPartnerBytes, string(from.partner)), float64(set.Or(store.Limit(free/partnerDiskShare))), tooManyBytesOfPartner)
	}
}
