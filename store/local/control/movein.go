package control

import (
	"maps"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/move"
	"mtagd/store/rules"
)

// Import replaces all control data in one transaction, except the audit log and the directory's id. It reads what it has written again,
// and checks it.
func (d *Data) Import(c *move.Control) error {
	id, err := d.ID()
	if err != nil {
		return err
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	records, err := rules.RecordsOf(c, id)
	if err != nil {
		return err
	}
	next := maps.Clone(d.sums)
	if err := d.edit(func(tx *bolt.Tx) error {
		var old []write
		for _, bucket := range buckets {
			if bucket == inLog {
				continue
			}
			if err := tx.Bucket([]byte(bucket)).ForEach(func(key, _ []byte) error {
				if isSummed(bucket, string(key)) {
					old = append(old, write{bucket, string(key), nil})
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return storeAll(tx, next, append(old, writesIn(records)...))
	}); err != nil {
		return err
	}
	if err := d.db.Close(); err != nil {
		return err
	}
	return d.open()
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

// LastEntry returns the number of the last entry of the audit log; 0 when there is none.
func (d *Data) LastEntry() store.AuditID {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.lastEntry
}

// edit makes a change on disk that is no change of a running service: after an error, the file must be opened again.
func (d *Data) edit(change func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage(fileName, func() error { return d.db.Update(change) })
}
