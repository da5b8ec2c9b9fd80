package control

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
)

// Salvage writes the records of d that can be read, and that fit together, into a new control.db in the directory to. It
// passes what is left out to lost. The lists and the indexes are built anew from the records.
func (d *Data) Salvage(to string, lost func(where, problem string)) error {
	db, err := boltfile.Open(filepath.Join(to, fileName), format, buckets...)
	if err != nil {
		return err
	}
	s := salvager{lost: func(bucket []byte, key, problem string) {
		lost(fmt.Sprintf("%s: %s %q", fileName, bucket, key), problem)
	}}
	if err := boltfile.CatchDamage(fileName, func() error { return d.db.View(s.read) }); err != nil {
		lost(fileName, err.Error())
	}
	return errors.Join(db.Update(s.write), db.Close())
}

// salvager has the records that can be read.
type salvager struct {
	lost func(bucket []byte, key, problem string)

	partners  map[string]store.Partner
	keys      map[string]store.Key
	merchants map[string]store.Merchant
	tags      map[string]store.Tag
	domains   map[string]string // root domain → tag id
	order     map[string]uint64 // of merchants in their partner's list
	audit     [][2][]byte
}

func (s *salvager) read(tx *bolt.Tx) error {
	s.domains, s.order = map[string]string{}, map[string]uint64{}
	s.partners = salvageAll[store.Partner](s, tx, bucketPartners)
	s.keys = salvageAll[store.Key](s, tx, bucketKeys)
	s.merchants = salvageAll[store.Merchant](s, tx, bucketMerchants)
	s.tags = salvageAll[store.Tag](s, tx, bucketTags)
	s.each(bucketDomains, tx.Bucket(bucketDomains), func(k, v []byte) { s.domains[string(k)] = string(v) })
	s.each(bucketPartnerMerchants, tx.Bucket(bucketPartnerMerchants), func(partner, _ []byte) {
		if list := tx.Bucket(bucketPartnerMerchants).Bucket(partner); list != nil {
			s.each(bucketPartnerMerchants, list, func(k, id []byte) {
				if len(k) == 8 {
					s.order[string(id)] = binary.BigEndian.Uint64(k)
				}
			})
		}
	})
	s.each(bucketAudit, tx.Bucket(bucketAudit), func(k, v []byte) {
		var entry store.AuditEntry
		if json.Unmarshal(v, &entry) != nil || !bytes.Equal(k, auditKey(entry.ID, entry.At)) {
			s.lost(bucketAudit, fmt.Sprintf("%x", k), "cannot be read")
			return
		}
		s.audit = append(s.audit, [2][]byte{bytes.Clone(k), bytes.Clone(v)})
	})
	return nil
}

// each calls use with the keys and values of a bucket, in any order. Around damage it reads from both ends.
func (s *salvager) each(name []byte, b *bolt.Bucket, use func(k, v []byte)) {
	seen := map[string]bool{}
	once := func(k, v []byte) {
		if !seen[string(k)] {
			seen[string(k)] = true
			use(k, v)
		}
	}
	err := boltfile.CatchDamage(fileName, func() error {
		c := b.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			once(k, v)
		}
		return nil
	})
	if err == nil {
		return
	}
	s.lost(name, "", "has damage: "+err.Error())
	_ = boltfile.CatchDamage(fileName, func() error { // it ends at the same damage
		c := b.Cursor()
		for k, v := c.Last(); k != nil; k, v = c.Prev() {
			once(k, v)
		}
		return nil
	})
}

func salvageAll[T any](s *salvager, tx *bolt.Tx, bucket []byte) map[string]T {
	all := map[string]T{}
	s.each(bucket, tx.Bucket(bucket), func(k, v []byte) {
		var record T
		if err := json.Unmarshal(v, &record); err != nil {
			s.lost(bucket, string(k), err.Error())
			return
		}
		all[string(k)] = record
	})
	return all
}

func (s *salvager) write(tx *bolt.Tx) error {
	s.dropOrphans()
	return errors.Join(s.writePartners(tx), s.writeMerchants(tx), s.writeTags(tx), s.writeAudit(tx))
}

