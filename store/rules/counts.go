package rules

import (
	"time"

	"mtagd/store"
)

// counts is what a partner's limits need to know of its tags. It is in memory, so that generating a tag costs the same
// however many tags there are.
type counts struct {
	labels     int
	unverified map[store.TagID]time.Time // the claims that are not verified yet: from when on each is free
}

// set notes a tag that is new or has changed.
func (c *counts) set(t store.Tag, isNew bool) {
	if isNew && t.Label != "" {
		c.labels++
	}
	if t.Type == store.ServerSide && !t.Verified && !t.ClaimLost {
		c.unverified[t.ID] = t.Claim(t.ClaimedAt).FreeFrom
	} else {
		delete(c.unverified, t.ID)
	}
}

// remove forgets a tag that was deleted.
func (c *counts) remove(t store.Tag) {
	if t.Label != "" {
		c.labels--
	}
	delete(c.unverified, t.ID)
}

// unverifiedClaims returns how many claims are neither verified nor lapsed.
func (c *counts) unverifiedClaims(now time.Time) int {
	n := 0
	for _, freeFrom := range c.unverified {
		if now.Before(freeFrom) {
			n++
		}
	}
	return n
}

// countsOf returns the counts of a partner.
func (s *State) countsOf(partner store.PartnerID) *counts {
	c := s.counts[partner]
	if c == nil {
		c = &counts{unverified: map[store.TagID]time.Time{}}
		s.counts[partner] = c
	}
	return c
}
