package rules

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mtagd/store"
)

// AddMerchant implements store.Control.
func (d *Data) AddMerchant(ctx context.Context, partner store.PartnerID, n store.NewMerchant) (store.Merchant, error) {
	var m store.Merchant
	err := d.update(ctx, func(c *change) error {
		m = n.Merchant(store.NewMerchantID(), partner, c.now)
		p, err := d.state.partner(partner)
		if err != nil {
			return err
		}
		r, before, err := d.state.reply(partner, n.Once, c.now)
		switch {
		case err != nil:
			return err
		case before && (r.Merchant == "" || r.Name != n.Name || r.Domain != n.Domain || r.Secret != n.IdentityRequiresSecret):
			return store.Mismatch("was used before, with another request")
		case before:
			m = n.Merchant(r.Merchant, partner, r.CreatedAt)
			return nil
		}
		list := d.state.merchantsOf[partner]
		if err := p.Limits.CheckMerchants(len(list)); err != nil {
			return err
		}
		m.Ordinal = 1
		if len(list) > 0 {
			m.Ordinal = d.state.merchants[list[len(list)-1]].Ordinal + 1
		}
		c.put(Merchants, string(m.ID), m)
		c.putReply(reply{Partner: partner, Merchant: m.ID, Name: m.Name, Domain: m.Domain, Secret: m.IdentityRequiresSecret, CreatedAt: m.CreatedAt}, n.Once)
		c.audit(store.AboutMerchant(store.MerchantCreated, m, m.Domain))
		return nil
	})
	return m, err
}

// Merchant implements store.Control.
func (d *Data) Merchant(ctx context.Context, id store.MerchantID) (store.Merchant, error) {
	return viewed(ctx, d, func(s *State, _ time.Time) (store.Merchant, error) { return s.merchant(id) })
}

// UpdateMerchant implements store.Control.
func (d *Data) UpdateMerchant(ctx context.Context, id store.MerchantID, update func(store.Merchant) store.Merchant) (m store.Merchant, err error) {
	err = d.update(ctx, func(c *change) error {
		old, err := d.state.merchant(id)
		if err != nil {
			return err
		}
		m = update(old)
		m.Tags, m.Ordinal = old.Tags, old.Ordinal
		changes, err := store.MerchantChanges(old, m)
		if err = cmp.Or(m.CheckUpdate(old), err); err != nil || len(changes) == 0 {
			return err
		}
		c.put(Merchants, string(id), m)
		c.audit(changes...)
		return nil
	})
	return m, err
}

// Merchants implements store.Control.
func (d *Data) Merchants(ctx context.Context, q store.MerchantQuery) (page []store.Merchant, total int, err error) {
	if q.Name != "" || q.Domain != "" {
		return d.filterMerchants(ctx, q)
	}
	err = d.view(ctx, func(s *State, _ time.Time) error {
		list := s.merchantsOf[q.Partner]
		total = len(list)
		from := min(q.Offset, total)
		for _, id := range list[from:min(from+q.Limit, total)] {
			m, err := s.merchant(id)
			if err != nil {
				return err
			}
			page = append(page, m)
		}
		return nil
	})
	return page, total, err
}

// filteredAtOnce is how many merchants a filter reads before it lets others have the lock.
const filteredAtOnce = 100

// filterMerchants returns the page of the merchants that fit the query. It compares outside the lock: a partner may have so
// many merchants that others would wait. A merchant that is deleted meanwhile is left out.
func (d *Data) filterMerchants(ctx context.Context, q store.MerchantQuery) (page []store.Merchant, total int, err error) {
	ids, err := viewed(ctx, d, func(s *State, _ time.Time) ([]store.MerchantID, error) {
		return slices.Clone(s.merchantsOf[q.Partner]), nil
	})
	if err != nil {
		return nil, 0, err
	}
	matches := q.Matcher()
	some := make([]store.Merchant, 0, filteredAtOnce)
	for part := range slices.Chunk(ids, filteredAtOnce) {
		some = some[:0]
		if err := d.look(ctx, func(s *State) error {
			for _, id := range part {
				m, err := s.merchant(id)
				if store.KindOf(err) == store.KindNotFound {
					continue
				}
				if err != nil {
					return err
				}
				some = append(some, m)
			}
			return nil
		}); err != nil {
			return nil, 0, err
		}
		for _, m := range some {
			if !matches(m) {
				continue
			}
			if total++; total > q.Offset && len(page) < q.Limit {
				page = append(page, m)
			}
		}
	}
	return page, total, nil
}
