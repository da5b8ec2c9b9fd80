package partnerapi

import (
	"context"
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

// A request that follows the feed holds a connection and a goroutine for as long as it waits. An export takes up to
// 50 MiB of memory, for as long as its client takes to read it. Who gets no slot for one is refused immediately. A partner has at most
// as many exports under way as there are free slots, so that a few partners cannot have all of them.
const (
	exportsPerPartner = 4
	exportsAtOnce     = 4 * exportsPerPartner // of all partners
)

// The errors for requests that got no slot.
var (
	errVerifications = store.Busy("too many verifications are under way")
	errReaders       = store.Busy("too many requests follow the feed")
	errExports       = store.Busy("too many exports are under way")
	errTrials        = store.Busy("other events are being tried")
	errReadings      = store.Busy("another request for personal data is under way") // all events of a merchant are read
)

// slots shares the slots: each partner has its own. Only those for exports have a total.
type slots struct {
	budget  *budget.Budget[store.PartnerID]
	timeout time.Duration
	none    error // when none was free before the timeout
}

func newSlots(perPartner int64, timeout time.Duration, none error) *slots {
	return &slots{budget.New(math.MaxInt64, func(store.PartnerID) int64 { return perPartner }), timeout, none}
}

// newReaderSlots returns the slots for requests that follow the feed. The directory has each partner's number.
func newReaderSlots(directory *store.Directory, limits bool) *slots {
	return &slots{budget.New(math.MaxInt64, func(id store.PartnerID) int64 {
		partner, _ := directory.Partner(id)
		if limit := partner.Limits.FeedReaders.Or(store.DefaultFeedReaders); limits && limit != store.NoLimit {
			return int64(limit)
		}
		return math.MaxInt64
	}), 0, errReaders}
}

func newExportSlots() *slots {
	return &slots{budget.New(exportsAtOnce, func(store.PartnerID) int64 { return exportsPerPartner }).Fair(), 0, errExports}
}

// acquire waits for a slot of the partner. The caller must call release. s.none: none was free before the
// timeout. When ctx ends first, acquire returns its error.
func (s *slots) acquire(ctx context.Context, partner store.PartnerID) (release func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	switch err := s.budget.Reserve(waiting, partner, 1); {
	case err == nil:
		return func() { s.budget.Release(partner, 1) }, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	default:
		return nil, s.none
	}
}

// takeTurn waits until a request of a partner may read on in the feed, or search its merchants. All such requests together use half of the
// processors, so that the others find one: a client that catches up takes as many events as it gets. Partners take turns:
// the many requests of one wait for each other. When ctx ends first, takeTurn returns its error. After it, the caller must
// call endTurn. A turn is for one call of Feed, or one search.
func (a *api) takeTurn(ctx context.Context, partner store.PartnerID) error {
	if a.turns.Reserve(ctx, partner, 1) != nil {
		return ctx.Err()
	}
	return nil
}

func (a *api) endTurn(partner store.PartnerID) { a.turns.Release(partner, 1) }
