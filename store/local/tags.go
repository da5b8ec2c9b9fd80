package local

import (
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// GenerateTag implements store.Control.
func (c *Control) GenerateTag(ctx context.Context, id store.MerchantID, t store.TagType, domain string) (tag store.Tag, created bool, err error) {
	// Most calls are for a tag that exists: they need no write transaction, which syncs.
	m, err := c.Merchant(ctx, id)
	if err != nil {
		return store.Tag{}, false, err
	}
	if tag, ok := m.Tag(t); ok {
		return tag, false, nil
	}
	err = c.update(ctx, func(tx *bolt.Tx) error {
		if m, err = c.merchant(tx, id); err != nil {
			return err
		}
		var exists bool
		if tag, exists = m.Tag(t); exists {
			return nil
		}
		created = true
		tag, err = c.newTag(tx, m, t, domain)
		return err
	}, func() {
		if created {
			c.dir.SetTag(tag)
		}
	})
	if err != nil {
		return store.Tag{}, false, err
	}
	return tag, created, nil
}

// newTag makes and stores the merchant's first tag of a type, and takes the domain and the label
// for it.
func (c *Control) newTag(tx *bolt.Tx, m store.Merchant, t store.TagType, domain string) (store.Tag, error) {
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
		if err := domainIsFree(tx, domain); err != nil {
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
	tag := store.NewTag(m, t, label, domain, c.now().UTC()).WithHost(trackingDomain)
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

// domainIsFree checks that no server-side tag has the root domain and that no partner's tracking
// domain is on it.
func domainIsFree(tx *bolt.Tx, domain string) error {
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
func (c *Control) Tag(ctx context.Context, id store.TagID) (tag store.Tag, err error) {
	err = c.view(ctx, func(tx *bolt.Tx) error {
		tag, err = c.tag(tx, id)
		return err
	})
	return tag, err
}

func (c *Control) tag(tx *bolt.Tx, id store.TagID) (store.Tag, error) {
	tag, err := get[store.Tag](tx, bucketTags, string(id), "tag")
	if err != nil {
		return tag, err
	}
	return c.withHost(tx, tag)
}

// UpdateTag implements store.Control.
func (c *Control) UpdateTag(ctx context.Context, id store.TagID, change func(store.Tag) store.Tag) (tag store.Tag, err error) {
	err = c.update(ctx, func(tx *bolt.Tx) error {
		if tag, err = c.tag(tx, id); err != nil {
			return err
		}
		old := tag
		if tag = change(tag); tag.ID != old.ID || tag.Merchant != old.Merchant || tag.Partner != old.Partner || tag.Type != old.Type || tag.Label != old.Label || tag.Domain != old.Domain {
			return fmt.Errorf("a tag's identity must not change")
		}
		return put(tx, bucketTags, string(id), tag)
	}, func() { c.dir.SetTag(tag) })
	if err != nil {
		return store.Tag{}, err
	}
	return tag, nil
}
