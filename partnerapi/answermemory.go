package partnerapi

import (
	"context"
	"errors"
	"time"

	"mtagd/store"
	"mtagd/store/budget"
)

// A page of events can be large: 100 events of 64 KiB. Its memory is in use until the client has read it. So each
// partner has a share of the memory for listings, PartnerLimits.AnswerBytes. A listing that does not fit waits, and fails
// when there is no room before the timeout. When much of the memory of all is in use, a partner may have at most as much as is
// free. With the default share, five pages of 100 events of unknown size fit, or
// about 40 of 12: pages of small events take a millisecond, so that is as fast as no limit.
const (
	listingMemory = 256 << 20 // bytes, of all partners together
	memoryTimeout = 5 * time.Second
)

// The errors for a listing that finds no room.
var (
	errAnswersOfPartner = store.Busy("the partner's answers under way use all of its memory")
	errAnswers          = store.Unavailable("the answers under way use all of their memory")
)

// listings is the memory of all listings.
type listings struct {
	budget  *budget.Budget[store.PartnerID]
	timeout time.Duration
}

// newListings returns listings with total bytes. The directory has each partner's share.
func newListings(total int64, directory *store.Directory, timeout time.Duration) *listings {
	share := func(id store.PartnerID) int64 {
		partner, _ := directory.Partner(id)
		if limit := partner.Limits.AnswerBytes.Or(store.DefaultAnswerBytes); limit != store.NoLimit {
			return int64(limit)
		}
		return total
	}
	return &listings{budget.New(total, share).Fair(), timeout}
}

// listing is the memory that one listing has reserved.
type listing struct {
	*listings
	partner store.PartnerID
	bytes   int64
}

// reserve waits until there is memory for a page with a limit of events: for the events, and for the answer that is
// built from them. Its errors are those of reserveBytes.
func (l *listings) reserve(ctx context.Context, partner store.PartnerID, limit int) (*listing, error) {
	return l.reserveBytes(ctx, partner, int64(limit)*2*store.MaxEventBytes)
}

// reserveBytes waits until there is so much memory. errAnswersOfPartner: the partner's share had no room before the
// timeout. errAnswers: the memory of all had none. When ctx ends first, reserveBytes returns its error.
func (l *listings) reserveBytes(ctx context.Context, partner store.PartnerID, bytes int64) (*listing, error) {
	m := &listing{l, partner, bytes}
	waiting, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	switch err := l.budget.Reserve(waiting, partner, m.bytes); {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, budget.ErrShare):
		return nil, errAnswersOfPartner
	default:
		return nil, errAnswers
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
