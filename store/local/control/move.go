package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
)

// Export returns the records that a move copies (rules.Moved), as they are stored. It fails when some are missing: the file was
// checked when it was opened, and may have been damaged since.
func (d *Data) Export() (records []rules.Record, err error) {
	err = boltfile.CatchDamage(fileName, func() error {
		found := sums{}
		s, err := d.Snapshot(func() {})
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // of a read, it cannot fail
		for _, kind := range rules.Kinds() {
			c := s.tx.Bucket([]byte(kind)).Cursor()
			for key, sealed := c.First(); key != nil; key, sealed = c.Next() {
				if !isSummed(kind, string(key)) {
					continue
				}
				value, seal, ok := unseal(kind, key, sealed)
				if !ok {
					return damaged(kind, string(key))
				}
				found.add(kind, seal)
				records = append(records, rules.Record{Kind: kind, Key: string(key), Value: bytes.Clone(value)})
			}
			if found[kind] != s.sums[kind] {
				return fmt.Errorf("%w: %s: the %d records found in %s are not the %d that were written", codec.ErrCorrupt, fileName, found[kind].n, kind, s.sums[kind].n)
			}
		}
		return nil
	})
	return rules.Moved(records), err
}

// Entries passes the entries of the audit log after one, the oldest first. Damaged entries are left out.
func (d *Data) Entries(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
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
}

// Freeze refuses all changes with an error, until it is called with nil. When it returns, none is under way.
func (d *Data) Freeze(refuse error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	d.frozen = refuse
}

// Import fills new control data, which has nothing but the audit log and the directory's id, with records and documents, in
// one transaction. It reads what it has written again, and checks it.
func (d *Data) Import(records []rules.Record, docs []store.Document) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	writes := slices.Clip(records)
	for _, doc := range docs {
		writes = append(writes, rules.Record{Kind: inDocuments, Key: documentKey(doc.Kind, doc.Merchant, doc.ID), Value: doc.Content})
	}
	if err := d.fill(writes); err != nil {
		return err
	}
	if err := d.db.Close(); err != nil {
		return err
	}
	return d.open(func() ([]uint64, error) { return nil, nil })
}

// AddEntries adds entries to the end of the audit log.
func (d *Data) AddEntries(entries []store.AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	writes, err := writesOf(rules.Change{Entries: entries})
	if err != nil {
		return err
	}
	if err := d.fill(writes); err != nil {
		return err
	}
	d.note(entries)
	return nil
}

// fill writes records of new control data. After an error, the file must be opened again.
func (d *Data) fill(writes []rules.Record) error {
	next := maps.Clone(d.sums)
	err := boltfile.CatchDamage(fileName, func() error {
		return errors.Join(d.removeCopy(), d.db.Update(func(tx *bolt.Tx) error { return storeAll(tx, next, writes) }))
	})
	if err == nil {
		d.sums = next
	}
	return err
}
