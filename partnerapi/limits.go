package partnerapi

import (
	"net/netip"
	"time"

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

func newLimits(nodes *limit.Exchange) *limits {
	return &limits{partners: nodes.NewBuckets(limit.OfPartners), strangers: nodes.NewAddresses(limit.OfStrangers, strangerRate)}
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
