package control

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Format "1" had no seals. It had these buckets besides partners, keys, merchants, tags and domains:
//
//	partner_merchants  partner id → bucket: ordinal (8 bytes, big endian) → merchant id
//	merchant_tags      merchant id, "/", type → tag id
//	labels             mtag-xxxx → tag id
//	tracking_domains   host → partner id
//	audit              as log
const (
	format1 = "1"

	oldLists = "partner_merchants"
	oldLog   = "audit"
)

var oldBuckets = []string{oldLists, "merchant_tags", "labels", "tracking_domains", oldLog}

// decode1 reads a record that only format "1" has.
func (r *reading) decode1(bucket, key string, rec boltfile.Record) error {
	switch {
	case bucket == oldLists && len(rec.Path) == 2 && len(key) == 8:
		r.orders[store.MerchantID(rec.Value)] = binary.BigEndian.Uint64(rec.Key)
	case bucket == oldLog:
		var entry store.AuditEntry
		if err := json.Unmarshal(rec.Value, &entry); err != nil {
			return err
		}
		if key != auditKey(entry.ID, entry.At) {
			return fmt.Errorf("has another key than its id and time")
		}
		r.noteEntry(key, rec.Value)
	case !slices.Contains(oldBuckets, bucket):
		return fmt.Errorf("%w: an unknown bucket", codec.ErrCorrupt)
	}
	return nil
}

// finish1 gives the merchants their order. Unsealed records that do not decode may be wrong in another way too, so format "1"
// is not served while there are any.
func (r *reading) finish1() {
	for id, m := range r.state.merchants {
		m.Ordinal = r.orders[id]
		r.state.merchants[id] = m
	}
	for i := range r.wrong {
		r.wrong[i].fatal = true
	}
}

// migrationBatch is how many audit entries one transaction migrates.
const migrationBatch = 20_000

// migrate changes a file of format "1" to format "2". First it copies the audit log, which may be large, then it replaces
// everything else in one transaction. After a kill before that one, the next start begins again.
func migrate(db *bolt.DB, r *reading, now time.Time, log *slog.Logger) error {
	if err := r.fatal(); err != nil {
		return err
	}
	log.Info("control.db is of an older version: it is migrated", "records", len(r.state.merchants)+len(r.state.tags), "audit_entries", r.entries())
	r.dateClaims(now)
	if err := db.Update(func(tx *bolt.Tx) error { // what a migration that was cut off has left
		if tx.Bucket([]byte(inLog)) == nil {
			return nil
		}
		return tx.DeleteBucket([]byte(inLog))
	}); err != nil {
		return err
	}
	return fill(db, r, log)
}

// dateClaims starts the time of unverified claims of versions in which claims had no end. The time starts now and not when the
// tag was created.
func (r *reading) dateClaims(now time.Time) {
	for id, t := range r.state.tags {
		if t.Type == store.ServerSide && !t.Verified && t.ClaimedAt.IsZero() && r.state.domains[t.Domain] == id {
			r.state.tags[id] = t.TakeClaim(now)
		}
	}
}

// entries is how many audit entries there are, without damaged ones.
func (r *reading) entries() (n int) {
	for _, h := range r.state.held {
		n += h.n
	}
	return n
}

// fill writes a reading to a file in format "2".
func fill(db *bolt.DB, r *reading, log *slog.Logger) error {
	sums := sums{}
	if err := fillLog(db, r, sums, log); err != nil {
		return err
	}
	writes, err := r.state.writes()
	if err != nil {
		return err
	}
	for id, at := range r.uses {
		if _, ok := r.state.keys[id]; !ok {
			continue
		}
		text, err := at.MarshalText()
		if err != nil {
			return err
		}
		writes = append(writes, write{inUses, string(id), text})
	}
	return db.Update(func(tx *bolt.Tx) error {
		var old [][]byte
		if err := tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
			if string(name) != inLog {
				old = append(old, slices.Clone(name))
			}
			return nil
		}); err != nil {
			return err
		}
		for _, name := range old {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
		}
		if err := createBuckets(tx); err != nil {
			return err
		}
		return storeAll(tx, sums, append(writes, write{inMeta, keyFormat, []byte(format2)}))
	})
}

