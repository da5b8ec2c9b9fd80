package rules

import (
	"time"

	"mtagd/store"
)

// counts is what a partner's limits need to know of its tags. It is in memory, so that generating a tag costs the same
// however many tags there are.
type counts struct {
	labels     int
	unverified map[store.TagID]time.Time // the claims that are not verified yet: from when on each is free; nil: there are none
}

// count notes a tag that was made, changed or deleted: how many labels its partner has gained, and whether the tag
// has a claim that is not verified yet.
func (s *State) count(t store.Tag, labels int, unverified bool) {
	c := s.counts[t.Partner]
	c.labels += labels
	if unverified {
		if c.unverified == nil {
			c.unverified = map[store.TagID]time.Time{}
		}
		c.unverified[t.ID] = t.Claim(t.ClaimedAt).FreeFrom
	} else {
		delete(c.unverified, t.ID)
	}
	if len(c.unverified) == 0 {
		c.unverified = nil
	}
	s.counts[t.Partner] = c
	if c.labels == 0 && c.unverified == nil {
		delete(s.counts, t.Partner)
	}
}

// unverifiedClaims returns how many claims are neither verified nor lapsed.
func (c counts) unverifiedClaims(now time.Time) int {
	n := 0
	for _, freeFrom := range c.unverified {
		if now.Before(freeFrom) {
			n++
		}
	}
	return n
}
