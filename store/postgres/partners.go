package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// AddPartner implements store.Control.
func (e *engine) AddPartner(ctx context.Context, name string) (store.Partner, error) {
	name, err := store.CheckName("name", name)
	if err != nil {
		return store.Partner{}, err
	}
	var p store.Partner
	err = e.change(ctx, func(c *change) error {
		p = store.Partner{ID: store.NewPartnerID(), Name: name, CreatedAt: c.now}
		c.putPartner(p)
		return c.audit(store.AboutPartner(store.PartnerAdded, p, ""))
	})
	if err != nil {
		return store.Partner{}, err
	}
	return p, nil
}

// putPartner adds or replaces a partner.
func (c *change) putPartner(p store.Partner) {
	var tracking, root *string
	if p.TrackingDomain != "" {
		tracking, root = &p.TrackingDomain, new(store.RootDomain(p.TrackingDomain))
	}
	c.exec(`INSERT INTO partner (id, created, tracking, tracking_root, record) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (id) DO UPDATE SET tracking = excluded.tracking, tracking_root = excluded.tracking_root, record = excluded.record`,
		string(p.ID), p.CreatedAt, tracking, root, c.encode(p))
	c.publish(partnerSet, p)
}

// partner returns a partner. KindNotFound: partner.
func partner(ctx context.Context, tx pgx.Tx, id store.PartnerID) (store.Partner, error) {
	key, ok := keyOf(id)
	if !ok {
		return store.Partner{}, store.NotFound("partner")
	}
	return find[store.Partner](ctx, tx, "partner", "SELECT record FROM partner WHERE id = $1", key)
}

func (c *change) partner(id store.PartnerID) (store.Partner, error) { return partner(c.ctx, c.tx, id) }

// Partners implements store.Control.
func (e *engine) Partners(ctx context.Context) (partners []store.Partner, err error) {
	err = e.read(ctx, func(tx pgx.Tx) (err error) {
		partners, err = list[store.Partner](ctx, tx, "SELECT record FROM partner ORDER BY created, id")
		return err
	})
	return partners, err
}

// UpdatePartner implements store.Control.
func (e *engine) UpdatePartner(ctx context.Context, id store.PartnerID, update func(store.Partner) store.Partner) (p store.Partner, err error) {
	err = e.change(ctx, func(c *change) error {
		old, err := c.partner(id)
		if err != nil {
			return err
		}
		p = update(old)
		if err := p.CheckUpdate(old); err != nil {
			return err
		}
		return c.replacePartner(old, p)
	})
	if err != nil {
		return store.Partner{}, err
	}
	return p, nil
}

// EnablePreverified implements store.Control.
func (e *engine) EnablePreverified(ctx context.Context, id store.PartnerID, domain string) (p store.Partner, err error) {
	domain, err = store.CheckHostName("domain", domain)
	if err != nil {
		return p, err
	}
	err = e.change(ctx, func(c *change) error {
		old, err := c.partner(id)
		if err != nil {
			return err
		}
		var taken bool
		if err := c.tx.QueryRow(c.ctx, "SELECT EXISTS (SELECT FROM partner WHERE tracking = $1 AND id <> $2)",
			domain, string(id)).Scan(&taken); err != nil {
			return err
		}
		if taken {
			return store.Conflict("domain", "is another partner's tracking domain")
		}
		if err := c.endFreeClaim(store.RootDomain(domain), "is on a root domain that a server-side tag has registered"); err != nil {
			return err
		}
		p = old
		p.TrackingDomain = domain
		return c.replacePartner(old, p)
	})
	if err != nil {
		return store.Partner{}, err
	}
	return p, nil
}

// replacePartner replaces a partner, and notes what has changed.
func (c *change) replacePartner(old, p store.Partner) error {
	changes, err := store.PartnerChanges(old, p)
	if err != nil || len(changes) == 0 {
		return err
	}
	c.putPartner(p)
	return c.audit(changes...)
}
