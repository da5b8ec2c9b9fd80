package control

import (
	"context"
	"errors"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// GenerateTag implements store.Control.
func (d *Data) GenerateTag(ctx context.Context, id store.MerchantID, t store.TagType, domain string) (tag store.Tag, created bool, err error) {
	// Most calls ask for a tag that exists. A read-only transaction finds it without a sync.
	m, err := d.Merchant(ctx, id)
	if err != nil {
		return store.Tag{}, false, err
	}
	if tag, ok := m.Tag(t); ok {
		return tag, false, nil
	}
	var former *store.Tag
	err = d.update(ctx, func(tx *bolt.Tx) error {
		if m, err = d.merchant(tx, id); err != nil {
			return err
		}
		var exists bool
		if tag, exists = m.Tag(t); exists {
			return nil
		}
		created = true
		if tag, former, err = d.newTag(ctx, tx, m, t, domain); err != nil {
			return err
		}
		return d.audit(ctx, tx, store.AboutTag(store.TagGenerated, tag, tag.Host))
	}, func() {
		if former != nil {
			d.publish(*former)
		}
		if created {
			d.publish(tag)
		}
	})
	if err != nil {
		return store.Tag{}, false, err
	}
	return tag, created, nil
}

// newTag creates the merchant's tag of a type, and reserves its domain and its label. former is the tag that loses the
// domain to it, if there is one.
func (d *Data) newTag(ctx context.Context, tx *bolt.Tx, m store.Merchant, t store.TagType, domain string) (tag store.Tag, former *store.Tag, err error) {
	p, err := get[store.Partner](tx, bucketPartners, string(m.Partner), "partner")
	if err != nil {
		return tag, nil, err
	}
	if t == store.Preverified && !p.PreverifiedEnabled() {
		return tag, nil, store.Invalid("type", "preverified is not enabled for this partner")
	}
	if t != store.ServerSide {
		domain = ""
	}
	var label string
	if t.NeedsRecord() {
		if label, err = d.drawLabel(tx, p); err != nil {
			return tag, nil, err
		}
	}
	tag = store.NewTag(m, t, label, domain, d.now().UTC()).WithHost(p.TrackingDomain)
	if t == store.ServerSide {
		if former, err = d.claimDomain(ctx, tx, domain, tag.ID); err != nil {
			return tag, nil, err
		}
		if err := p.Limits.CheckUnverifiedClaims(d.countsOf(p.ID).unverifiedClaims(tag.ClaimedAt)); err != nil {
			return tag, nil, err
		}
	}
	if label != "" {
		if err := tx.Bucket(bucketLabels).Put([]byte(label), []byte(tag.ID)); err != nil {
			return tag, nil, err
		}
	}
	if err := tx.Bucket(bucketMerchantTags).Put(merchantTagKey(m.ID, t), []byte(tag.ID)); err != nil {
		return tag, nil, err
	}
	return tag, former, put(tx, bucketTags, string(tag.ID), tag)
}

// drawLabel returns a label that no tag has or had. It does not reserve it.
func (d *Data) drawLabel(tx *bolt.Tx, p store.Partner) (string, error) {
	if err := p.Limits.CheckLabels(d.countsOf(p.ID).labels, d.dir.Labels()); err != nil {
		return "", err
	}
	return store.DrawLabel(func(l string) bool { return tx.Bucket(bucketLabels).Get([]byte(l)) != nil })
}

// Tag implements store.Control.
func (d *Data) Tag(ctx context.Context, id store.TagID) (tag store.Tag, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		tag, err = d.tag(tx, id)
		return err
	})
	return tag, err
}

// UpdateTag implements store.Control.
func (d *Data) UpdateTag(ctx context.Context, id store.TagID, change func(store.Tag) store.Tag) (tag store.Tag, err error) {
	var former *store.Tag
	err = d.update(ctx, func(tx *bolt.Tx) error {
		old, err := d.tag(tx, id)
		if err != nil {
			return err
		}
		tag = change(old)
		if !sameFixedFields(tag, old) {
			return errors.New("a tag's id, owner, type, label, domain and claim must not change")
		}
		if tag.ClaimLost && tag.Verified {
			if former, err = d.claimDomain(ctx, tx, tag.Domain, id); err != nil {
				return err
			}
			tag = tag.TakeClaim(d.now().UTC())
		}
		return d.putTag(ctx, tx, old, tag)
	}, func() {
		if former != nil {
			d.publish(*former)
		}
		d.publish(tag)
	})
	if err != nil {
		return store.Tag{}, err
	}
	return tag, nil
}

// sameFixedFields compares the fields that UpdateTag must not change.
func sameFixedFields(a, b store.Tag) bool {
	return a.ID == b.ID && a.Merchant == b.Merchant && a.Partner == b.Partner && a.Type == b.Type &&
		a.Label == b.Label && a.Domain == b.Domain && a.ClaimLost == b.ClaimLost && a.ClaimedAt.Equal(b.ClaimedAt)
}
