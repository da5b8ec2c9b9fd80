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
	err = d.update(ctx, func(tx *bolt.Tx) error {
		if m, err = d.merchant(tx, id); err != nil {
			return err
		}
		var exists bool
		if tag, exists = m.Tag(t); exists {
			return nil
		}
		created = true
		if tag, err = d.newTag(tx, m, t, domain); err != nil {
			return err
		}
		return d.audit(ctx, tx, store.AboutTag(store.TagGenerated, tag, tag.Host))
	}, func() {
		if created {
			d.dir.SetTag(tag)
		}
	})
	if err != nil {
		return store.Tag{}, false, err
	}
	return tag, created, nil
}

// newTag creates the merchant's tag of a type, and reserves its domain and its label.
func (d *Data) newTag(tx *bolt.Tx, m store.Merchant, t store.TagType, domain string) (store.Tag, error) {
	var label, trackingDomain string
	var err error
	if t != store.ServerSide {
		domain = ""
	}
	if t.NeedsRecord() {
		if label, err = store.DrawLabel(func(l string) bool { return tx.Bucket(bucketLabels).Get([]byte(l)) != nil }); err != nil {
			return store.Tag{}, err
		}
	}
	switch t {
	case store.ServerSide:
		if err := checkDomainIsFree(tx, domain); err != nil {
			return store.Tag{}, err
		}
	case store.Preverified:
		p, err := get[store.Partner](tx, bucketPartners, string(m.Partner), "partner")
		if err != nil {
			return store.Tag{}, err
		}
		if !p.PreverifiedEnabled() {
			return store.Tag{}, store.Invalid("type", "preverified is not enabled for this partner")
		}
		trackingDomain = p.TrackingDomain
	}
	tag := store.NewTag(m, t, label, domain, d.now().UTC()).WithHost(trackingDomain)
	if label != "" {
		if err := tx.Bucket(bucketLabels).Put([]byte(label), []byte(tag.ID)); err != nil {
			return tag, err
		}
	}
	if domain != "" {
		if err := tx.Bucket(bucketDomains).Put([]byte(domain), []byte(tag.ID)); err != nil {
			return tag, err
		}
	}
	if err := tx.Bucket(bucketMerchantTags).Put(merchantTagKey(m.ID, t), []byte(tag.ID)); err != nil {
		return tag, err
	}
	return tag, put(tx, bucketTags, string(tag.ID), tag)
}

// checkDomainIsFree returns an error when a server-side tag has this root domain already, or when a partner's tracking
// domain is on it.
func checkDomainIsFree(tx *bolt.Tx, domain string) error {
	if tx.Bucket(bucketDomains).Get([]byte(domain)) != nil {
		return store.Conflict("domain", "is already registered")
	}
	return tx.Bucket(bucketTrackingDomains).ForEach(func(host, _ []byte) error {
		if store.RootDomain(string(host)) == domain {
			return store.Invalid("domain", "is a partner's tracking domain")
		}
		return nil
	})
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
	err = d.update(ctx, func(tx *bolt.Tx) error {
		if tag, err = d.tag(tx, id); err != nil {
			return err
		}
		old := tag
		tag = change(tag)
		if !sameFixedFields(tag, old) {
			return errors.New("a tag's id, owner, type, label and domain must not change")
		}
		if err := put(tx, bucketTags, string(id), tag); err != nil {
			return err
		}
		changes, err := store.TagChanges(old, tag)
		if err != nil {
			return err
		}
		return d.audit(ctx, tx, changes...)
	}, func() { d.dir.SetTag(tag) })
	if err != nil {
		return store.Tag{}, err
	}
	return tag, nil
}

// sameFixedFields compares the fields that UpdateTag must not change.
func sameFixedFields(a, b store.Tag) bool {
	return a.ID == b.ID && a.Merchant == b.Merchant && a.Partner == b.Partner && a.Type == b.Type &&
		a.Label == b.Label && a.Domain == b.Domain
}
