package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/rules"
)

// Export returns the records that a move copies (rules.Moved), as they are stored.
func (d *Data) Export() (records []rules.Record, err error) {
	err = boltfile.CatchDamage(fileName, func() error {
		return d.db.View(func(tx *bolt.Tx) error {
			for _, kind := range rules.Kinds() {
				c := tx.Bucket([]byte(kind)).Cursor()
				for key, sealed := c.First(); key != nil; key, sealed = c.Next() {
					if !isSummed(kind, string(key)) {
						continue
					}
					value, _, ok := unseal(kind, key, sealed)
					if !ok {
						return damaged(kind, string(key))
					}
					records = append(records, rules.Record{Kind: kind, Key: string(key), Value: bytes.Clone(value)})
				}
			}
			return nil
		})
	})
	return rules.Moved(records), err
}

// Entries passes the entries of the audit log after one, the oldest first. Damaged entries are left out.
func (d *Data) Entries(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
	return boltfile.CatchDamage(fileName, func() error {
		return d.db.View(func(tx *bolt.Tx) error {
			log := tx.Bucket([]byte(inLog)).Cursor()
			for key, value := log.Seek(binary.BigEndian.AppendUint64(nil, uint64(after)+1)); key != nil; key, value = log.Next() {
				if err := ctx.Err(); err != nil {
					return err
				}
				text, _, ok := unseal(inLog, key, value)
				if !ok {
					continue
				}
				var e store.AuditEntry
				if err := json.Unmarshal(text, &e); err != nil {
					return fmt.Errorf("audit log: %w", err)
				}
				if err := use(&e); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Freeze refuses all changes with an error, until it is called with nil. When it returns, none is under way.
func (d *Data) Freeze(refuse error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.frozen = refuse
}
