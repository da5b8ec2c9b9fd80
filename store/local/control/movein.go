package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/move"
)

// Import replaces all control data in one transaction, except the audit log and the directory's id. It reads what it has written again,
// and checks it.
func (d *Data) Import(c *move.Control) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	writes, err := writesOf(c, d.state.id)
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
		return storeAll(tx, next, append(old, writes...))
	}); err != nil {
		return err
	}
	if err := d.db.Close(); err != nil {
		return err
	}
	return d.open()
}

// writesOf returns the records of control data, for the directory with this id.
func writesOf(c *move.Control, id string) ([]write, error) {
	s := newState()
	s.retention, s.id = c.Retention, id
	var used []write
	for _, k := range c.Keys {
		s.keys[k.ID] = k.Key
		if k.LastUse == 0 {
			continue
		}
		at, err := time.UnixMicro(k.LastUse).UTC().MarshalText()
		if err != nil {
			return nil, err
		}
		used = append(used, write{inUses, string(k.ID), at})
	}
	for _, p := range c.Partners {
		s.partners[p.ID] = p
	}
	for _, m := range c.Merchants {
		s.merchants[m.ID] = merchant(m)
	}
	for _, t := range c.Tags {
		s.tags[t.ID] = t
	}
	for _, claim := range c.Claims {
		s.domains[claim.Domain] = claim.Tag
	}
	for _, r := range c.Replies {
		s.replies[replyKey(r.Partner, r.Key)] = reply(r)
	}
	for _, r := range c.Removals {
		s.removals[r.Merchant] = r
	}
	for _, e := range c.Erasures {
		s.erasures[e.ID] = e
	}
	for _, of := range c.Suppressed {
		s.setSuppressed(of.Merchant, of.Key, of.Erasure)
	}
	for _, doc := range c.Documents {
		s.documents[documentKey(doc.Kind, doc.Merchant, doc.ID)] = doc.Content
	}
	writes, err := s.writes()
	return append(writes, used...), err
}

// AddEntries adds entries to the end of the audit log.
func (d *Data) AddEntries(entries []store.AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	writes := make([]write, len(entries))
	for i, e := range entries {
		var err error
		if writes[i], err = newWrite(inLog, auditKey(e.ID, e.At), e); err != nil {
			return err
		}
	}
	next := maps.Clone(d.sums)
	if err := d.edit(func(tx *bolt.Tx) error { return storeAll(tx, next, writes) }); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sums = next
	d.state.note(entries)
	return nil
}

// LastEntry returns the number of the last entry of the audit log; 0 when there is none.
func (d *Data) LastEntry() store.AuditID {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.state.lastEntry
}

// edit makes a change on disk that is no change of a running service: after an error, the file must be opened again.
func (d *Data) edit(change func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage(fileName, func() error { return d.db.Update(change) })
}

// RemoveUnknown notes that the events of merchants that are unknown are still to be removed, unless that is noted already.
func (d *Data) RemoveUnknown(ctx context.Context, merchants []store.MerchantID) error {
	return d.update(ctx, func(c *change) error {
		var errs []error
		for _, id := range slices.Sorted(slices.Values(merchants)) {
			_, known := d.state.merchants[id]
			_, removed := d.state.removals[id]
			if known || removed {
				continue
			}
			errs = append(errs, c.putRemoval(store.Removal{Kind: store.OfDeletion, Merchant: id, At: d.now().UTC(), State: store.ErasurePending}))
		}
		return errors.Join(errs...)
	})
}
