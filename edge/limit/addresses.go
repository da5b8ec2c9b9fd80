package limit

import (
	"net/netip"
	"time"

	"mtagd/edge/clientaddr"
)

// Addresses limits each client address.
//
// An IPv6 client usually has a /64 network, and package clientaddr counts that as one address. But whoever has a /48 has
// 65,536 of them, and providers give them away. So the addresses of a /48 together get networkShare times the rate of
// one. A mobile network has thousands of visitors in a /48, a shop has few of them at a time.
type Addresses struct {
	buckets *Buckets
	rate    Rate
	network Rate
}

const networkShare = 4

// The kinds of keys.
const (
	kindAddress byte = iota
	kindNetwork
)

// NewAddresses makes a limit for each address, of this node alone.
func NewAddresses(r Rate) *Addresses { return addressesIn(NewBuckets(), r) }

func addressesIn(b *Buckets, r Rate) *Addresses {
	return &Addresses{
		buckets: b,
		rate:    r,
		network: Rate{r.PerSecond * networkShare, r.Burst * networkShare},
	}
}

// Take takes n tokens of an address, as Buckets.Take does. The address is as clientaddr.Of returns it. A nil Addresses
// has no limit.
func (a *Addresses) Take(client netip.Addr, n int64, now time.Time) (wait time.Duration) {
	if a == nil {
		return 0
	}
	if wait := a.buckets.Take(a.buckets.AddressKey(kindAddress, client), n, a.rate, now); wait > 0 || !client.Is6() {
		return wait
	}
	return a.buckets.Take(a.buckets.AddressKey(kindNetwork, clientaddr.Site(client)), n, a.network, now)
}
