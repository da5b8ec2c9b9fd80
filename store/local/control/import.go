package control

import (
	"maps"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/migrate"
)

// Import fills new control data, which has nothing but the audit log and the directory's id, in one transaction. It reads what it has
// written again, and checks it.
func (d *Data) Import(c *migrate.Control) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	writes, err := writesOf(c, d.state.id)
	if err != nil {
		return err
	}
	next := maps.Clone(d.sums)
	if err := d.edit(func(tx *bolt.Tx) error { return storeAll(tx, next, writes) }); err != nil {
		return err
	}
	if err := d.db.Close(); err != nil {
		return err
	}
	return d.open()
}

// writesOf returns the records of control data, for the directory with this id.
func writesOf(c *migrate.Control, id string) ([]write, error) {
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

// edit makes a change on disk that is no change of a running service: after an error, the file must be opened again.
func (d *Data) edit(change func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage(fileName, func() error { return d.db.Update(change) })
}
