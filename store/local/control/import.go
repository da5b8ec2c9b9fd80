package control

import (
	"errors"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/rules"
)

// Import fills new control data, which has nothing but the audit log and the directory's id, with records and documents, in
// one transaction. It reads what it has written again, and checks it.
func (d *Data) Import(records []rules.Record, docs []store.Document) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	next, writes := maps.Clone(d.sums), slices.Clip(records)
	for _, doc := range docs {
		writes = append(writes, rules.Record{Kind: inDocuments, Key: documentKey(doc.Kind, doc.Merchant, doc.ID), Value: doc.Content})
	}
	if err := d.edit(func(tx *bolt.Tx) error { return storeAll(tx, next, writes) }); err != nil {
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
	next := maps.Clone(d.sums)
	if err := d.edit(func(tx *bolt.Tx) error { return storeAll(tx, next, writes) }); err != nil {
		return err
	}
	d.sums = next
	d.note(entries)
	return nil
}

// edit makes a change on disk that is no change of a running service: after an error, the file must be opened again.
func (d *Data) edit(change func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage(fileName, func() error { return errors.Join(d.removeCopy(), d.db.Update(change)) })
}
