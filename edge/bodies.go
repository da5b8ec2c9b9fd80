package edge

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"mtagd/edge/clientaddr"
	"mtagd/store/budget"
)

// fasthttp allocates a body, or a chunk of a body, as soon as the client announces its length. With a few bytes, a
// client could make it allocate a MiB until the body times out. So all large bodies share a budget: a body reserves its
// bytes when it is announced, and releases them when it was handled. Small bodies do not count; the number of
// connections limits them.
//
// One client may reserve an eighth of the budget; the addresses of an IPv6 /48 count as one client, because a stranger
// easily gets that many. If the whole budget is reserved, bodies that are still arriving give way to a new one, the
// oldest first: those of clients that have at least as much reserved as its own client then has. If they are not enough
// and its own client has little, all bodies that have been arriving for a while give way too. So clients that announce
// bodies and do not send them cannot keep out the bodies of others, however many clients they are. If there is still not
// enough, the new body waits.
const (
	smallBody   = maxHeaderBytes
	bodyBudget  = 64 << 20 // bytes, of all clients together
	clientShare = bodyBudget / 8
	littleShare = clientShare / 4
	slowBody    = time.Second     // from then on a body gives way to any client that has little
	bodyWait    = 2 * time.Second // for room in the budget
)

// bodies is the budget of large bodies.
type bodies struct {
	budget *budget.Budget[netip.Addr]

	mu       sync.Mutex
	arriving list.List // the *reservation of each body that has not arrived, the oldest first
}

// reservation is what a body has reserved.
type reservation struct {
	owner   *bodies
	client  netip.Addr
	bytes   int64
	since   time.Time
	giveWay func() // ends the arrival of the body

	// owner.mu guards these.
	inArriving *list.Element // in owner.arriving; nil when the body has arrived or has given way
	gaveWay    bool
}

func newBodies() *bodies {
	return &bodies{budget: budget.New(bodyBudget, func(netip.Addr) int64 { return clientShare })}
}

// Why a body is not read.
var (
	errManyOfClient = errors.New("the client has too many large requests under way")
	errManyOfAll    = errors.New("too many large requests are under way")
)

// reserve reserves the bytes of a client's body. Until the body has arrived, giveWay may be called, once, from another
// goroutine: it must end the arrival. The error is errManyOfClient or errManyOfAll.
func (b *bodies) reserve(client netip.Addr, bytes int64, giveWay func()) (*reservation, error) {
	client = clientaddr.Site(client)
	err := b.budget.TryReserve(client, bytes)
	if err == budget.ErrTotal && b.makeRoom(client, bytes) {
		b.budget.Overdraw(client, bytes) // until those that gave way have released theirs
		err = nil
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), bodyWait)
		defer cancel()
		err = b.budget.Reserve(ctx, client, bytes)
	}
	if err == budget.ErrShare {
		return nil, errManyOfClient
	}
	if err != nil {
		return nil, errManyOfAll
	}
	r := &reservation{owner: b, client: client, bytes: bytes, since: time.Now(), giveWay: giveWay}
	b.mu.Lock()
	defer b.mu.Unlock()
	r.inArriving = b.arriving.PushBack(r)
	return r, nil
}

// makeRoom ends the arrival of other bodies, which together have reserved enough for a body of the client. It returns
// false, and ends none, when there are not enough.
func (b *bodies) makeRoom(client netip.Addr, bytes int64) bool {
	then := b.budget.Held(client) + bytes
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	var leaving, slow []*reservation
	for e := b.arriving.Front(); e != nil && bytes > 0; e = e.Next() {
		switch r := e.Value.(*reservation); {
		case b.budget.Held(r.client) >= then:
			leaving = append(leaving, r)
			bytes -= r.bytes
		case then <= littleShare && now.Sub(r.since) > slowBody:
			slow = append(slow, r)
		}
	}
	for ; bytes > 0 && len(slow) > 0; slow = slow[1:] {
		leaving = append(leaving, slow[0])
		bytes -= slow[0].bytes
	}
	if bytes > 0 {
		return false
	}
	for _, r := range leaving {
		b.arriving.Remove(r.inArriving)
		r.inArriving, r.gaveWay = nil, true
		r.giveWay()
	}
	return true
}

// arrived notes that the body has arrived: it no longer gives way to others.
func (r *reservation) arrived() {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	if r.inArriving != nil {
		r.owner.arriving.Remove(r.inArriving)
		r.inArriving = nil
	}
}

// hasGivenWay reports whether the arrival of the body was ended for another one.
func (r *reservation) hasGivenWay() bool {
	r.owner.mu.Lock()
	defer r.owner.mu.Unlock()
	return r.gaveWay
}

// release releases the bytes. It may be called several times.
func (r *reservation) release() {
	r.arrived()
	r.owner.budget.Release(r.client, r.bytes)
	r.bytes = 0
}
