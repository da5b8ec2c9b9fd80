package partnerapi

import (
	"context"
	"math"
	"time"

	"mtagd/edge/budget"
	"mtagd/store"
)

// A partner may verify many tags at once, for example after an import. Its DNS look-ups must not use up
// the sockets that other partners need. So each partner has this many slots for verifications. A verification without
// a slot waits, and fails when none is free before the timeout.
const (
	verificationsPerPartner = 256
	slotTimeout             = 15 * time.Second
)

// errVerifications is the error for a verification that got no slot.
var errVerifications = store.Busy("too many verifications are under way")

// errReadings is the error for a request for personal data that got no slot: each partner has one, as all events of a merchant
// are read.
var errReadings = store.Busy("another request for personal data is under way")

// slots shares the slots: each partner has its own, and they have no total.
type slots struct {
	budget  *budget.Budget[store.PartnerID]
	timeout time.Duration
	none    error // for a request that got none
}

func newSlots(perPartner int64, timeout time.Duration, none error) *slots {
	return &slots{budget.New(math.MaxInt64, func(store.PartnerID) int64 { return perPartner }), timeout, none}
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
