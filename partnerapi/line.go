package partnerapi

import (
	"sync"
	"time"

	"mtagd/store"
)

// A partner may verify many tags at once, after an import for example, and its look-ups must not use up
// the sockets that those of the others need. Verifications beyond this number wait in line; one is
// sent away only when the line does not move.
const (
	lookupsPerPartner = 256
	lineTimeout       = 15 * time.Second
)

// line limits how much each partner has under way. It keeps a little for every partner that was ever
// here: the operator makes them, so they are few.
type line struct {
	places  int // for each partner
	timeout time.Duration

	mu    sync.Mutex
	taken map[store.PartnerID]chan struct{} // as many elements as places are taken
}

func newLine(places int, timeout time.Duration) *line {
	return &line{places: places, timeout: timeout, taken: map[store.PartnerID]chan struct{}{}}
}

// enter waits for a place, which the caller gives back with leave. It returns an error of kind busy after
// the time-out.
func (l *line) enter(partner store.PartnerID) (leave func(), err error) {
	l.mu.Lock()
	taken := l.taken[partner]
	if taken == nil {
		taken = make(chan struct{}, l.places)
		l.taken[partner] = taken
	}
	l.mu.Unlock()

	timeout := time.NewTimer(l.timeout)
	defer timeout.Stop()
	select {
	case taken <- struct{}{}:
		return func() { <-taken }, nil
	case <-timeout.C:
		return nil, store.Busy("too many verifications are under way")
	}
}
