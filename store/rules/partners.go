package rules

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"mtagd/store"
)

// AddPartner implements store.Control.
func (d *Data) AddPartner(ctx context.Context, name string) (store.Partner, error) {
	name, err := store.CheckName("name", name)
	if err != nil {
		return store.Partner{}, err
	}
	var p store.Partner
	err = d.update(ctx, func(c *change) error {
		p = store.Partner{ID: store.NewPartnerID(), Name: name, CreatedAt: c.now}
		c.put(Partners, string(p.ID), p)
		c.audit(store.AboutPartner(store.PartnerAdded, p, ""))
		return nil
	})
	return p, err
}

// Partners implements store.Control.
func (d *Data) Partners(ctx context.Context) ([]store.Partner, error) {
	return viewed(ctx, d, func(s *State, _ time.Time) ([]store.Partner, error) {
		partners := slices.Collect(maps.Values(s.partners))
		store.Sort(partners, func(a, b store.Partner) int {
			return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
		})
		return partners, nil
	})
}

// UpdatePartner implements store.Control.
func (d *Data) UpdatePartner(ctx context.Context, id store.PartnerID, update func(store.Partner) store.Partner) (p store.Partner, err error) {
	err = d.update(ctx, func(c *change) error {
		old, err := d.state.partner(id)
		if err != nil {
			return err
		}
		p = update(old)
		if err := p.CheckUpdate(old); err != nil {
			return err
		}
		return c.replacePartner(old, p)
	})
	return p, err
}

// EnablePreverified implements store.Control.
func (d *Data) EnablePreverified(ctx context.Context, id store.PartnerID, domain string) (p store.Partner, err error) {
	domain, err = store.CheckHostName("domain", domain)
	if err != nil {
		return p, err
	}
	err = d.update(ctx, func(c *change) error {
		old, err := d.state.partner(id)
		if err != nil {
			return err
		}
		if owner, taken := d.state.tracking[domain]; taken && owner != id {
			return store.Conflict("domain", "is another partner's tracking domain")
		}
		if err := c.endFreeClaim(store.RootDomain(domain), "is on a root domain that a server-side tag has registered"); err != nil {
			return err
		}
		p = old
		p.TrackingDomain = domain
		return c.replacePartner(old, p)
	})
	return p, err
}

// replacePartner replaces a partner, and notes what has changed.
func (c *change) replacePartner(old, p store.Partner) error {
	changes, err := store.PartnerChanges(old, p)
	if err != nil || len(changes) == 0 {
		return err
	}
	c.put(Partners, string(p.ID), p)
	c.audit(changes...)
	return nil
}
