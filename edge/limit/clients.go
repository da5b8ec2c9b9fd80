package limit

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
)

// DefaultAddressEvents is how many events one address may send in a second, and thirty times as many at once.
//
// One server takes 15,000 to 20,000 single events a second on two processors. One address may take a tenth of that. An
// office or a mobile network with thousands of visitors sends less than a hundred a second. A backend that sends 60
// batches of 1,000 events after an outage gets them in at once.
const DefaultAddressEvents = 2000

const addressBurst = 30 * time.Second // at the address's rate

// TooManyFromAddress is the message of a 429 that Clients causes.
const TooManyFromAddress = "Too many requests from this address, please retry"

// Clients limits the requests and events of each client address, on all ports and hosts. A nil Clients has no limit.
type Clients struct {
	addresses *Addresses
	refusals  *Refusals
	log       *slog.Logger

	nextHint atomic.Int64 // when a proxy may be suspected again; nanoseconds since 1970
}

// NewClients makes a limit over all nodes that an exchange connects. perSecond is how many events one address may send; 0
// for no limit: then it returns nil.
func NewClients(perSecond int, nodes *Exchange, refusals *Refusals, log *slog.Logger) *Clients {
	if perSecond == 0 {
		return nil
	}
	addresses := NewAddresses(nodes.NewBuckets(OfClients), RateFor(float64(perSecond), addressBurst))
	return &Clients{addresses: addresses, refusals: refusals, log: log}
}

// Take takes n tokens of the client that sent a request. Without any, it counts a refusal, and returns how long to wait.
func (c *Clients) Take(ctx *fasthttp.RequestCtx, client netip.Addr, n int, now time.Time) (wait time.Duration) {
	if c == nil {
		return 0
	}
	if wait = c.addresses.Take(client, int64(n), now); wait > 0 {
		c.refusals.Count(AddressEvents, Tenant{})
		c.hintAtProxy(ctx, now)
	}
	return wait
}

const hintInterval = time.Hour

// hintAtProxy tells the operator, once an hour, when the refused address may be a proxy with all visitors behind it.
func (c *Clients) hintAtProxy(ctx *fasthttp.RequestCtx, now time.Time) {
	if len(ctx.Request.Header.Peek(fasthttp.HeaderXForwardedFor)) == 0 {
		return
	}
	next := c.nextHint.Load()
	if now.UnixNano() < next || !c.nextHint.CompareAndSwap(next, now.Add(hintInterval).UnixNano()) {
		return
	}
	c.log.Warn("requests with X-Forwarded-For are refused because their address sends too many: if it is a proxy, "+
		"see --proxy-protocol and --address-events-per-second", "cause", AddressEvents.String())
}

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

// NewAddresses makes a limit for each address, whose buckets are in b.
func NewAddresses(b *Buckets, r Rate) *Addresses {
	return &Addresses{buckets: b, rate: r, network: Rate{r.PerSecond * networkShare, r.Burst * networkShare}}
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
