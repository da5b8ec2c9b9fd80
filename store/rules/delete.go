package rules

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"mtagd/store"
)

// DeleteMerchant implements store.Control.
func (d *Data) DeleteMerchant(ctx context.Context, id store.MerchantID) (m store.Merchant, err error) {
	err = d.update(ctx, func(c *change) error {
		if m, err = d.state.merchant(id); err != nil {
			return err
		}
		c.deleteMerchants(m.Partner, []store.Merchant{m})
		return nil
	})
	return m, err
}

// DeletePartner implements store.Control.
func (d *Data) DeletePartner(ctx context.Context, id store.PartnerID, withMerchants bool) (p store.Partner, err error) {
	err = d.update(ctx, func(c *change) error {
		if p, err = d.state.partner(id); err != nil {
			return err
		}
		var merchants []store.Merchant
		for _, id := range d.state.merchantsOf[id] {
			m, err := d.state.merchant(id)
			if err != nil {
				return err
			}
			merchants = append(merchants, m)
		}
		if len(merchants) > 0 && !withMerchants {
			return store.Conflict("partner", "has merchants")
		}
		c.deleteMerchants(id, merchants)
		for _, k := range d.state.keysOfPartner(id) {
			c.deleteKey(k)
		}
		for _, key := range d.state.repliesOf[id] {
			c.delete(Replies, key)
		}
		c.delete(Partners, string(id))
		c.audit(store.AboutPartner(store.PartnerDeleted, p, ""))
		return nil
	})
	return p, err
}

// deleteMerchants deletes merchants of one partner with their tags, claims and destinations, and notes that their events are
// to be removed.
func (c *change) deleteMerchants(partner store.PartnerID, merchants []store.Merchant) {
	gone := map[store.MerchantID]bool{}
	for _, m := range merchants {
		gone[m.ID], c.removing = true, true
		for _, t := range m.Tags {
			if t.Type == store.ServerSide && !t.ClaimLost {
				c.delete(Domains, t.Domain)
			}
			c.delete(Tags, string(t.ID))
		}
		c.delete(Merchants, string(m.ID))
		c.putRemoval(store.Removal{Kind: store.OfDeletion, Merchant: m.ID, Partner: partner, At: c.now, State: store.ErasurePending})
		c.audit(store.AboutMerchant(store.MerchantDeleted, m, ""))
	}
	for _, key := range slices.Sorted(maps.Keys(c.d.state.destinations)) {
		if gone[destination(key, nil).Merchant] {
			c.delete(Destinations, key)
		}
	}
}

// Removals implements store.Control.
func (d *Data) Removals(ctx context.Context) ([]store.Removal, error) {
	all, err := viewed(ctx, d, func(s *State, _ time.Time) ([]store.Removal, error) {
		return slices.AppendSeq(slices.Collect(maps.Values(s.removals)), maps.Values(s.expiries)), nil
	})
	store.Sort(all, func(a, b store.Removal) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Merchant, b.Merchant)) })
	return all, err
}

// IsRemoved reports whether a merchant was deleted, and events of it may be left.
func (d *Data) IsRemoved(id store.MerchantID) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.state.isRemoved(id)
}

// WithoutRemoved returns the merchants that IsRemoved does not report. The result may be ids itself.
func (d *Data) WithoutRemoved(ids []store.MerchantID) []store.MerchantID {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if len(d.state.removals) == 0 {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), d.state.isRemoved)
}

func (s *State) isRemoved(id store.MerchantID) bool {
	_, removed := s.removals[id]
	return removed
}

// MerchantIDs returns all merchants, in no order.
func (d *Data) MerchantIDs() []store.MerchantID {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Keys(d.state.merchants))
}

// SaveRemovals stores removals, and forgets those that are done.
func (d *Data) SaveRemovals(ctx context.Context, removals []store.Removal) error {
	return d.update(ctx, func(c *change) error {
		for _, r := range removals {
			c.putRemoval(r)
		}
		return nil
	})
}

func (c *change) putRemoval(r store.Removal) {
	kind := Removals
	if r.Kind == store.OfRetention {
		kind = Expiries
	}
	if r.State != store.ErasureDone {
		c.put(kind, string(r.Merchant), r)
		return
	}
	c.delete(kind, string(r.Merchant))
	if kind == Removals {
		for k := range c.d.state.suppressed[r.Merchant] {
			c.delete(Suppressed, suppressedKey(r.Merchant, k))
		}
	}
}
