package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
)

// OpenReadOnly opens existing control data for Verify and the reading methods. Its directory is empty.
func OpenReadOnly(dir string) (*Data, error) {
	db, err := boltfile.OpenReadOnly(filepath.Join(dir, fileName), format, buckets...)
	if err != nil {
		return nil, err
	}
	return &Data{db: db, dir: store.NewDirectory()}, nil
}

// Verify checks the pages of control.db, decodes every record, and compares the records that must agree. It passes what is
// wrong to wrong, with the record's bucket and key, and returns the number of records.
func (d *Data) Verify(ctx context.Context, wrong func(where, problem string)) (records uint64, err error) {
	boltfile.Check(d.db, func(err error) { wrong(fileName, err.Error()) })
	var found []func() // called after the transaction
	err = boltfile.CatchDamage(fileName, func() error {
		return d.view(ctx, func(tx *bolt.Tx) error {
			v := verifier{tx: tx, wrong: func(bucket []byte, key, problem string) {
				found = append(found, func() { wrong(fmt.Sprintf("%s: %s %q", fileName, bucket, key), problem) })
			}}
			v.verify()
			records = v.records
			return nil
		})
	})
	for _, report := range found {
		report()
	}
	if err != nil && ctx.Err() == nil {
		wrong(fileName, err.Error())
		err = nil
	}
	return records, err
}

// verifier compares the records as of one transaction.
type verifier struct {
	tx      *bolt.Tx
	wrong   func(bucket []byte, key, problem string)
	records uint64

	partners  map[string]store.Partner
	merchants map[string]store.Merchant
	tags      map[string]store.Tag
}

func (v *verifier) verify() {
	v.partners = decodeAll(v, bucketPartners, func(p store.Partner) string { return string(p.ID) })
	v.merchants = decodeAll(v, bucketMerchants, func(m store.Merchant) string { return string(m.ID) })
	v.tags = decodeAll(v, bucketTags, func(t store.Tag) string { return string(t.ID) })
	for id, k := range decodeAll(v, bucketKeys, func(k store.Key) string { return string(k.ID) }) {
		v.expectPartner(bucketKeys, id, k.Partner)
	}
	for id, m := range v.merchants {
		v.expectPartner(bucketMerchants, id, m.Partner)
	}
	for id, t := range v.tags {
		if m, ok := v.merchants[string(t.Merchant)]; !ok || m.Partner != t.Partner {
			v.wrong(bucketTags, id, fmt.Sprintf("is of merchant %s of partner %s, which does not exist", t.Merchant, t.Partner))
		}
		if t.Verified && t.Type == store.ServerSide && !hasClaim(v.tx, t) {
			v.wrong(bucketTags, id, fmt.Sprintf("is verified, but has no claim to %s", t.Domain))
		}
	}
	v.verifyLists()
	v.verifyIndexes()
	v.verifyAudit()
}

func (v *verifier) expectPartner(bucket []byte, key string, id store.PartnerID) {
	if _, ok := v.partners[string(id)]; !ok {
		v.wrong(bucket, key, fmt.Sprintf("is of partner %s, which does not exist", id))
	}
}

// verifyLists checks that each merchant is once in its partner's list, without gaps.
func (v *verifier) verifyLists() {
	listed := map[string]bool{}
	_ = v.tx.Bucket(bucketPartnerMerchants).ForEachBucket(func(partner []byte) error {
		list := v.tx.Bucket(bucketPartnerMerchants).Bucket(partner)
		next := uint64(1)
		_ = list.ForEach(func(k, id []byte) error {
			v.records++
			if len(k) != 8 || binary.BigEndian.Uint64(k) != next {
				v.wrong(bucketPartnerMerchants, string(partner), fmt.Sprintf("has no merchant %d", next))
			}
			next++
			if m, ok := v.merchants[string(id)]; !ok || string(m.Partner) != string(partner) || listed[string(id)] {
				v.wrong(bucketPartnerMerchants, string(partner), fmt.Sprintf("lists merchant %s, which is not its, or is listed twice", id))
			}
			listed[string(id)] = true
			return nil
		})
		if list.Sequence() != next-1 {
			v.wrong(bucketPartnerMerchants, string(partner), fmt.Sprintf("counts %d merchants, but lists %d", list.Sequence(), next-1))
		}
		return nil
	})
	for id := range v.merchants {
		if !listed[id] {
			v.wrong(bucketMerchants, id, "is not in its partner's list")
		}
	}
}

