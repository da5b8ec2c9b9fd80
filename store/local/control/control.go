// Package control stores the control data of the embedded engine in one bbolt file: partners, keys, merchants, tags, and
// who has which domain. It implements store.Control. Each change is one synced transaction. That transaction also checks
// what must be unique: a domain, a label, one tag of a type for each merchant.
//
//	inspect.go    what a data directory contains, before anything is opened
//	tags.go       generate, read and update tags; check that a domain is free
//	merchants.go  merchants with their tags
//	partners.go   partners, tracking domains and API keys
//	audit.go      who changed what
//	control.go    Data: open, load the directory, transactions
//
// # What is in control.db
//
// The file is of format "1". Its buckets, with key → value (Partner, Key, Merchant, Tag and AuditEntry stand for the
// JSON of these types; ids, hosts and labels are plain text):
//
//	meta               "format" → version
//	partners           partner id → Partner
//	keys               key id → Key
//	merchants          merchant id → Merchant
//	partner_merchants  partner id → bucket: ordinal (8 bytes, big endian, from 1) → merchant id
//	tags               tag id → Tag
//	merchant_tags      merchant id, "/", type → tag id
//	domains            root domain of a server-side tag → tag id
//	labels             mtag-xxxx → tag id
//	tracking_domains   host → partner id
//	audit              AuditID, time in nanoseconds since 1970 (8 bytes each, big endian) → AuditEntry
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
)

// Data implements store.Control.
type Data struct {
	db  *bolt.DB
	dir *store.Directory
	now func() time.Time

	maxAudit uint64 // how many audit entries are kept

	mu sync.Mutex // held from a transaction's start until dir has its change, so that dir changes in commit order
}

var (
	bucketPartners         = []byte("partners")
	bucketKeys             = []byte("keys")
	bucketMerchants        = []byte("merchants")
	bucketPartnerMerchants = []byte("partner_merchants")
	bucketTags             = []byte("tags")
	bucketMerchantTags     = []byte("merchant_tags")
	bucketDomains          = []byte("domains")
	bucketLabels           = []byte("labels")
	bucketTrackingDomains  = []byte("tracking_domains")
	bucketAudit            = []byte("audit")

	buckets = [][]byte{bucketPartners, bucketKeys, bucketMerchants, bucketPartnerMerchants,
		bucketTags, bucketMerchantTags, bucketDomains, bucketLabels, bucketTrackingDomains, bucketAudit}
)

// fileName is the name of the file in the data directory.
const fileName = "control.db"

// format is the version of the file's layout.
const format = "1"

// Open opens or creates control.db in dir, a directory that must exist. now is the engine's clock. Open fails with
// store.ErrInUse when another process has the file open.
func Open(dir string, now func() time.Time) (*Data, error) {
	path := filepath.Join(dir, fileName)
	db, err := boltfile.Open(path, format, buckets...)
	if err != nil {
		return nil, err
	}
	d := &Data{db: db, dir: store.NewDirectory(), now: now, maxAudit: store.MaxAuditEntries}
	if err := d.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return d, nil
}

// Close closes the file.
func (d *Data) Close() error { return d.db.Close() }

// Directory returns the in-memory view of the control data, as store.Engine describes it.
func (d *Data) Directory() *store.Directory { return d.dir }

// load fills the directory from the file.
func (d *Data) load() error {
	return d.db.View(func(tx *bolt.Tx) error {
		partners, err := all[store.Partner](tx, bucketPartners)
		if err != nil {
			return err
		}
		for _, p := range partners {
			d.dir.SetPartner(p)
		}
		keys, err := all[store.Key](tx, bucketKeys)
		if err != nil {
			return err
		}
		for _, k := range keys {
			d.dir.SetKey(k)
		}
		merchants, err := all[store.Merchant](tx, bucketMerchants)
		if err != nil {
			return err
		}
		for _, m := range merchants {
			d.dir.SetMerchant(m)
		}
		tags, err := all[store.Tag](tx, bucketTags)
		if err != nil {
			return err
		}
		for _, t := range tags {
			if t, err = d.withHost(tx, t); err != nil {
				return err
			}
			d.dir.SetTag(t)
		}
		return nil
	})
}

// tag reads a tag with its host.
func (d *Data) tag(tx *bolt.Tx, id store.TagID) (store.Tag, error) {
	tag, err := get[store.Tag](tx, bucketTags, string(id), "tag")
	if err != nil {
		return tag, err
	}
	return d.withHost(tx, tag)
}

// withHost returns a tag with its host, which is not stored with it.
func (d *Data) withHost(tx *bolt.Tx, t store.Tag) (store.Tag, error) {
	if t.Type != store.Preverified {
		return t.WithHost(""), nil
	}
	p, err := get[store.Partner](tx, bucketPartners, string(t.Partner), "partner")
	return t.WithHost(p.TrackingDomain), err
}

// update runs change in one synced transaction. When the transaction is on disk, update calls publish, which puts the
// change into the directory.
func (d *Data) update(ctx context.Context, change func(tx *bolt.Tx) error, publish func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.db.Update(change); err != nil {
		return err
	}
	publish()
	return nil
}

// view runs read in a read-only transaction.
func (d *Data) view(ctx context.Context, read func(tx *bolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.db.View(read)
}

// get reads one value. When there is none it returns store.NotFound(what).
func get[T any](tx *bolt.Tx, bucket []byte, key, what string) (T, error) {
	var v T
	b := tx.Bucket(bucket).Get([]byte(key))
	if b == nil {
		return v, store.NotFound(what)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%s %q: %w", bucket, key, err)
	}
	return v, nil
}

// put writes one value.
func put[T any](tx *bolt.Tx, bucket []byte, key string, v T) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(key), b)
}

// all reads all values of a bucket.
func all[T any](tx *bolt.Tx, bucket []byte) ([]T, error) {
	var values []T
	err := tx.Bucket(bucket).ForEach(func(k, b []byte) error {
		var v T
		if err := json.Unmarshal(b, &v); err != nil {
			return fmt.Errorf("%s %q: %w", bucket, k, err)
		}
		values = append(values, v)
		return nil
	})
	return values, err
}
