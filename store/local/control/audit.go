package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/rules"
)

// holding is what one partner, or operators, have in the audit log.
type holding struct {
	n      int
	oldest store.AuditID // none of the entries is older
}

// entries is what is known of the audit log.
type entries struct {
	lastEntry store.AuditID
	held      map[store.PartnerID]*holding // the entries of partners and, under "", of operators; damaged ones are nobody's
}

// hold notes an entry that is newer than all others, or that a reading has found.
func (s *entries) hold(holder store.PartnerID, id store.AuditID) {
	h := s.held[holder]
	if h == nil {
		h = &holding{oldest: id}
		s.held[holder] = h
	}
	h.n++
}

// note notes entries that were added.
func (s *entries) note(added []store.AuditEntry) {
	for _, e := range added {
		s.hold(e.Holder(), e.ID)
		s.lastEntry = e.ID
	}
}

// holderIn is AuditEntry.Holder for the JSON of an entry. It is much faster than to decode it. Within a string, a quote has
// a backslash before it, so nothing but the fields themselves is found.
func holderIn(entry []byte) store.PartnerID {
	const byOperator, partner = `"actor":{"kind":"` + string(store.ByOperator) + `"`, `"partnerId":"`
	_, rest, found := bytes.Cut(entry, []byte(partner))
	if !found || bytes.Contains(entry, []byte(byOperator)) {
		return ""
	}
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return store.PartnerID(id)
}

// dropOldest makes room for the new entries: for each, at most two others go. With smaller limits the log gets shorter
// little by little. Damaged entries stay. It returns the records to delete, and what the holders have afterwards.
func (d *Data) dropOldest(tx *bolt.Tx, entries []store.AuditEntry) (gone []rules.Record, dropped map[store.PartnerID]holding, err error) {
	if len(entries) == 0 {
		return nil, nil, nil
	}
	dropped = map[store.PartnerID]holding{}
	limits, added, mayFail := d.AuditLimits, map[store.PartnerID]int{}, map[store.PartnerID]bool{}
	for _, e := range entries {
		added[e.Holder()]++
		mayFail[e.Holder()] = mayFail[e.Holder()] || e.MayBeRefused()
	}
	excess := map[store.PartnerID]int{}
	full := d.sums[inLog].n+uint64(len(entries)) > uint64(limits.Partners)
	var numbers []int
	for holder, h := range d.held {
		if holder == "" {
			excess[""] = h.n + added[""] - limits.Operators
		} else if full {
			excess[holder] = h.n + added[holder]
			numbers = append(numbers, excess[holder])
		}
	}
	quota := limits.Quota(numbers)
	for holder := range excess {
		if holder != "" {
			excess[holder] -= quota
		}
	}
	room := 2 * len(entries)
	for holder, n := range excess {
		if n <= 0 {
			continue
		}
		h := *d.held[holder]
		old := d.oldest(tx, holder, &h, min(n, room))
		if len(old) == 0 && mayFail[holder] {
			return nil, nil, store.ErrAuditFull
		}
		gone, dropped[holder] = append(gone, old...), h
		if room -= len(old); room == 0 {
			break
		}
	}
	return gone, dropped, nil
}

// oldest returns at most n entries to drop of one holder. It begins where the last one has stopped: so it reads the entries of
// others once, and not each time.
func (d *Data) oldest(tx *bolt.Tx, holder store.PartnerID, h *holding, n int) (old []rules.Record) {
	age := d.AuditLimits.PartnerAge
	if holder == "" {
		age = d.AuditLimits.OperatorAge
	}
	log := tx.Bucket([]byte(inLog)).Cursor()
	for key, value := log.Seek(binary.BigEndian.AppendUint64(nil, uint64(h.oldest))); key != nil && len(old) < n; key, value = log.Next() {
		value, _, ok := unseal(inLog, key, value)
		if !ok || holderIn(value) != holder {
			continue
		}
		if h.oldest = auditID(string(key)); d.now().Sub(auditTime(string(key))) < age {
			break
		}
		old = append(old, rules.Record{Kind: inLog, Key: string(key)})
		h.oldest++
	}
	h.n -= len(old)
	return old
}

// Audit implements rules.Driver. It decodes only entries that may be in the answer: the time is in the key, and the id of
// the partner is in the JSON as it is. The log is the only part that is read from the disk. An answer for which all of
// it was read is compared with the number of entries in the log (checkRead).
func (d driver) Audit(ctx context.Context, q store.AuditQuery) (entries []store.AuditEntry, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = d.db.View(func(tx *bolt.Tx) error {
		log := tx.Bucket([]byte(inLog)).Cursor()
		last, read := store.AuditID(0), uint64(0)
		for key, value := lastBefore(log, q.Before); key != nil; key, value = log.Prev() {
			if len(entries) >= q.Limit {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			value, _, ok := unseal(inLog, key, value)
			if len(key) != auditKeySize || ok && last != 0 && auditID(string(key)) >= last {
				return damaged(inLog, fmt.Sprint(last-1))
			}
			last = auditID(string(key))
			read++
			if auditTime(string(key)).Before(q.Since) || ok && !bytes.Contains(value, []byte(q.Partner)) {
				continue
			}
			entry := store.AuditEntry{ID: last, At: auditTime(string(key)), Action: store.EntryDamaged}
			if ok {
				if err := json.Unmarshal(value, &entry); err != nil {
					return fmt.Errorf("%w: %w", damaged(inLog, fmt.Sprint(last)), err)
				}
			}
			if q.Partner == "" || entry.Partner == q.Partner || !ok {
				entries = append(entries, entry)
			}
		}
		return checkRead(tx, read, q.Before)
	})
	return entries, err
}

// checkRead returns an error when fewer entries were read than there are. Nothing is known of those before another one.
func checkRead(tx *bolt.Tx, read uint64, before store.AuditID) error {
	if before != 0 {
		return nil
	}
	value, _, _ := unseal(inMeta, keySums, tx.Bucket([]byte(inMeta)).Get([]byte(keySums)))
	if all, _, err := parseSums(value); err != nil || read != all[inLog].n {
		return damaged(inLog, "")
	}
	return nil
}

// lastBefore moves a cursor to the last entry with a number below before; 0 stands for the end of the log.
func lastBefore(log *bolt.Cursor, before store.AuditID) (key, value []byte) {
	if before == 0 {
		return log.Last()
	}
	if key, _ := log.Seek(binary.BigEndian.AppendUint64(nil, uint64(before))); key == nil {
		return log.Last()
	}
	return log.Prev()
}

// auditKeySize is the size of an entry's key.
const auditKeySize = 16

func auditKey(id store.AuditID, at time.Time) string {
	return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(id)), uint64(at.UnixNano())))
}

func auditID(key string) store.AuditID {
	return store.AuditID(binary.BigEndian.Uint64([]byte(key[:8])))
}

func auditTime(key string) time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64([]byte(key[8:])))).UTC()
}
