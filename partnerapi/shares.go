package partnerapi

import (
	"context"
	"errors"
	"math"
	"time"

	"mtagd/store"
	"mtagd/store/budget"
)

// A partner may verify many tags at once, for example after an import. Its DNS look-ups must not use up
// the sockets that other partners need. So each partner has this many slots for verifications. A verification without
// a slot waits, and fails when none is free before the timeout.
const (
	verificationsPerPartner = 256
	slotTimeout             = 15 * time.Second
)

// A request that follows the feed holds a connection and a goroutine for as long as it waits. An export takes up to 50 MiB
// of memory until its client has read it. Without a free slot, both are refused immediately. A partner's exports must leave
// as many slots free as they have, so that a few partners cannot take all.
const (
	exportsPerPartner = 4
	exportsAtOnce     = 4 * exportsPerPartner // of all partners
)

// A page of events can be large: 100 events of 64 KiB. Its memory is in use until the client has read it. So each
// partner has a share of the memory for listings, PartnerLimits.AnswerBytes. A listing that does not fit waits, and
// fails when there is no room before the timeout. No partner gets more than is free. The default share has room for
// five pages of 100 events, or about 40 of 12. Pages of small events take a millisecond, so few ever wait.
const (
	listingMemory = 256 << 20 // bytes, of all partners together
	memoryTimeout = 5 * time.Second
)

// The errors for requests that got no slot, or no memory.
var (
	errVerifications    = store.Busy("too many verifications are under way")
	errReaders          = store.Busy("too many requests follow the feed")
	errExports          = store.Busy("too many exports are under way")
	errTrials           = store.Busy("other events are being tried")
	errReadings         = store.Busy("another request for personal data is under way") // all events of a merchant are read
	errAnswersOfPartner = store.Busy("the partner's answers under way use all of its memory")
	errAnswers          = store.Unavailable("the answers under way use all of their memory")
)

// shares are slots, or bytes of memory, of which each partner has a share.
type shares struct {
	budget     *budget.Budget[store.PartnerID]
	timeout    time.Duration
	none, full error // when the partner's share, or all of it, had no room before the timeout
}

func newSlots(perPartner int64, timeout time.Duration, none error) *shares {
	return &shares{budget.New(math.MaxInt64, func(store.PartnerID) int64 { return perPartner }), timeout, none, none}
}

func newExportSlots() *shares {
	return &shares{budget.New(exportsAtOnce, func(store.PartnerID) int64 { return exportsPerPartner }).Fair(), 0, errExports, errExports}
}

// newReaderSlots returns the slots for requests that follow the feed. The directory has each partner's number.
func newReaderSlots(directory *store.Directory, limits bool) *shares {
	return &shares{budget.New(math.MaxInt64, func(id store.PartnerID) int64 {
		partner, _ := directory.Partner(id)
		if limit := partner.Limits.FeedReaders.Or(store.DefaultFeedReaders); limits && limit != store.NoLimit {
			return int64(limit)
		}
		return math.MaxInt64
	}), 0, errReaders, errReaders}
}

// newListings returns the memory of all listings, with total bytes. The directory has each partner's share.
func newListings(total int64, directory *store.Directory, timeout time.Duration) *shares {
	return &shares{budget.New(total, func(id store.PartnerID) int64 {
		partner, _ := directory.Partner(id)
		if limit := partner.Limits.AnswerBytes.Or(store.DefaultAnswerBytes); limit != store.NoLimit {
			return int64(limit)
		}
		return total
	}).Fair(), timeout, errAnswersOfPartner, errAnswers}
}

// reservation is what a request has of its partner's share.
type reservation struct {
	*shares
	partner store.PartnerID
	n       int64
}

// reserve waits until there are n slots or bytes. s.none: the partner's share had no room before the timeout. s.full: the
// others have all. When ctx ends first, reserve returns its error.
func (s *shares) reserve(ctx context.Context, partner store.PartnerID, n int64) (*reservation, error) {
	waiting, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	switch err := s.budget.Reserve(waiting, partner, n); {
	case err == nil:
		return &reservation{s, partner, n}, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, budget.ErrShare):
		return nil, s.none
	default:
		return nil, s.full
	}
}

// acquire is reserve for one slot. The caller must call release.
func (s *shares) acquire(ctx context.Context, partner store.PartnerID) (release func(), err error) {
	slot, err := s.reserve(ctx, partner, 1)
	if err != nil {
		return nil, err
	}
	return slot.release, nil
}

// keep releases all but what the finished answer needs.
func (r *reservation) keep(bytes int) {
	if rest := r.n - int64(bytes); rest > 0 {
		r.budget.Release(r.partner, rest)
		r.n -= rest
	}
}

func (r *reservation) release() {
	r.budget.Release(r.partner, r.n)
	r.n = 0
}

// takeTurn waits until a request of a partner may read on in the feed, or search its merchants. All such requests together
// use half of the processors, so that the others find one: a client that catches up takes as many events as it gets.
// Partners take turns: the many requests of one wait for each other. When ctx ends first, takeTurn returns its error. After
// it, the caller must call endTurn. A turn is for one call of Feed, or one search.
func (a *api) takeTurn(ctx context.Context, partner store.PartnerID) error {
	if a.turns.Reserve(ctx, partner, 1) != nil {
		return ctx.Err()
	}
	return nil
}

func (a *api) endTurn(partner store.PartnerID) { a.turns.Release(partner, 1) }
