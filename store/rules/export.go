package rules

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"mtagd/store/move"
)

// Export returns all control data but sessions and the audit log. Damaged records, and what belongs to them, are left out.
func (d *Data) Export() *move.Control {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := d.state
	c := &move.Control{Retention: s.retention, Partners: sorted(s.partners), Tags: sorted(s.tags), Removals: sorted(s.removals), Erasures: sorted(s.erasures)}
	for i := range c.Tags {
		c.Tags[i].Host, c.Tags[i].ClaimLost = "", false
	}
	for _, k := range sorted(s.keys) {
		issued := move.Issued{Key: k}
		if at := d.dir.LastUse(k.ID); !at.IsZero() {
			issued.LastUse = at.UnixMicro()
		}
		issued.LastUsedAt = issued.Key.LastUsedAt
		c.Keys = append(c.Keys, issued)
	}
	for _, m := range sorted(s.merchants) {
		c.Merchants = append(c.Merchants, move.Merchant{Merchant: m.Merchant, Ordinal: m.Ordinal})
	}
	for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
		c.Claims = append(c.Claims, move.Claim{Domain: domain, Tag: s.domains[domain]})
	}
	for _, r := range sorted(s.replies) {
		c.Replies = append(c.Replies, move.Reply(r))
	}
	for _, m := range slices.Sorted(maps.Keys(s.suppressed)) {
		for k, by := range s.suppressed[m] {
			c.Suppressed = append(c.Suppressed, move.Suppressed{Merchant: m, Key: k, Erasure: by})
		}
	}
	slices.SortFunc(c.Suppressed, func(a, b move.Suppressed) int {
		return cmp.Or(cmp.Compare(a.Merchant, b.Merchant), slices.Compare(a.Key[:], b.Key[:]))
	})
	return c
}

// sorted returns the values of a map in the order of their keys; nil when there is none.
func sorted[K cmp.Ordered, V any](m map[K]V) (all []V) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}

// RecordsOf returns the records of control data that was exported, for data with this id.
func RecordsOf(c *move.Control, id string) ([]Record, error) {
	s := NewState(nil)
	s.retention, s.id = c.Retention, id
	for _, k := range c.Keys {
		s.keys[k.ID] = k.Key
		if k.LastUse != 0 {
			s.uses[k.ID] = time.UnixMicro(k.LastUse).UTC()
		}
	}
	for _, p := range c.Partners {
		s.partners[p.ID] = p
	}
	for _, m := range c.Merchants {
		s.merchants[m.ID] = merchant(m)
	}
	for _, t := range c.Tags {
		s.tags[t.ID] = t
	}
	for _, claim := range c.Claims {
		s.domains[claim.Domain] = claim.Tag
	}
	for _, r := range c.Replies {
		s.replies[replyKey(r.Partner, r.Key)] = reply(r)
	}
	for _, r := range c.Removals {
		s.removals[r.Merchant] = r
	}
	for _, e := range c.Erasures {
		s.erasures[e.ID] = e
	}
	for _, of := range c.Suppressed {
		s.loadSuppressed("", suppressedPerson{of.Merchant, of.Key, of.Erasure})
	}
	return s.Records()
}
