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
)

// audit adds entries to the audit log, in the transaction of the change.
func (d *Data) audit(ctx context.Context, tx *bolt.Tx, entries ...store.AuditEntry) error {
	log := tx.Bucket(bucketAudit)
	log.FillPercent = 1 // entries are only added at the end, so a full page stays full
	for _, entry := range entries {
		ordinal, err := log.NextSequence()
		if err != nil {
			return err
		}
		entry = entry.Complete(ctx, store.AuditID(ordinal), d.now().UTC())
		value, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		if err := log.Put(auditKey(entry.ID, entry.At), value); err != nil {
			return err
		}
		if err := d.dropOldest(log); err != nil {
			return err
		}
	}
	return nil
}

// dropOldest drops the two oldest entries if there are more than maxAudit. With a smaller maxAudit the log gets shorter
// little by little.
func (d *Data) dropOldest(log *bolt.Bucket) error {
	oldest := log.Cursor()
	for range 2 {
		key, _ := oldest.First()
		if key == nil || log.Sequence()-binary.BigEndian.Uint64(key) < d.maxAudit {
			return nil
		}
		if err := oldest.Delete(); err != nil {
			return err
		}
	}
	return nil
}

// Audit implements store.Control. It decodes only entries that may be in the answer: the time is in the key, and the id of
// the partner is in the JSON as it is.
func (d *Data) Audit(ctx context.Context, q store.AuditQuery) (entries []store.AuditEntry, err error) {
	err = d.view(ctx, func(tx *bolt.Tx) error {
		log := tx.Bucket(bucketAudit).Cursor()
		for key, value := lastBefore(log, q.Before); key != nil && len(entries) < q.Limit; key, value = log.Prev() {
			if err := ctx.Err(); err != nil {
				return err
			}
			if auditTime(key).Before(q.Since) || !bytes.Contains(value, []byte(q.Partner)) {
				continue
			}
			var entry store.AuditEntry
			if err := json.Unmarshal(value, &entry); err != nil {
				return fmt.Errorf("%s %x: %w", bucketAudit, key, err)
			}
			if q.Partner == "" || entry.Partner == q.Partner {
				entries = append(entries, entry)
			}
		}
		return nil
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

func auditKey(id store.AuditID, at time.Time) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(id)), uint64(at.UnixNano()))
}

func auditTime(key []byte) time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(key[8:])))
}
