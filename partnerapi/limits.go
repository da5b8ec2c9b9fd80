package partnerapi

import (
	"net/netip"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/store"
)

// limits are the token buckets of the API.
//
// A partner's requests must leave the processor to others. A listing takes 1 to 2 ms of it, so the default of 200 a
// second is a fifth of two processors. A write costs two synced writes to the disk, which all partners share. The bursts
// let a platform work off a queue, or set up 500 merchants at once.
//
// A request without a valid key costs little: the checksum in the key refuses what is not a key, and one SHA-256 refuses
// the rest. Its limit keeps a guesser from using up more than that. It applies to the client's address, but never
// refuses a valid key: other clients may have the same address.
type limits struct {
	partners  *limit.Buckets
	strangers *limit.Addresses
}

const (
	requestBurst = 30 * time.Second // of requests at the partner's rate
	writeBurst   = 3 * time.Minute  // of writes
)

// strangerRate is the rate at which one address gets 401.
var strangerRate = limit.Rate{PerSecond: 20, Burst: 200}

// The kinds of buckets.
const (
	kindRequests byte = iota
	kindWrites
)

func newLimits() *limits {
	return &limits{partners: limit.NewBuckets(), strangers: limit.NewAddresses(strangerRate)}
}

// refuseStranger answers a request that has no valid API key.
func (a *api) refuseStranger(r *fasthttp.RequestCtx) {
	a.Refusals.Count(limit.Authentication, limit.Tenant{})
	if wait := a.limits.stranger(clientaddr.Of(r.RemoteAddr()), a.Now()); wait > 0 {
		tooMany(r, wait, "Too many requests without a valid API key")
		return
	}
	WriteError(r, fasthttp.StatusUnauthorized, "Authentication required")
}

// withinLimits reports whether a partner may send this request now. Otherwise it has answered. changes says that the
// request changes control data.
func (a *api) withinLimits(r *fasthttp.RequestCtx, partner store.Partner, changes bool) bool {
	now := a.Now()
	if wait := a.limits.request(partner, now); wait > 0 {
		a.Refusals.Count(limit.PartnerRequests, limit.Partner(partner.ID))
		tooMany(r, wait, "Too many requests")
		return false
	}
	if !changes {
		return true
	}
	if wait := a.limits.write(partner, now); wait > 0 {
		a.Refusals.Count(limit.PartnerWrites, limit.Partner(partner.ID))
		tooMany(r, wait, "Too many requests that change something")
		return false
	}
	return true
}

func tooMany(r *fasthttp.RequestCtx, wait time.Duration, what string) {
	seconds := limit.RetryAfter(wait)
	r.Response.Header.Set(fasthttp.HeaderRetryAfter, seconds)
	WriteError(r, fasthttp.StatusTooManyRequests, what+". Please try again in "+seconds+" s")
}

// stranger takes a token for a request without a valid key. It returns how long the client must wait for one. Without
// limits this and the other methods return 0.
func (l *limits) stranger(client netip.Addr, now time.Time) (wait time.Duration) {
	if l == nil {
		return 0
	}
	return l.strangers.Take(client, 1, now)
}

func (l *limits) request(p store.Partner, now time.Time) (wait time.Duration) {
	perSecond := p.Limits.RequestsPerSecond.Or(store.DefaultRequestsPerSecond)
	return l.take(kindRequests, p.ID, float64(perSecond), requestBurst, now)
}

func (l *limits) write(p store.Partner, now time.Time) (wait time.Duration) {
	perMinute := p.Limits.WritesPerMinute.Or(store.DefaultWritesPerMinute)
	return l.take(kindWrites, p.ID, float64(perMinute)/60, writeBurst, now)
}

// take takes a token of a partner. A negative rate is store.NoLimit.
func (l *limits) take(kind byte, id store.PartnerID, perSecond float64, burst time.Duration, now time.Time) time.Duration {
	if l == nil || perSecond < 0 {
		return 0
	}
	rate := limit.Rate{PerSecond: perSecond, Burst: perSecond * burst.Seconds()}
	return l.partners.Take(l.partners.Key(kind, string(id)), 1, rate, now)
}

// tenantOf returns the partner of a request as the tenant of a refusal.
func tenantOf(r *fasthttp.RequestCtx) limit.Tenant {
	if id := PartnerOf(r); id != "" {
		return limit.Partner(store.PartnerID(id))
	}
	return limit.Tenant{}
}