// verifyIndexes checks the buckets by which tags and partners are found: that each entry leads to a record that has its key,
// and that each record is found.
func (v *verifier) verifyIndexes() {
	v.verifyIndex(bucketMerchantTags, "tag", func(key, id string) bool {
		t, ok := v.tags[id]
		return ok && key == string(merchantTagKey(t.Merchant, t.Type))
	})
	v.verifyIndex(bucketDomains, "tag", func(domain, id string) bool {
		t, ok := v.tags[id]
		return ok && t.Type == store.ServerSide && t.Domain == domain
	})
	v.verifyIndex(bucketLabels, "tag", func(label, id string) bool {
		t, ok := v.tags[id]
		return ok && t.Label == label
	})
	v.verifyIndex(bucketTrackingDomains, "partner", func(host, id string) bool {
		p, ok := v.partners[id]
		return ok && p.TrackingDomain == host
	})
	for id, t := range v.tags {
		v.expectEntry(bucketTags, id, bucketMerchantTags, merchantTagKey(t.Merchant, t.Type))
		if t.Label != "" {
			v.expectEntry(bucketTags, id, bucketLabels, []byte(t.Label))
		}
	}
	for id, p := range v.partners {
		if p.TrackingDomain != "" {
			v.expectEntry(bucketPartners, id, bucketTrackingDomains, []byte(p.TrackingDomain))
		}
	}
}

func (v *verifier) verifyIndex(bucket []byte, what string, fits func(key, id string) bool) {
	_ = v.tx.Bucket(bucket).ForEach(func(k, id []byte) error {
		v.records++
		if !fits(string(k), string(id)) {
			v.wrong(bucket, string(k), fmt.Sprintf("leads to %s %s, which does not exist or does not fit", what, id))
		}
		return nil
	})
}

func (v *verifier) expectEntry(bucket []byte, id string, index, key []byte) {
	if !bytes.Equal(v.tx.Bucket(index).Get(key), []byte(id)) {
		v.wrong(bucket, id, fmt.Sprintf("is not found by %q in %s", key, index))
	}
}

func (v *verifier) verifyAudit() {
	_ = v.tx.Bucket(bucketAudit).ForEach(func(k, b []byte) error {
		v.records++
		var entry store.AuditEntry
		if err := json.Unmarshal(b, &entry); err != nil {
			v.wrong(bucketAudit, fmt.Sprintf("%x", k), err.Error())
		} else if !bytes.Equal(k, auditKey(entry.ID, entry.At)) {
			v.wrong(bucketAudit, fmt.Sprintf("%x", k), "has another key than its id and time")
		}
		return nil
	})
}

// decodeAll decodes the records of a bucket whose keys are their ids.
func decodeAll[T any](v *verifier, bucket []byte, id func(T) string) map[string]T {
	all := map[string]T{}
	_ = v.tx.Bucket(bucket).ForEach(func(k, b []byte) error { // no callback returns an error
		v.records++
		var record T
		if err := json.Unmarshal(b, &record); err != nil {
			v.wrong(bucket, string(k), err.Error())
			return nil
		}
		if id(record) != string(k) {
			v.wrong(bucket, string(k), fmt.Sprintf("has the id %q", id(record)))
		}
		all[string(k)] = record
		return nil
	})
	return all
}
