package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// AddMerchant implements store.Control.
func (e *engine) AddMerchant(ctx context.Context, partner store.PartnerID, n store.NewMerchant) (m store.Merchant, err error) {
	err = e.change(ctx, func(c *change) error {
		p, err := c.partner(partner)
		if err != nil {
			return err
		}
		r, before, err := c.reply(partner, n.Once)
		switch {
		case err != nil:
			return err
		case before && (r.Merchant == "" || r.Name != n.Name || r.Domain != n.Domain || r.Secret != n.IdentityRequiresSecret):
			return store.Mismatch("was used before, with another request")
		case before:
			m = n.Merchant(r.Merchant, partner, r.CreatedAt)
			return nil
		}
		var count int
		var last int64
		if err := c.tx.QueryRow(c.ctx, "SELECT count(*), coalesce(max(ordinal), 0) FROM merchant WHERE partner = $1",
			string(partner)).Scan(&count, &last); err != nil {
			return err
		}
		if err := p.Limits.CheckMerchants(count); err != nil {
			return err
		}
		m = n.Merchant(store.NewMerchantID(), partner, c.now)
		c.exec("INSERT INTO merchant (id, partner, ordinal, retention, record) VALUES ($1, $2, $3, $4, $5)",
			string(m.ID), string(partner), last+1, int(m.Retention), c.encode(m))
		c.publish(merchantSet, m)
		c.putReply(partner, reply{Merchant: m.ID, Name: m.Name, Domain: m.Domain, Secret: m.IdentityRequiresSecret, CreatedAt: m.CreatedAt}, n.Once)
		return c.audit(store.AboutMerchant(store.MerchantCreated, m, m.Domain))
	})
	if err != nil {
		return store.Merchant{}, err
	}
	return m, nil
}

// merchant returns a merchant with its tags. KindNotFound: merchant.
func merchant(ctx context.Context, tx pgx.Tx, id store.MerchantID) (m store.Merchant, err error) {
	key, ok := keyOf(id)
	if !ok {
		return m, store.NotFound("merchant")
	}
	if m, err = find[store.Merchant](ctx, tx, "merchant", "SELECT record FROM merchant WHERE id = $1", key); err != nil {
		return m, err
	}
	m.Tags, err = tagsOf(ctx, tx, key)
	return m, err
}

// tagsOf returns a merchant's tags, oldest first.
func tagsOf(ctx context.Context, tx pgx.Tx, merchant uuid.UUID) ([]store.Tag, error) {
	tags, err := listTags(ctx, tx, "WHERE t.merchant = $1", merchant)
	sortTags(tags)
	return tags, err
}

// sortTags sorts tags of one merchant, oldest first.
func sortTags(tags []store.Tag) {
	order := []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} // of tags from the same moment
	slices.SortFunc(tags, func(a, b store.Tag) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(slices.Index(order, a.Type), slices.Index(order, b.Type)))
	})
}

// Merchant implements store.Control.
func (e *engine) Merchant(ctx context.Context, id store.MerchantID) (m store.Merchant, err error) {
	err = e.read(ctx, func(tx pgx.Tx) error {
		m, err = merchant(ctx, tx, id)
		return err
	})
	return m, err
}

// UpdateMerchant implements store.Control.
func (e *engine) UpdateMerchant(ctx context.Context, id store.MerchantID, update func(store.Merchant) store.Merchant) (m store.Merchant, err error) {
	err = e.change(ctx, func(c *change) error {
		old, err := merchant(c.ctx, c.tx, id)
		if err != nil {
			return err
		}
		m = update(old)
		m.Tags = old.Tags
		if err := m.CheckUpdate(old); err != nil {
			return err
		}
		changes, err := store.MerchantChanges(old, m)
		if err != nil || len(changes) == 0 {
			return err
		}
		c.exec("UPDATE merchant SET retention = $2, record = $3 WHERE id = $1", string(id), int(m.Retention), c.encode(m))
		c.publish(merchantSet, m)
		return c.audit(changes...)
	})
	if err != nil {
		return store.Merchant{}, err
	}
	return m, nil
}

// Merchants implements store.Control.
func (e *engine) Merchants(ctx context.Context, q store.MerchantQuery) (page []store.Merchant, total int, err error) {
	key, ok := keyOf(q.Partner)
	if !ok {
		return nil, 0, ctx.Err()
	}
	err = e.read(ctx, func(tx pgx.Tx) error {
		page, total = nil, 0
		if q.Name != "" || q.Domain != "" {
			page, total, err = filterMerchants(ctx, tx, key, q)
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM merchant WHERE partner = $1", key).Scan(&total); err != nil {
			return err
		}
		page, err = list[store.Merchant](ctx, tx, "SELECT record FROM merchant WHERE partner = $1 ORDER BY ordinal OFFSET $2 LIMIT $3",
			key, q.Offset, q.Limit)
		if err != nil || len(page) == 0 {
			return err
		}
		ids := make([]string, len(page))
		for i, m := range page {
			ids[i] = string(m.ID)
		}
		tags, err := listTags(ctx, tx, "WHERE t.merchant = ANY($1)", ids)
		addTags(page, tags)
		return err
	})
	return page, total, err
}

// filterMerchants returns the page of a partner's merchants that fit the query. It compares them here: the database folds cases
// by its own rules.
func filterMerchants(ctx context.Context, tx pgx.Tx, partner uuid.UUID, q store.MerchantQuery) (page []store.Merchant, total int, err error) {
	all, err := list[store.Merchant](ctx, tx, "SELECT record FROM merchant WHERE partner = $1 ORDER BY ordinal", partner)
	if err != nil {
		return nil, 0, err
	}
	tags, err := listTags(ctx, tx, "WHERE t.partner = $1", partner)
	if err != nil {
		return nil, 0, err
	}
	addTags(all, tags)
	matches := q.Matcher()
	for _, m := range all {
		if !matches(m) {
			continue
		}
		if total++; total > q.Offset && len(page) < q.Limit {
			page = append(page, m)
		}
	}
	return page, total, nil
}

// addTags gives merchants their tags.
func addTags(merchants []store.Merchant, tags []store.Tag) {
	of := map[store.MerchantID][]store.Tag{}
	for _, t := range tags {
		of[t.Merchant] = append(of[t.Merchant], t)
	}
	for i, m := range merchants {
		merchants[i].Tags = of[m.ID]
		sortTags(merchants[i].Tags)
	}
}
