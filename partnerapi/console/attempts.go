package console

import (
	"net/netip"
	"time"

	"mtagd/edge/limit"
	"mtagd/store"
)

// attempts limits signing in. Nobody guesses 160 bits, and a wrong key or link costs little: the limit bounds how much a guesser can
// cost. As in the partner API, it never refuses a valid key or link, because other people may have the same address, or the guesser
// may know the id of their key. A sign-in costs a synced write and an audit entry, so each partner has a rate of sign-ins.
type attempts struct {
	addresses *limit.Addresses
	others    *limit.Buckets
}

var (
	addressRate = limit.Rate{PerSecond: 0.5, Burst: 30} // of wrong keys and links from one address
	keyRate     = limit.Rate{PerSecond: 0.1, Burst: 10} // of wrong secrets for one key id
	partnerRate = limit.Rate{PerSecond: 0.2, Burst: 60} // of sessions that one partner begins
)

// The kinds of buckets.
const (
	kindKey byte = iota
	kindPartner
)

func newAttempts() *attempts {
	return &attempts{limit.NewAddresses(addressRate), limit.NewBuckets()}
}

// wrong takes a token for a wrong key or link, and returns how long the client must wait for one. id is that of the key; it may be
// empty. Without limits (nil), wrong and right return 0.
func (a *attempts) wrong(client netip.Addr, id string, now time.Time) (wait time.Duration) {
	if a == nil {
		return 0
	}
	if wait := a.addresses.Take(client, 1, now); wait > 0 || id == "" {
		return wait
	}
	return a.others.Take(a.others.Key(kindKey, id), 1, keyRate, now)
}

// right takes a token for a session, and returns how long the client must wait for one.
func (a *attempts) right(partner store.PartnerID, now time.Time) (wait time.Duration) {
	if a == nil {
		return 0
	}
	return a.others.Take(a.others.Key(kindPartner, string(partner)), 1, partnerRate, now)
}
