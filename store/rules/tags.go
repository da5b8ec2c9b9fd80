package rules

import (
	"context"
	"time"

	"mtagd/store"
)

// GenerateTag implements store.Control.
func (d *Data) GenerateTag(ctx context.Context, id store.MerchantID, t store.TagType, domain string) (tag store.Tag, created bool, err error) {
	// Most calls ask for a tag that exists, and need not wait for changes.
	m, err := d.Merchant(ctx, id)
	if err != nil {
		return store.Tag{}, false, err
	}
	if tag, ok := m.Tag(t); ok {
		return tag, false, nil
	}
	err = d.update(ctx, func(c *change) error {
		if m, err = d.state.merchant(id); err != nil {
			return err
		}
		var exists bool
		if tag, exists = m.Tag(t); exists {
			return nil
		}
		created = true
		if tag, err = c.newTag(m, t, domain); err != nil {
			return err
		}
		c.audit(store.AboutTag(store.TagGenerated, tag, tag.Host))
		return nil
	})
	return tag, created, err
}

// newTag creates the merchant's tag of a type, with its domain and its label.
func (c *change) newTag(m store.Merchant, t store.TagType, domain string) (tag store.Tag, err error) {
	d := c.d
	p, err := d.state.partner(m.Partner)
	if err != nil {
		return tag, err
	}
	if t == store.Preverified && !p.PreverifiedEnabled() {
		return tag, store.Invalid("type", "preverified is not enabled for this partner")
	}
	if t != store.ServerSide {
		domain = ""
	}
	var label string
	if t.NeedsRecord() {
		if err := p.Limits.CheckLabels(d.state.counts[p.ID].labels, d.dir.Labels()); err != nil {
			return tag, err
		}
		if label, err = store.DrawLabel(func(l string) bool { _, taken := d.state.labels[l]; return taken }); err != nil {
			return tag, err
		}
	}
	tag = store.NewTag(m, t, label, domain, c.now).WithHost(p.TrackingDomain)
	if t == store.ServerSide {
		if err = c.claimDomain(domain, tag.ID); err != nil {
			return tag, err
		}
		if err := p.Limits.CheckUnverifiedClaims(d.state.counts[p.ID].unverifiedClaims(tag.ClaimedAt)); err != nil {
			return tag, err
		}
	}
	c.put(Tags, string(tag.ID), tag)
	return tag, nil
}

// Tag implements store.Control.
func (d *Data) Tag(ctx context.Context, id store.TagID) (store.Tag, error) {
	return viewed(ctx, d, func(s *State, _ time.Time) (store.Tag, error) { return s.tag(id) })
}

// UpdateTag implements store.Control.
func (d *Data) UpdateTag(ctx context.Context, id store.TagID, update func(store.Tag) store.Tag) (tag store.Tag, err error) {
	err = d.update(ctx, func(c *change) error {
		old, err := d.state.tag(id)
		if err != nil {
			return err
		}
		tag = update(old)
		if err := tag.CheckUpdate(old); err != nil {
			return err
		}
		if tag.ClaimLost && tag.Verified {
			if err = c.claimDomain(tag.Domain, id); err != nil {
				return err
			}
			tag = tag.TakeClaim(c.now)
		}
		return c.replaceTag(old, tag)
	})
	return tag, err
}