// dropOrphans drops the records whose owner is lost.
func (s *salvager) dropOrphans() {
	maps.DeleteFunc(s.keys, func(id string, k store.Key) bool {
		return s.isOrphan(bucketKeys, id, string(k.ID) == id && s.hasPartner(k.Partner))
	})
	maps.DeleteFunc(s.merchants, func(id string, m store.Merchant) bool {
		return s.isOrphan(bucketMerchants, id, string(m.ID) == id && s.hasPartner(m.Partner))
	})
	maps.DeleteFunc(s.tags, func(id string, t store.Tag) bool {
		m, ok := s.merchants[string(t.Merchant)]
		return s.isOrphan(bucketTags, id, string(t.ID) == id && ok && m.Partner == t.Partner)
	})
}

func (s *salvager) hasPartner(id store.PartnerID) bool {
	_, ok := s.partners[string(id)]
	return ok
}

func (s *salvager) isOrphan(bucket []byte, key string, fits bool) bool {
	if !fits {
		s.lost(bucket, key, "is left out: its id is wrong, or its owner is lost")
	}
	return !fits
}

func (s *salvager) writePartners(tx *bolt.Tx) error {
	var errs []error
	for id, p := range s.partners {
		errs = append(errs, put(tx, bucketPartners, id, p))
		if p.TrackingDomain != "" {
			errs = append(errs, tx.Bucket(bucketTrackingDomains).Put([]byte(p.TrackingDomain), []byte(id)))
		}
	}
	for id, k := range s.keys {
		errs = append(errs, put(tx, bucketKeys, id, k))
	}
	return errors.Join(errs...)
}

// writeMerchants writes the merchants, each partner's in the order of its list.
func (s *salvager) writeMerchants(tx *bolt.Tx) error {
	all := slices.SortedFunc(maps.Values(s.merchants), func(a, b store.Merchant) int {
		return cmp.Or(cmp.Compare(s.order[string(a.ID)], s.order[string(b.ID)]), a.CreatedAt.Compare(b.CreatedAt))
	})
	for _, m := range all {
		list, err := tx.Bucket(bucketPartnerMerchants).CreateBucketIfNotExists([]byte(m.Partner))
		if err != nil {
			return err
		}
		ordinal, err := list.NextSequence()
		if err != nil {
			return err
		}
		if err := errors.Join(list.Put(binary.BigEndian.AppendUint64(nil, ordinal), []byte(m.ID)), put(tx, bucketMerchants, string(m.ID), m)); err != nil {
			return err
		}
	}
	return nil
}

// writeTags writes the tags, and by what they are found. A verified tag whose claim is lost gets it again, as only one tag can
// have been verified for a domain.
func (s *salvager) writeTags(tx *bolt.Tx) error {
	for id, t := range s.tags {
		if t.Type == store.ServerSide && t.Verified && s.domains[t.Domain] == "" {
			s.domains[t.Domain] = id
		}
	}
	var errs []error
	for id, t := range s.tags {
		if t.Type == store.ServerSide && t.Verified && s.domains[t.Domain] != id {
			t = t.LoseClaim()
		}
		errs = append(errs, put(tx, bucketTags, id, t), tx.Bucket(bucketMerchantTags).Put(merchantTagKey(t.Merchant, t.Type), []byte(id)))
		if t.Label != "" {
			errs = append(errs, tx.Bucket(bucketLabels).Put([]byte(t.Label), []byte(id)))
		}
		if t.Type == store.ServerSide && s.domains[t.Domain] == id {
			errs = append(errs, tx.Bucket(bucketDomains).Put([]byte(t.Domain), []byte(id)))
		}
	}
	return errors.Join(errs...)
}

func (s *salvager) writeAudit(tx *bolt.Tx) error {
	log := tx.Bucket(bucketAudit)
	last := uint64(0)
	for _, entry := range s.audit {
		if err := log.Put(entry[0], entry[1]); err != nil {
			return err
		}
		last = max(last, binary.BigEndian.Uint64(entry[0]))
	}
	return log.SetSequence(last)
}
