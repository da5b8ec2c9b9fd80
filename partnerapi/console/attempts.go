package console

import (
	"net/netip"
	"time"

	"mtagd/edge/limit"
	"mtagd/store"
)

// attempts limits signing in. Nobody guesses 160 bits, and a wrong key costs little: the limit keeps the cost of many wrong
// keys small. Like the limit of the partner API, it never refuses a valid key: other people may share the guesser's address,
// and the guesser may know the id of their key. A sign-in with a valid key costs a synced write and an audit entry, so each
// key has a rate of sign-ins.
//
// Links are not in memory: the engine must look each up, perhaps in a database. So a link takes a token before the look-up,
// whether it is valid or not.
type attempts struct {
	addresses *limit.Addresses
	others    *limit.Buckets
}

var (
	addressRate = limit.Rate{PerSecond: 0.5, Burst: 30}     // of wrong keys and links from one address
	keyRate     = limit.Rate{PerSecond: 0.1, Burst: 10}     // of wrong secrets for one key id
	beginRate   = limit.Rate{PerSecond: 1. / 60, Burst: 20} // of sessions that are begun with one key
)

// The kinds of buckets.
const (
	kindKey byte = iota
	kindBegin
)

// wrong takes a token for a wrong key or link, and returns how long the client must wait for one. id is the key's id, or
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

// right takes a token for a session that a key begins.
func (a *attempts) right(id store.KeyID, now time.Time) (wait time.Duration) {
	if a == nil {
		return 0
	}
	return a.others.Take(a.others.Key(kindBegin, string(id)), 1, beginRate, now)
}
