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
	"mtagd/store/local/boltfile"
)

// audit adds entries to the audit log, in the transaction of the change.
func (c *change) audit(entries ...store.AuditEntry) error {
	for _, entry := range entries {
		c.entries++
		entry = entry.Complete(c.ctx, c.d.state.lastEntry+store.AuditID(c.entries), c.d.now().UTC())
		w, err := newWrite(inLog, auditKey(entry.ID, entry.At), entry)
		if err != nil {
			return err
		}
		c.writes = append(c.writes, w)
	}
	return nil
}

// dropOldest makes room for new entries: for each it drops the two oldest ones if there are more than maxAudit. With a smaller
// maxAudit the log gets shorter little by little. Damaged entries stay.
func (d *Data) dropOldest(tx *bolt.Tx, s sums, added int) error {
	drop := min(uint64(2*added), s[inLog].n+uint64(added)-min(d.maxAudit, s[inLog].n+uint64(added)))
	var oldest []write
	log := tx.Bucket([]byte(inLog)).Cursor()
	for key, value := log.First(); key != nil && uint64(len(oldest)) < drop; key, value = log.Next() {
		if _, _, ok := unseal(inLog, key, value); ok {
			oldest = append(oldest, write{inLog, string(key), nil})
		}
	}
	for _, w := range oldest {
		if err := w.store(tx, s); err != nil {
			return err
		}
	}
	return nil
}

// Audit implements store.Control. It decodes only entries that may be in the answer: the time is in the key, and the id of
// the partner is in the JSON as it is. The log is the only part that is read from the disk; its entries have no gaps, so that
// one that is not found is missed.
func (d *Data) Audit(ctx context.Context, q store.AuditQuery) (entries []store.AuditEntry, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = boltfile.CatchDamage(fileName, func() error {
		return d.db.View(func(tx *bolt.Tx) error {
			log := tx.Bucket([]byte(inLog)).Cursor()
			last := store.AuditID(0)
			for key, value := lastBefore(log, q.Before); key != nil && len(entries) < q.Limit; key, value = log.Prev() {
				if err := ctx.Err(); err != nil {
					return err
				}
				value, _, ok := unseal(inLog, key, value)
				if len(key) != auditKeySize || ok && last != 0 && auditID(string(key)) != last-1 {
					return damaged(inLog, fmt.Sprint(last-1))
				}
				last = auditID(string(key))
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
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
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
