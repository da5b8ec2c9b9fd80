package rules

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mtagd/store"
)

// IssueKey implements store.Control.
func (d *Data) IssueKey(ctx context.Context, id store.PartnerID, opt store.KeyOptions) (store.Key, store.APIKey, error) {
	var key store.Key
	var text store.APIKey
	err := d.update(ctx, func(c *change) error {
		key, text = store.NewKey(id, c.now, opt)
		if _, err := d.state.partner(id); err != nil {
			return err
		}
		if _, before, err := d.state.reply(id, opt.Once, c.now); err != nil {
			return err
		} else if before {
			return store.Mismatch("was used before: its API key was shown then, and cannot be shown again. " +
				"Revoke the key that you do not have, and issue another one with a new Idempotency-Key")
		}
		if err := c.makeRoomForKey(id); err != nil {
			return err
		}
		c.put(Keys, string(key.ID), key)
		c.putReply(reply{Partner: id, IssuedKey: key.ID}, opt.Once)
		c.audit(store.AboutKey(store.KeyIssued, key))
		return nil
	})
	return key, text, err
}

// makeRoomForKey bounds the number of a partner's keys. It deletes the oldest one that is not valid any more.
func (c *change) makeRoomForKey(id store.PartnerID) error {
	keys := c.d.state.keysOfPartner(id)
	ended := slices.DeleteFunc(slices.Clone(keys), func(k store.Key) bool { return k.Valid(c.now) })
	if valid := len(keys) - len(ended); valid >= store.MaxKeys {
		return store.Limited("key", "cannot be issued: there are %d valid keys, which is the limit. Revoke one first", valid)
	}
	for len(ended) >= store.MaxKeys {
		c.deleteKey(ended[0])
		ended = ended[1:]
	}
	return nil
}

func (c *change) deleteKey(k store.Key) {
	c.delete(Keys, string(k.ID))
	if _, used := c.d.state.uses[k.ID]; used {
		c.delete(Uses, string(k.ID))
	}
}

// keysOfPartner returns a partner's keys, oldest first.
func (s *State) keysOfPartner(id store.PartnerID) []store.Key {
	keys := make([]store.Key, 0, len(s.keysOf[id]))
	for _, id := range s.keysOf[id] {
		keys = append(keys, s.keys[id])
	}
	store.Sort(keys, func(a, b store.Key) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return keys
}

// Keys implements store.Control.
func (d *Data) Keys(ctx context.Context, id store.PartnerID) ([]store.Key, error) {
	keys, err := viewed(ctx, d, func(s *State, _ time.Time) ([]store.Key, error) {
		_, err := s.partner(id)
		return s.keysOfPartner(id), err
	})
	for i := range keys {
		keys[i].LastUsedAt = d.dir.LastUse(keys[i].ID)
	}
	return keys, err
}

// RevokeKey implements store.Control.
func (d *Data) RevokeKey(ctx context.Context, id store.KeyID, evenLast bool) (k store.Key, err error) {
	err = d.update(ctx, func(c *change) error {
		if k, err = d.state.key(id); err != nil || k.RevokedAt != nil {
			return err
		}
		isOther := func(other store.Key) bool { return other.ID != id && other.Scope == store.Full && other.Valid(c.now) }
		if k.Scope == store.Full && k.Valid(c.now) && !evenLast && !slices.ContainsFunc(d.state.keysOfPartner(k.Partner), isOther) {
			return store.Conflict("key", "is the last one that can change anything")
		}
		k.RevokedAt = &c.now
		c.put(Keys, string(k.ID), k)
		c.audit(store.AboutKey(store.KeyRevoked, k))
		return nil
	})
	k.LastUsedAt = d.dir.LastUse(id)
	return k, err
}

// noteUses stores when keys were last used here.
func (c *change) noteUses() error {
	for id := range c.d.state.keys {
		at := c.d.dir.LastUse(id)
		if at.IsZero() || !at.After(c.d.state.uses[id]) {
			continue
		}
		text, err := at.MarshalText()
		if err != nil {
			return err
		}
		c.write(Uses, string(id), text)
	}
	return nil
}
