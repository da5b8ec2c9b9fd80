package control

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/migrate"
)

// Export returns all control data but sessions and the audit log. Damaged records, and what belongs to them, are left out.
func (d *Data) Export() *migrate.Control {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := d.state
	c := &migrate.Control{Retention: s.retention, Partners: sorted(s.partners), Tags: sorted(s.tags), Removals: sorted(s.removals), Erasures: sorted(s.erasures)}
	for i := range c.Tags {
		c.Tags[i].Host, c.Tags[i].ClaimLost = "", false
	}
	for _, k := range sorted(s.keys) {
		issued := migrate.Issued{Key: k}
		if at := d.dir.LastUse(k.ID); !at.IsZero() {
			issued.LastUse = at.UnixMicro()
		}
		issued.LastUsedAt = issued.Key.LastUsedAt
		c.Keys = append(c.Keys, issued)
	}
	for _, m := range sorted(s.merchants) {
		c.Merchants = append(c.Merchants, migrate.Merchant{Merchant: m.Merchant, Ordinal: m.Ordinal})
	}
	for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
		c.Claims = append(c.Claims, migrate.Claim{Domain: domain, Tag: s.domains[domain]})
	}
	for _, r := range sorted(s.replies) {
		c.Replies = append(c.Replies, migrate.Reply(r))
	}
	for _, m := range slices.Sorted(maps.Keys(s.suppressed)) {
		for k, by := range s.suppressed[m] {
			c.Suppressed = append(c.Suppressed, migrate.Suppressed{Merchant: m, Key: k, Erasure: by})
		}
	}
	slices.SortFunc(c.Suppressed, func(a, b migrate.Suppressed) int {
		return cmp.Or(cmp.Compare(a.Merchant, b.Merchant), slices.Compare(a.Key[:], b.Key[:]))
	})
	return c
}

// sorted returns the values of a map in the order of their keys; nil when there is none.
func sorted[K cmp.Ordered, V any](m map[K]V) (all []V) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
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
