package rules

import (
	"context"
	"maps"
	"slices"
	"time"

	"mtagd/store"
)

// Claim implements store.Control.
func (d *Data) Claim(ctx context.Context, domain string) (store.Claim, error) {
	return viewed(ctx, d, func(s *State, now time.Time) (store.Claim, error) {
		holder, err := s.holder(domain)
		return holder.Claim(now), err
	})
}

// Claims implements store.Control.
func (d *Data) Claims(ctx context.Context, partner store.PartnerID) ([]store.Claim, error) {
	return viewed(ctx, d, func(s *State, now time.Time) (claims []store.Claim, err error) {
		for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if tag, err := s.holder(domain); err == nil && (partner == "" || tag.Partner == partner) {
				claims = append(claims, tag.Claim(now))
			}
		}
		return claims, nil
	})
}

// ReleaseDomain implements store.Control.
func (d *Data) ReleaseDomain(ctx context.Context, domain string) (claim store.Claim, err error) {
	err = d.update(ctx, func(c *change) error {
		holder, err := d.state.holder(domain)
		if err != nil {
			return err
		}
		claim = holder.Claim(c.now)
		return c.endClaim(holder)
	})
	return claim, err
}

// claimDomain gives a root domain to a tag. When another tag's claim is free, that tag loses it.
func (c *change) claimDomain(domain string, id store.TagID) error {
	for host := range c.d.state.tracking {
		if store.RootDomain(host) == domain {
			return store.Invalid("domain", "is a partner's tracking domain")
		}
	}
	if err := c.endFreeClaim(domain, "is already registered"); err != nil {
		return err
	}
	c.write(Domains, domain, []byte(id))
	return nil
}

// endFreeClaim ends the claim to a root domain if it is free. KindConflict, with the message taken: it is not.
func (c *change) endFreeClaim(domain, taken string) error {
	holder, err := c.d.state.holder(domain)
	if store.KindOf(err) == store.KindNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !holder.Claim(c.now).Free(c.now) {
		return store.Conflict("domain", taken)
	}
	return c.endClaim(holder)
}

// endClaim takes the claim away from the tag that has it.
func (c *change) endClaim(holder store.Tag) error {
	c.delete(Domains, holder.Domain)
	return c.replaceTag(holder, holder.LoseClaim())
}

// replaceTag replaces a tag, and notes what has changed.
func (c *change) replaceTag(old, tag store.Tag) error {
	changes, err := store.TagChanges(old, tag)
	if err != nil {
		return err
	}
	c.put(Tags, string(tag.ID), tag)
	c.audit(changes...)
	return nil
}
