package partnerapi

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/budget"
	"mtagd/store"
)

// A page of events can be large: 100 events of 64 KiB. Its memory is in use until the client has read it. So each
// partner has a share of the memory for listings. A listing that does not fit waits, and fails when there is no room
// before the timeout.
const (
	listingMemory = 256 << 20 // bytes, of all partners together

	// partnerMemory is a partner's share in bytes, unless the operator has set another one. Five pages of 100 events of
	// unknown size fit, or about 40 of 12: pages of small events take a millisecond, so that is as fast as no limit.
	partnerMemory = listingMemory / 4

	memoryTimeout = 5 * time.Second
)

// listings is the memory of all listings.
type listings struct {
	budget  *budget.Budget[store.PartnerID]
	timeout time.Duration
}

// newListings returns listings with total bytes. shareOf returns a partner's share; it is partnerMemory when shareOf is
// nil or returns 0.
func newListings(total int64, shareOf func(store.PartnerID) int64, timeout time.Duration) *listings {
	share := func(partner store.PartnerID) int64 {
		if shareOf == nil {
			return partnerMemory
		}
		return cmp.Or(shareOf(partner), partnerMemory)
	}
	return &listings{budget.New(total, share), timeout}
}

// listing is the memory that one listing has reserved.
type listing struct {
	*listings
	partner store.PartnerID
	bytes   int64
}

// reserve waits until there is memory for a page with a limit of events: for the events, and for the answer that is
// built from them. KindBusy: the partner's share had no room before the timeout. KindUnavailable: neither had the
// memory of all. When ctx ends first, reserve returns its error.
func (l *listings) reserve(ctx context.Context, partner store.PartnerID, limit int) (*listing, error) {
	m := &listing{l, partner, int64(limit) * 2 * store.MaxEventBytes}
	waiting, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	switch err := l.budget.Reserve(waiting, partner, m.bytes); {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, budget.ErrShare):
		return nil, store.Busy("the partner's answers under way use all of its memory")
	default:
		return nil, store.Unavailable("the answers under way use all of their memory")
	}
}

// keep releases all but what the finished answer needs.
func (m *listing) keep(bytes int) {
	if rest := m.bytes - int64(bytes); rest > 0 {
		m.budget.Release(m.partner, rest)
		m.bytes -= rest
	}
}

func (m *listing) release() {
	m.budget.Release(m.partner, m.bytes)
	m.bytes = 0
}

// releaseWhenAnswered releases a listing's memory when its answer is written. It returns a function for the end of the
// handler.
func (a *api) releaseWhenAnswered(r *fasthttp.RequestCtx, m *listing) (handlerDone func()) {
	if a.WhenAnswered == nil {
		return m.release
	}
	a.WhenAnswered(r, m.release)
	return func() { m.keep(len(r.Response.Body())) }
}
