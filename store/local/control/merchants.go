package control

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// AddMerchant implements store.Control.
func (d *Data) AddMerchant(ctx context.Context, partner store.PartnerID, name, domain string) (store.Merchant, error) {
	m := store.Merchant{ID: store.NewMerchantID(), Partner: partner, Name: name, Domain: domain, CreatedAt: d.now().UTC()}
	err := d.update(ctx, func(tx *bolt.Tx) error {
		p, err := get[store.Partner](tx, bucketPartners, string(partner), "partner")
		if err != nil {
			return err
		}
		list, err := tx.Bucket(bucketPartnerMerchants).CreateBucketIfNotExists([]byte(partner))
		if err != nil {
			return err
		}
		if err := p.Limits.CheckMerchants(int(list.Sequence())); err != nil {
			return err
		}
		if err := put(tx, bucketMerchants, string(m.ID), m); err != nil {
			return err
		}
		ordinal, err := list.NextSequence()
		if err != nil {
			return err
		}
		if err := list.Put(binary.BigEndian.AppendUint64(nil, ordinal), []byte(m.ID)); err != nil {
			return err
		}
		return d.audit(ctx, tx, store.AboutMerchant(store.MerchantCreated, m, m.Domain))
	}, func() {})
	if err != nil {
		return store.Merchant{}, err
	}
	return m, nil
}

// Merchant implements store.Control.
func (d *Data) Merchant(ctx context.Context, id store.MerchantID) (m store.Merchant, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		m, err = d.merchant(tx, id)
		return err
	})
	return m, err
}

// UpdateMerchant implements store.Control.
func (d *Data) UpdateMerchant(ctx context.Context, id store.MerchantID, change func(store.Merchant) store.Merchant) (m store.Merchant, err error) {
	err = d.update(ctx, func(tx *bolt.Tx) error {
		old, err := d.merchant(tx, id)
		if err != nil {
			return err
		}
		m = change(old)
		m.Tags = old.Tags
		if m.ID != old.ID || m.Partner != old.Partner || !m.CreatedAt.Equal(old.CreatedAt) {
			return errors.New("a merchant's id, partner and creation time must not change")
		}
		if err := put(tx, bucketMerchants, string(id), m); err != nil {
			return err
		}
		changes, err := store.MerchantChanges(old, m)
		if err != nil {
			return err
		}
		return d.audit(ctx, tx, changes...)
	}, func() { d.dir.SetMerchant(m) })
	if err != nil {
		return store.Merchant{}, err
	}
	return m, nil
}

// Merchants implements store.Control. A partner's n-th merchant has the ordinal n, as merchants are never deleted. So it
// seeks directly to the offset, and every page costs the same.
func (d *Data) Merchants(ctx context.Context, partner store.PartnerID, offset, limit int) (page []store.Merchant, total int, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		list := tx.Bucket(bucketPartnerMerchants).Bucket([]byte(partner))
		if list == nil {
			return nil
		}
		total = int(list.Sequence())
		cursor := list.Cursor()
		for k, id := cursor.Seek(binary.BigEndian.AppendUint64(nil, uint64(offset)+1)); k != nil && len(page) < limit; k, id = cursor.Next() {
			m, err := d.merchant(tx, store.MerchantID(id))
			if err != nil {
				return err
			}
			page = append(page, m)
		}
		return nil
	})
	return page, total, err
}

// merchant reads a merchant with its tags, oldest first.
func (d *Data) merchant(tx *bolt.Tx, id store.MerchantID) (store.Merchant, error) {
	m, err := get[store.Merchant](tx, bucketMerchants, string(id), "merchant")
	if err != nil {
		return m, err
	}
	for _, t := range []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} {
		tagID := tx.Bucket(bucketMerchantTags).Get(merchantTagKey(id, t))
		if tagID == nil {
			continue
		}
		tag, err := d.tag(tx, store.TagID(tagID))
		if err != nil {
			return m, err
		}
		m.Tags = append(m.Tags, tag)
	}
	slices.SortStableFunc(m.Tags, func(a, b store.Tag) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return m, nil
}

func merchantTagKey(id store.MerchantID, t store.TagType) []byte {
	return []byte(string(id) + "/" + string(t))
}
