package postgres

import (
	"context"

	"mtagd/store"
)

// DeleteMerchant implements store.Control. What is left of it is removed in the background.
func (e *engine) DeleteMerchant(ctx context.Context, id store.MerchantID) (m store.Merchant, err error) {
	err = e.change(ctx, func(c *change) error {
		if m, err = merchant(c.ctx, c.tx, id); err != nil {
			return err
		}
		return c.deleteMerchants(m)
	})
	if err != nil {
		return store.Merchant{}, err
	}
	e.life.nudge()
	return m, nil
}

// DeletePartner implements store.Control. What is left of its merchants is removed in the background.
func (e *engine) DeletePartner(ctx context.Context, id store.PartnerID, withMerchants bool) (p store.Partner, err error) {
	err = e.change(ctx, func(c *change) error {
		if p, err = c.partner(id); err != nil {
			return err
		}
		merchants, err := list[store.Merchant](c.ctx, c.tx, "SELECT record FROM merchant WHERE partner = $1 ORDER BY ordinal", string(id))
		if err != nil {
			return err
		}
		if len(merchants) > 0 && !withMerchants {
			return store.Conflict("partner", "has merchants")
		}
		tags, err := listTags(c.ctx, c.tx, "WHERE t.partner = $1", string(id))
		if err != nil {
			return err
		}
		addTags(merchants, tags)
		if err := c.deleteMerchants(merchants...); err != nil {
			return err
		}
		keys, err := keysOf(c.ctx, c.tx, id)
		if err != nil {
			return err
		}
		for _, k := range keys {
			c.deleteKey(k.ID)
		}
		c.exec("DELETE FROM reply WHERE partner = $1", string(id))
		c.exec("DELETE FROM partner WHERE id = $1", string(id))
		c.publish(partnerRemoved, id)
		return c.audit(store.AboutPartner(store.PartnerDeleted, p, ""))
	})
	if err != nil {
		return store.Partner{}, err
	}
	e.life.nudge()
	return p, nil
}

// deleteMerchants deletes merchants with their tags and claims, and notes that their events are to be removed.
func (c *change) deleteMerchants(merchants ...store.Merchant) error {
	if len(merchants) == 0 {
		return nil
	}
	ids, removed := make([]string, len(merchants)), make([]removedMerchant, len(merchants))
	for i, m := range merchants {
		ids[i], removed[i] = string(m.ID), removedMerchant{ID: m.ID, Partner: m.Partner}
		for _, t := range m.Tags {
			removed[i].Tags = append(removed[i].Tags, t.ID)
		}
		if err := c.audit(store.AboutMerchant(store.MerchantDeleted, m, "")); err != nil {
			return err
		}
	}
	c.exec("DELETE FROM claim USING tag WHERE claim.tag = tag.id AND tag.merchant = ANY($1)", ids)
	c.exec("DELETE FROM tag WHERE merchant = ANY($1)", ids)
	c.exec("INSERT INTO removal (merchant, partner, at) SELECT id, partner, $2 FROM merchant WHERE id = ANY($1)", ids, c.now)
	c.exec("DELETE FROM merchant WHERE id = ANY($1)", ids)
	// Those that nodes follow are emptied, so that they notice; deleteOld deletes them.
	c.exec("UPDATE document SET content = NULL, changed = nextval('document_changed') WHERE merchant = ANY($1) AND kind = $2", ids, string(store.Destinations))
	c.exec("DELETE FROM document WHERE merchant = ANY($1) AND kind <> $2", ids, string(store.Destinations))
	c.publish(merchantsRemoved, removed)
	return c.failed
}
