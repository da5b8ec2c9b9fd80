package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// holder returns the tag that has the claim to a root domain. KindNotFound: claim.
func holder(ctx context.Context, tx pgx.Tx, domain string) (store.Tag, error) {
	return onlyTag(ctx, tx, "claim", "WHERE c.domain = $1", domain)
}

// timeOf returns the time that an engine decides by: the database's, or that of a test.
func (e *engine) timeOf(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	if e.now != nil {
		return e.now().UTC(), nil
	}
	err = tx.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now.UTC(), err
}

// Claim implements store.Control.
func (e *engine) Claim(ctx context.Context, domain string) (claim store.Claim, err error) {
	err = e.read(ctx, func(tx pgx.Tx) error {
		t, err := holder(ctx, tx, domain)
		if err != nil {
			return err
		}
		now, err := e.timeOf(ctx, tx)
		claim = t.Claim(now)
		return err
	})
	return claim, err
}

// Claims implements store.Control.
func (e *engine) Claims(ctx context.Context, partner store.PartnerID) (claims []store.Claim, err error) {
	condition, args := "WHERE c.domain IS NOT NULL", []any{}
	if partner != "" {
		key, ok := keyOf(partner)
		if !ok {
			return nil, ctx.Err()
		}
		condition, args = condition+" AND t.partner = $1", append(args, key)
	}
	err = e.read(ctx, func(tx pgx.Tx) error {
		tags, err := listTags(ctx, tx, condition+" ORDER BY c.domain", args...)
		if err != nil {
			return err
		}
		now, err := e.timeOf(ctx, tx)
		claims = nil
		for _, t := range tags {
			claims = append(claims, t.Claim(now))
		}
		return err
	})
	return claims, err
}

// ReleaseDomain implements store.Control.
func (e *engine) ReleaseDomain(ctx context.Context, domain string) (claim store.Claim, err error) {
	err = e.change(ctx, func(c *change) error {
		t, err := holder(c.ctx, c.tx, domain)
		if err != nil {
			return err
		}
		claim = t.Claim(c.now)
		return c.endClaim(t)
	})
	if err != nil {
		return store.Claim{}, err
	}
	return claim, nil
}

// freeDomain makes a root domain free for a tag. When another tag's claim to it is free, that tag loses it.
func (c *change) freeDomain(domain string) error {
	var tracking bool
	if err := c.tx.QueryRow(c.ctx, "SELECT EXISTS (SELECT FROM partner WHERE tracking_root = $1)", domain).Scan(&tracking); err != nil {
		return err
	}
	if tracking {
		return store.Invalid("domain", "is a partner's tracking domain")
	}
	return c.endFreeClaim(domain, "is already registered")
}

// claim gives a domain that is free to a tag.
func (c *change) claim(domain string, id store.TagID) {
	c.exec("INSERT INTO claim (domain, tag) VALUES ($1, $2)", domain, string(id))
}

// endFreeClaim ends the claim to a root domain if it is free. KindConflict, with the message taken: it is not.
func (c *change) endFreeClaim(domain, taken string) error {
	t, err := holder(c.ctx, c.tx, domain)
	if store.KindOf(err) == store.KindNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !t.Claim(c.now).Free(c.now) {
		return store.Conflict("domain", taken)
	}
	return c.endClaim(t)
}

// endClaim takes the claim away from the tag that has it.
func (c *change) endClaim(t store.Tag) error {
	c.exec("DELETE FROM claim WHERE domain = $1", t.Domain)
	return c.replaceTag(t, t.LoseClaim())
}

// replaceTag replaces a tag, and notes what has changed.
func (c *change) replaceTag(old, t store.Tag) error {
	changes, err := store.TagChanges(old, t)
	if err != nil {
		return err
	}
	c.putTag(t)
	return c.audit(changes...)
}
