package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// Control is the control data: partners, keys, merchants and tags, in one bbolt file. Each change is one
// synced transaction, and what must be unique (a domain, a label, one tag of a type) is decided inside it.
//
// Buckets, values in JSON unless another form is given:
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
type Control struct {
	db  *bolt.DB
	dir *store.Directory
	now func() time.Time

	mu sync.Mutex // held over a transaction and its change of dir, so that both have one order
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

	controlBuckets = [][]byte{bucketPartners, bucketKeys, bucketMerchants, bucketPartnerMerchants,
		bucketTags, bucketMerchantTags, bucketDomains, bucketLabels, bucketTrackingDomains}
)

// controlFormat is the version of the file's layout. A file of another version is refused.
const controlFormat = "1"

// OpenControl opens or creates the control data in dir, without the events: for operator commands
// beside no server. It fails with store.ErrInUse when another process has it open.
func OpenControl(dir string, opt Options) (*Control, error) {
	opt = opt.withDefaults()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "control.db")
	db, err := openBolt(path, controlFormat, controlBuckets...)
	if err != nil {
		return nil, err
	}
	c := &Control{db: db, dir: store.NewDirectory(), now: opt.Now}
	if err := c.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return c, nil
}

// Close closes the file.
func (c *Control) Close() error { return c.db.Close() }

// Directory is the in-memory view of the control data.
func (c *Control) Directory() *store.Directory { return c.dir }

// load fills the directory.
func (c *Control) load() error {
	return c.db.View(func(tx *bolt.Tx) error {
		partners, err := all[store.Partner](tx, bucketPartners)
		if err != nil {
			return err
		}
		for _, p := range partners {
			c.dir.SetPartner(p)
		}
		keys, err := all[store.Key](tx, bucketKeys)
		if err != nil {
			return err
		}
		for _, k := range keys {
			c.dir.SetKey(k)
		}
		tags, err := all[store.Tag](tx, bucketTags)
		if err != nil {
			return err
		}
		for _, t := range tags {
			if t, err = c.withHost(tx, t); err != nil {
				return err
			}
			c.dir.SetTag(t)
		}
		return nil
	})
}

// withHost fills in a tag's host.
func (c *Control) withHost(tx *bolt.Tx, t store.Tag) (store.Tag, error) {
	if t.Type != store.Preverified {
		return t.WithHost(""), nil
	}
	p, err := get[store.Partner](tx, bucketPartners, string(t.Partner), "partner")
	return t.WithHost(p.TrackingDomain), err
}

// update runs change in one transaction and, once it is on disk, publish.
func (c *Control) update(ctx context.Context, change func(tx *bolt.Tx) error, publish func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.db.Update(change); err != nil {
		return err
	}
	publish()
	return nil
}

func (c *Control) view(ctx context.Context, read func(tx *bolt.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.db.View(read)
}

// get reads one value; what names it in a KindNotFound error.
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

func put[T any](tx *bolt.Tx, bucket []byte, key string, v T) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put([]byte(key), b)
}

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
