package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// AddPartner implements store.Control.
func (d *Data) AddPartner(ctx context.Context, name string) (store.Partner, error) {
	name, err := store.CheckName("name", name)
	if err != nil {
		return store.Partner{}, err
	}
	p := store.Partner{ID: store.NewPartnerID(), Name: name, CreatedAt: d.now().UTC()}
	err = d.update(ctx, func(tx *bolt.Tx) error {
		if err := put(tx, bucketPartners, string(p.ID), p); err != nil {
			return err
		}
		return d.audit(ctx, tx, store.AboutPartner(store.PartnerAdded, p, ""))
	}, func() { d.dir.SetPartner(p) })
	if err != nil {
		return store.Partner{}, err
	}
	return p, nil
}

// Partners implements store.Control.
func (d *Data) Partners(ctx context.Context) (partners []store.Partner, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		partners, err = all[store.Partner](tx, bucketPartners)
		return err
	})
	slices.SortFunc(partners, func(a, b store.Partner) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return partners, err
}

// UpdatePartner implements store.Control.
func (d *Data) UpdatePartner(ctx context.Context, id store.PartnerID, change func(store.Partner) store.Partner) (p store.Partner, err error) {
	err = d.update(ctx, func(tx *bolt.Tx) error {
		old, err := get[store.Partner](tx, bucketPartners, string(id), "partner")
		if err != nil {
			return err
		}
		p = change(old)
		if p.ID != old.ID || !p.CreatedAt.Equal(old.CreatedAt) || p.TrackingDomain != old.TrackingDomain {
			return errors.New("a partner's id, creation time and tracking domain must not change")
		}
		return d.putPartner(ctx, tx, old, p)
	}, func() { d.dir.SetPartner(p) })
	if err != nil {
		return store.Partner{}, err
	}
	return p, nil
}

// EnablePreverified implements store.Control.
func (d *Data) EnablePreverified(ctx context.Context, id store.PartnerID, domain string) (p store.Partner, err error) {
	domain, err = store.CheckHostName("domain", domain)
	if err != nil {
		return p, err
	}
	var former *store.Tag
	err = d.update(ctx, func(tx *bolt.Tx) error {
		if p, err = get[store.Partner](tx, bucketPartners, string(id), "partner"); err != nil {
			return err
		}
		tracking := tx.Bucket(bucketTrackingDomains)
		if owner := tracking.Get([]byte(domain)); owner != nil && string(owner) != string(id) {
			return store.Conflict("domain", "is another partner's tracking domain")
		}
		former, err = d.endFreeClaim(ctx, tx, store.RootDomain(domain), "is on a root domain that a server-side tag has registered")
		if err != nil {
			return err
		}
		if p.TrackingDomain != "" {
			if err := tracking.Delete([]byte(p.TrackingDomain)); err != nil {
				return err
			}
		}
		old := p
		p.TrackingDomain = domain
		if err := tracking.Put([]byte(domain), []byte(id)); err != nil {
			return err
		}
		return d.putPartner(ctx, tx, old, p)
	}, func() {
		if former != nil {
			d.publish(*former)
		}
		d.dir.SetPartner(p)
	})
	if err != nil {
		return store.Partner{}, err
	}
	return p, nil
}

// putPartner replaces a partner, and notes what has changed.
func (d *Data) putPartner(ctx context.Context, tx *bolt.Tx, old, p store.Partner) error {
	if err := put(tx, bucketPartners, string(p.ID), p); err != nil {
		return err
	}
	changes, err := store.PartnerChanges(old, p)
	if err != nil {
		return err
	}
	return d.audit(ctx, tx, changes...)
}

// IssueKey implements store.Control.
func (d *Data) IssueKey(ctx context.Context, id store.PartnerID, expiresIn time.Duration) (store.Key, store.APIKey, error) {
	key, text := store.NewKey(id, d.now().UTC(), expiresIn)
	err := d.update(ctx, func(tx *bolt.Tx) error {
		if _, err := get[store.Partner](tx, bucketPartners, string(id), "partner"); err != nil {
			return err
		}
		if err := put(tx, bucketKeys, string(key.ID), key); err != nil {
			return err
		}
		return d.audit(ctx, tx, store.AboutKey(store.KeyIssued, key))
	}, func() { d.dir.SetKey(key) })
	if err != nil {
		return store.Key{}, "", err
	}
	return key, text, nil
}

// Keys implements store.Control.
func (d *Data) Keys(ctx context.Context, id store.PartnerID) (keys []store.Key, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		if _, err := get[store.Partner](tx, bucketPartners, string(id), "partner"); err != nil {
			return err
		}
		keys, err = all[store.Key](tx, bucketKeys)
		return err
	})
	if err != nil {
		return nil, err
	}
	keys = slices.DeleteFunc(keys, func(k store.Key) bool { return k.Partner != id })
	slices.SortFunc(keys, func(a, b store.Key) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return keys, nil
}

// RevokeKey implements store.Control.
func (d *Data) RevokeKey(ctx context.Context, id store.KeyID) (k store.Key, err error) {
	err = d.update(ctx, func(tx *bolt.Tx) error {
		if k, err = get[store.Key](tx, bucketKeys, string(id), "key"); err != nil {
			return err
		}
		if k.RevokedAt != nil {
			return nil
		}
		now := d.now().UTC()
		k.RevokedAt = &now
		if err := put(tx, bucketKeys, string(id), k); err != nil {
			return err
		}
		return d.audit(ctx, tx, store.AboutKey(store.KeyRevoked, k))
	}, func() { d.dir.SetKey(k) })
	if err != nil {
		return store.Key{}, err
	}
	return k, nil
}
