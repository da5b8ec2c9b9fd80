// Package control stores the control data of the embedded engine in one bbolt file: partners, keys, merchants, tags, and
// who has which domain. It implements store.Control. Each change is one synced transaction. That transaction also checks
// what must be unique: a domain, a label, one tag of a type for each merchant.
//
//	inspect.go    what a data directory contains, before anything is opened
//	tags.go       generate, read and update tags
//	merchants.go  merchants with their tags
//	partners.go   partners, tracking domains and API keys
//	claims.go     who has which root domain
//	audit.go      who changed what
//	control.go    Data: open, load the directory, transactions
//	snapshot.go   the control data as of one moment, for a backup; the id of the data directory
//	counts.go     what the limits of a partner need to know of its tags
//	verify.go     checks all records
//	salvage.go    writes what can be read of a damaged file into a new one
//
// # What is in control.db
//
// The file is of format "1". Its buckets, with key → value (Partner, Key, Merchant, Tag and AuditEntry stand for the
// JSON of these types; ids, hosts and labels are plain text):
//
//	meta               "format" → version; "id" → id of the data directory, once it was backed up
//	partners           partner id → Partner
//	keys               key id → Key
//	merchants          merchant id → Merchant
//	partner_merchants  partner id → bucket: ordinal (8 bytes, big endian, from 1) → merchant id
//	tags               tag id → Tag
//	merchant_tags      merchant id, "/", type → tag id
//	domains            root domain → id of the server-side tag that has the claim to it
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
	"mtagd/store/local/space"
)

// Data implements store.Control.
type Data struct {
	db  *bolt.DB
	dir *store.Directory
	now func() time.Time

	maxAudit uint64 // how many audit entries are kept

	mu     sync.Mutex                  // held from a transaction's start until dir has its change, so that dir changes in commit order
	counts map[store.PartnerID]*counts // guarded by mu
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
	d := &Data{db: db, dir: store.NewDirectory(), now: now, maxAudit: store.MaxAuditEntries, counts: map[store.PartnerID]*counts{}}
	if err := d.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return d, nil
}

// Close closes the file.
func (d *Data) Close() error { return d.db.Close() }

// Directory returns the in-memory view of the control data, as store.Engine describes it.
func (d *Data) Directory() *store.Directory { return d.dir }

// load fills the directory and the counts from the file.
func (d *Data) load() error {
	var undated []store.Tag
	err := d.db.View(func(tx *bolt.Tx) error {
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
			if t, err = d.complete(tx, t); err != nil {
				return err
			}
			d.publish(t)
			if t.Type == store.ServerSide && !t.Verified && !t.ClaimLost && t.ClaimedAt.IsZero() {
				undated = append(undated, t)
			}
		}
		return nil
	})
	if err != nil || len(undated) == 0 {
		return err
	}
	return d.dateClaims(undated)
}

// dateClaims starts the time of unverified claims in a file of an older version. There claims had no end, so the time
// starts now and not when the tag was created.
func (d *Data) dateClaims(tags []store.Tag) error {
	now := d.now().UTC()
	return d.db.Update(func(tx *bolt.Tx) error {
		for _, t := range tags {
			t = t.TakeClaim(now)
			if err := put(tx, bucketTags, string(t.ID), t); err != nil {
				return err
			}
			d.publish(t)
		}
		return nil
	})
}

// publish puts a tag that is new or has changed into the directory and into its partner's counts. The caller holds d.mu.
func (d *Data) publish(t store.Tag) {
	_, known := d.dir.Tag(t.ID)
	d.countsOf(t.Partner).set(t, !known)
	d.dir.SetTag(t)
}

// countsOf returns the counts of a partner. The caller holds d.mu.
func (d *Data) countsOf(partner store.PartnerID) *counts {
	c := d.counts[partner]
	if c == nil {
		c = &counts{unverified: map[store.TagID]time.Time{}}
		d.counts[partner] = c
	}
	return c
}

// tag reads a tag.
func (d *Data) tag(tx *bolt.Tx, id store.TagID) (store.Tag, error) {
	tag, err := get[store.Tag](tx, bucketTags, string(id), "tag")
	if err != nil {
		return tag, err
	}
	return d.complete(tx, tag)
}

// complete returns a tag with the fields that are not stored with it: Host and ClaimLost.
func (d *Data) complete(tx *bolt.Tx, t store.Tag) (store.Tag, error) {
	t.ClaimLost = t.Type == store.ServerSide && !hasClaim(tx, t)
	if t.Type != store.Preverified {
		return t.WithHost(""), nil
	}
	p, err := get[store.Partner](tx, bucketPartners, string(t.Partner), "partner")
	return t.WithHost(p.TrackingDomain), err
}

// hasClaim reports whether a server-side tag has the claim to its domain.
func hasClaim(tx *bolt.Tx, t store.Tag) bool {
	return string(tx.Bucket(bucketDomains).Get([]byte(t.Domain))) == string(t.ID)
}

// update runs change in one synced transaction. When the transaction is on disk, update calls publish, which puts the
// change into the directory. KindUnavailable: the disk is full.
func (d *Data) update(ctx context.Context, change func(tx *bolt.Tx) error, publish func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	err := d.db.Update(change)
	if space.IsFull(err) {
		return store.Unavailable("the disk is full")
	}
	if err != nil {
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