// fillLog writes the audit log of a reading.
func fillLog(db *bolt.DB, r *reading, sums sums, log *slog.Logger) error {
	var batch []write
	done := 0
	flush := func() error {
		err := db.Update(func(tx *bolt.Tx) error {
			if _, err := tx.CreateBucketIfNotExists([]byte(inLog)); err != nil {
				return err
			}
			for _, w := range batch {
				if err := w.store(tx, sums); err != nil {
					return err
				}
			}
			return nil
		})
		if done += len(batch); len(batch) >= migrationBatch {
			log.Info("control.db: the audit log is copied", "entries", done, "of", r.entries())
		}
		batch = batch[:0]
		return err
	}
	if err := r.eachEntry(func(w write) error {
		if batch = append(batch, w); len(batch) < migrationBatch {
			return nil
		}
		return flush()
	}); err != nil {
		return err
	}
	return flush()
}

// eachEntry calls use with each entry of the audit log, oldest first. One that is damaged between others stays in the list, as a
// damaged one.
func (r *reading) eachEntry(use func(w write) error) error {
	from, last := inLog, store.AuditID(0)
	var damaged []write
	if r.format == format1 {
		from = oldLog
	}
	return r.scan.SalvageBucket(from, func(rec boltfile.Record) error {
		value := rec.Value
		if r.format != format1 {
			value, _, _ = unseal(inLog, rec.Key, rec.Value)
		}
		if len(rec.Key) != auditKeySize {
			return nil
		}
		id, at := auditID(string(rec.Key)), auditTime(string(rec.Key))
		if rec.Damaged || !json.Valid(value) {
			w, err := newWrite(inLog, string(rec.Key), store.AuditEntry{ID: id, At: at, Action: store.EntryDamaged})
			if err == nil && last > 0 && id > last {
				damaged = append(damaged, w)
			}
			return nil
		}
		for _, w := range damaged {
			if auditID(w.key) < id { // else its key is damaged too
				if err := use(w); err != nil {
					return err
				}
			}
		}
		damaged = damaged[:0]
		last = id
		return use(write{inLog, string(rec.Key), slices.Clone(value)})
	}, func([]string, error) {}) // the pages that are lost were reported before
}

func createBuckets(tx *bolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	return nil
}

// writes returns the records of all control data but the audit log. Sessions are left out: after a repair everybody signs in
// again.
func (s *state) writes() (all []write, err error) {
	add := func(w write, wErr error) {
		all = append(all, w)
		if err == nil {
			err = wErr
		}
	}
	for id, p := range s.partners {
		add(newWrite(inPartners, string(id), p))
	}
	for id, k := range s.keys {
		add(newWrite(inKeys, string(id), k))
	}
	for id, m := range s.merchants {
		add(newWrite(inMerchants, string(id), m))
	}
	for id, t := range s.tags {
		add(newWrite(inTags, string(id), t))
	}
	for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
		all = append(all, write{inDomains, domain, []byte(s.domains[domain])})
	}
	for key, r := range s.replies {
		add(newWrite(inReplies, key, r))
	}
	for id, r := range s.removals {
		add(newWrite(inRemovals, string(id), r))
	}
	for id, r := range s.expiries {
		add(newWrite(inExpiries, string(id), r))
	}
	for id, e := range s.erasures {
		add(newWrite(inErasures, string(id), e))
	}
	for m, of := range s.suppressed {
		for k, by := range of {
			all = append(all, write{inSuppressed, suppressedKey(m, k), []byte(by)})
		}
	}
	if s.retention != 0 {
		all = append(all, write{inMeta, keyRetention, []byte(strconv.Itoa(int(s.retention)))})
	}
	if s.id != "" {
		all = append(all, write{inMeta, keyID, []byte(s.id)})
	}
	return all, err
}
