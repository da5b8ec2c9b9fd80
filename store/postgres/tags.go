package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// listTags returns the tags that a condition on the table t selects, with the fields that are not stored with them.
func listTags(ctx context.Context, tx pgx.Tx, condition string, args ...any) (tags []store.Tag, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		var text []byte
		var tracking *string
		var claimed bool
		if err := rows.Scan(&text, &tracking, &claimed); err != nil {
			return err
		}
		t, err := decode[store.Tag](text)
		if err != nil {
			return err
		}
		t.ClaimLost = t.Type == store.ServerSide && !claimed
		if tracking == nil {
			tracking = new("")
		}
		tags = append(tags, t.WithHost(*tracking))
		return nil
	}, `SELECT t.record, p.tracking, c.tag IS NOT NULL
		FROM tag t JOIN partner p ON p.id = t.partner LEFT JOIN claim c ON c.tag = t.id `+condition, args...)
	return tags, err
}

// onlyTag returns the tag that a condition selects. KindNotFound: none, and what names it.
func onlyTag(ctx context.Context, tx pgx.Tx, what, condition, arg string) (store.Tag, error) {
	if !isStorable(arg) {
		return store.Tag{}, store.NotFound(what)
	}
	tags, err := listTags(ctx, tx, condition, arg)
	if err != nil {
		return store.Tag{}, err
	}
	if len(tags) == 0 {
		return store.Tag{}, store.NotFound(what)
	}
	return tags[0], nil
}

// tag returns a tag. KindNotFound: tag.
func tag(ctx context.Context, tx pgx.Tx, id store.TagID) (store.Tag, error) {
	return onlyTag(ctx, tx, "tag", "WHERE t.id = $1", string(id))
}

// GenerateTag implements store.Control.
func (e *engine) GenerateTag(ctx context.Context, id store.MerchantID, t store.TagType, domain string) (tag store.Tag, created bool, err error) {
	// Most calls ask for a tag that exists, and need not wait for changes.
	m, err := e.Merchant(ctx, id)
	if err != nil {
		return store.Tag{}, false, err
	}
	if tag, ok := m.Tag(t); ok {
		return tag, false, nil
	}
	err = e.change(ctx, func(c *change) error {
		m, err := merchant(c.ctx, c.tx, id)
		if err != nil {
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
		return c.audit(store.AboutTag(store.TagGenerated, tag, tag.Host))
	})
	if err != nil {
		return store.Tag{}, false, err
	}
	return tag, created, nil
}

// newTag creates the merchant's tag of a type, with its domain and its label.
func (c *change) newTag(m store.Merchant, t store.TagType, domain string) (tag store.Tag, err error) {
	p, err := c.partner(m.Partner)
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
		if label, err = c.drawLabel(p); err != nil {
			return tag, err
		}
	}
	tag = store.NewTag(m, t, label, domain, c.now).WithHost(p.TrackingDomain)
	if t != store.ServerSide {
		c.putTag(tag)
		return tag, nil
	}
	if err := c.freeDomain(domain); err != nil {
		return tag, err
	}
	var unverified int
	if err := c.tx.QueryRow(c.ctx, "SELECT count(*) FROM tag WHERE partner = $1 AND unverified > $2", string(p.ID), c.now).Scan(&unverified); err != nil {
		return tag, err
	}
	if err := p.Limits.CheckUnverifiedClaims(unverified); err != nil {
		return tag, err
	}
	c.putTag(tag)
	c.claim(domain, tag.ID)
	return tag, nil
}

// drawLabel returns a label that no tag has.
func (c *change) drawLabel(p store.Partner) (string, error) {
	var own, used int
	if err := c.tx.QueryRow(c.ctx, "SELECT count(label) FILTER (WHERE partner = $1), count(label) FROM tag", string(p.ID)).Scan(&own, &used); err != nil {
		return "", err
	}
	if err := p.Limits.CheckLabels(own, used); err != nil {
		return "", err
	}
	var failed error
	label, err := store.DrawLabel(func(l string) (taken bool) {
		if failed == nil {
			failed = c.tx.QueryRow(c.ctx, "SELECT EXISTS (SELECT FROM tag WHERE label = $1)", l).Scan(&taken)
		}
		return taken
	})
	return label, errors.Join(failed, err)
}

// putTag adds or replaces a tag. It is complete: Host and ClaimLost are set.
func (c *change) putTag(t store.Tag) {
	var label *string
	if t.Label != "" {
		label = &t.Label
	}
	var unverified *time.Time
	if t.Type == store.ServerSide && !t.Verified && !t.ClaimLost {
		unverified = new(t.ClaimedAt.Add(store.UnverifiedClaimAge))
	}
	c.exec(`INSERT INTO tag (id, merchant, partner, type, created, label, unverified, record) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (id) DO UPDATE SET unverified = excluded.unverified, record = excluded.record`,
		string(t.ID), string(t.Merchant), string(t.Partner), string(t.Type), t.CreatedAt, label, unverified, c.encode(t))
	c.publish(tagSet, tagRecord{t, t.Host, t.ClaimLost})
}

// Tag implements store.Control.
func (e *engine) Tag(ctx context.Context, id store.TagID) (t store.Tag, err error) {
	err = e.read(ctx, func(tx pgx.Tx) error {
		t, err = tag(ctx, tx, id)
		return err
	})
	return t, err
}

// UpdateTag implements store.Control.
func (e *engine) UpdateTag(ctx context.Context, id store.TagID, update func(store.Tag) store.Tag) (t store.Tag, err error) {
	err = e.change(ctx, func(c *change) error {
		old, err := tag(c.ctx, c.tx, id)
		if err != nil {
			return err
		}
		t = update(old)
		if err := t.CheckUpdate(old); err != nil {
			return err
		}
		if t.ClaimLost && t.Verified {
			if err = c.freeDomain(t.Domain); err != nil {
				return err
			}
			c.claim(t.Domain, id)
			t = t.TakeClaim(c.now)
		}
		return c.replaceTag(old, t)
	})
	if err != nil {
		return store.Tag{}, err
	}
	return t, nil
}
