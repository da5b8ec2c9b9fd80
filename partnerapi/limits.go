package partnerapi

import (
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/store"
)

// A partner's requests must leave the processor to others. A listing takes 1 to 2 ms of it, so the default of 200 a
// second is a fifth of two processors. A write costs two synced writes to the disk, which all partners share. The bursts
// let a platform work off a queue, or set up 500 merchants at once.
const (
	requestBurst = 30 * time.Second // of requests at the partner's rate
	writeBurst   = 3 * time.Minute  // of writes
)

// strangerRate is the rate at which one address gets 401. A request without a valid key costs little: a checksum shows
// whether its text is a key at all, and then one SHA-256 whether the key is right. The limit bounds what guessing can cost.
// Requests with a valid key are never refused by it: other clients may have the same address.
var strangerRate = limit.Rate{PerSecond: 20, Burst: 200}

// The kinds of buckets in api.rates.
const (
	kindRequests byte = iota
	kindWrites
)

// refuseStranger answers a request that has no valid API key.
func (a *api) refuseStranger(r *fasthttp.RequestCtx) {
	a.Refusals.Count(limit.Authentication, limit.Tenant{})
	if wait := a.strangers.Take(clientaddr.Of(r.RemoteAddr()), 1, a.Now()); wait > 0 {
		TooMany(r, wait, "Too many requests without a valid API key")
		return
	}
	WriteError(r, fasthttp.StatusUnauthorized, notAuthenticated)
}

// withinLimits reports whether a partner may send this request now. Otherwise it has answered. changes says that the
// request changes control data.
func (a *api) withinLimits(r *fasthttp.RequestCtx, partner store.Partner, changes bool) bool {
	of := partner.Limits
	rate := limit.RateFor(float64(of.RequestsPerSecond.Or(store.DefaultRequestsPerSecond)), requestBurst)
	wait := a.rates.TakeOne(kindRequests, string(partner.ID), rate, a.Now())
	cause, what := limit.PartnerRequests, "Too many requests"
	if wait == 0 && changes {
		rate = limit.RateFor(float64(of.WritesPerMinute.Or(store.DefaultWritesPerMinute))/60, writeBurst)
		wait = a.rates.TakeOne(kindWrites, string(partner.ID), rate, a.Now())
		cause, what = limit.PartnerWrites, "Too many requests that change something"
	}
	if wait > 0 {
		a.Refusals.Count(cause, limit.Partner(partner.ID))
		TooMany(r, wait, what)
	}
	return wait == 0
}

// TooMany answers that requests come too fast: what says which.
func TooMany(r *fasthttp.RequestCtx, wait time.Duration, what string) {
	seconds := limit.RetryAfter(wait)
	r.Response.Header.Set(fasthttp.HeaderRetryAfter, seconds)
	WriteError(r, fasthttp.StatusTooManyRequests, what+". Please try again in "+seconds+" s")
}
