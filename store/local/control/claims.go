package control

import (
	"context"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// Claim implements store.Control.
func (d *Data) Claim(ctx context.Context, domain string) (c store.Claim, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		holder, err := d.holder(tx, domain)
		if err != nil {
			return err
		}
		c = holder.Claim(d.now())
		return nil
	})
	return c, err
}

// Claims implements store.Control.
func (d *Data) Claims(ctx context.Context, partner store.PartnerID) (claims []store.Claim, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		now := d.now()
		return tx.Bucket(bucketDomains).ForEach(func(_, id []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			tag, err := d.tag(tx, store.TagID(id))
			if err == nil && (partner == "" || tag.Partner == partner) {
				claims = append(claims, tag.Claim(now))
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return claims, nil
}

// ReleaseDomain implements store.Control.
func (d *Data) ReleaseDomain(ctx context.Context, domain string) (c store.Claim, err error) {
	var former store.Tag
	err = d.update(ctx, func(tx *bolt.Tx) error {
		holder, err := d.holder(tx, domain)
		if err != nil {
			return err
		}
		c = holder.Claim(d.now())
		former, err = d.endClaim(ctx, tx, holder)
		return err
	}, func() { d.publish(former) })
	if err != nil {
		return store.Claim{}, err
	}
	return c, nil
}

// claimDomain gives a root domain to a tag. When another tag's claim is free, that tag loses it, and former is that tag.
func (d *Data) claimDomain(ctx context.Context, tx *bolt.Tx, domain string, id store.TagID) (former *store.Tag, err error) {
	err = tx.Bucket(bucketTrackingDomains).ForEach(func(host, _ []byte) error {
		if store.RootDomain(string(host)) == domain {
			return store.Invalid("domain", "is a partner's tracking domain")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if former, err = d.endFreeClaim(ctx, tx, domain, "is already registered"); err != nil {
		return nil, err
	}
	return former, tx.Bucket(bucketDomains).Put([]byte(domain), []byte(id))
}

// endFreeClaim ends the claim to a root domain if it is free, and returns the tag that had it; nil when no tag had.
// KindConflict, with the message taken: the claim is not free.
func (d *Data) endFreeClaim(ctx context.Context, tx *bolt.Tx, domain, taken string) (former *store.Tag, err error) {
	holder, err := d.holder(tx, domain)
	if store.KindOf(err) == store.KindNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if now := d.now(); !holder.Claim(now).Free(now) {
		return nil, store.Conflict("domain", taken)
	}
	holder, err = d.endClaim(ctx, tx, holder)
	return &holder, err
}

// endClaim takes the claim away from the tag that has it, and returns that tag as it is then.
func (d *Data) endClaim(ctx context.Context, tx *bolt.Tx, holder store.Tag) (former store.Tag, err error) {
	former = holder.LoseClaim()
	if err := tx.Bucket(bucketDomains).Delete([]byte(holder.Domain)); err != nil {
		return former, err
	}
	return former, d.putTag(ctx, tx, holder, former)
}

// holder returns the tag that has the claim to a root domain. KindNotFound: claim.
func (d *Data) holder(tx *bolt.Tx, domain string) (store.Tag, error) {
	id := tx.Bucket(bucketDomains).Get([]byte(domain))
	if id == nil {
		return store.Tag{}, store.NotFound("claim")
	}
	return d.tag(tx, store.TagID(id))
}

// putTag replaces a tag, and notes what has changed.
func (d *Data) putTag(ctx context.Context, tx *bolt.Tx, old, tag store.Tag) error {
	if err := put(tx, bucketTags, string(tag.ID), tag); err != nil {
		return err
	}
	changes, err := store.TagChanges(old, tag)
	if err != nil {
		return err
	}
	return d.audit(ctx, tx, changes...)
}
