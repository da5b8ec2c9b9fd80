package partnerapi

import (
	"context"
	"sync"
	"time"

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

// slots has a semaphore for each partner. A semaphore is never removed: operators create partners, so they are few.
type slots struct {
	perPartner int
	timeout    time.Duration

	mu    sync.Mutex
	taken map[store.PartnerID]chan struct{} // each channel has one element for each slot that is taken
}

func newSlots(perPartner int, timeout time.Duration) *slots {
	return &slots{perPartner: perPartner, timeout: timeout, taken: map[store.PartnerID]chan struct{}{}}
}

// acquire waits for a slot of the partner. The caller must call release. errVerifications: none was free before the timeout.
// When ctx ends first, acquire returns its error.
func (s *slots) acquire(ctx context.Context, partner store.PartnerID) (release func(), err error) {
	s.mu.Lock()
	taken := s.taken[partner]
	if taken == nil {
		taken = make(chan struct{}, s.perPartner)
		s.taken[partner] = taken
	}
	s.mu.Unlock()

	timeout := time.NewTimer(s.timeout)
	defer timeout.Stop()
	select {
	case taken <- struct{}{}:
		return func() { <-taken }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timeout.C:
		return nil, errVerifications
	}
}
