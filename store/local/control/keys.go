package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"mtagd/store"
)

// IssueKey implements store.Control.
func (d *Data) IssueKey(ctx context.Context, id store.PartnerID, opt store.KeyOptions) (store.Key, store.APIKey, error) {
	now := d.now().UTC()
	key, text := store.NewKey(id, now, opt)
	err := d.update(ctx, func(c *change) error {
		if _, err := d.state.partner(id); err != nil {
			return err
		}
		if _, before, err := d.state.reply(id, opt.Once, now); err != nil {
			return err
		} else if before {
			return store.Mismatch("was used before: its API key was shown then, and cannot be shown again. " +
				"Revoke the key that you do not have, and issue another one with a new Idempotency-Key")
		}
		if err := c.makeRoomForKey(id, now); err != nil {
			return err
		}
		return errors.Join(
			c.putKey(key),
			c.putReply(reply{Partner: id, IssuedKey: key.ID}, opt.Once, now),
			c.audit(store.AboutKey(store.KeyIssued, key)),
		)
	})
	if err != nil {
		return store.Key{}, "", err
	}
	return key, text, nil
}

// makeRoomForKey bounds the number of a partner's keys. It deletes the oldest one that is not valid any more.
func (c *change) makeRoomForKey(id store.PartnerID, now time.Time) error {
	keys := c.d.state.keysOfPartner(id)
	ended := slices.DeleteFunc(slices.Clone(keys), func(k store.Key) bool { return k.Valid(now) })
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
	c.delete(inKeys, string(k.ID), func(s *state) {
		s.removeKey(k)
		c.d.dir.RemoveKey(k.ID)
	})
	if _, used := c.d.stored[k.ID]; used {
		c.delete(inUses, string(k.ID), func(*state) { delete(c.d.stored, k.ID) })
	}
}

// keysOfPartner returns a partner's keys, oldest first.
func (s *state) keysOfPartner(id store.PartnerID) []store.Key {
	keys := make([]store.Key, 0, len(s.keysOf[id]))
	for _, id := range s.keysOf[id] {
		keys = append(keys, s.keys[id])
	}
	slices.SortFunc(keys, func(a, b store.Key) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return keys
}

// Keys implements store.Control.
func (d *Data) Keys(ctx context.Context, id store.PartnerID) (keys []store.Key, err error) {
	err = d.view(ctx, func(s *state) error {
		if _, err := s.partner(id); err != nil {
			return err
		}
		keys = s.keysOfPartner(id)
		return nil
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
		now := d.now().UTC()
		isOther := func(other store.Key) bool { return other.ID != id && other.Scope == store.Full && other.Valid(now) }
		if k.Scope == store.Full && k.Valid(now) && !evenLast && !slices.ContainsFunc(d.state.keysOfPartner(k.Partner), isOther) {
			return store.Conflict("key", "is the last one that can change anything")
		}
		k.RevokedAt = &now
		return errors.Join(c.putKey(k), c.audit(store.AboutKey(store.KeyRevoked, k)))
	})
	if err != nil {
		return store.Key{}, err
	}
	k.LastUsedAt = d.dir.LastUse(id)
	return k, nil
}

// Tidy stores when keys and sessions were last used, and deletes replies that are too old to be given again, and sessions that have ended. The engine calls it once in
// store.KeyUseDelay, so that no request has to write.
func (d *Data) Tidy(ctx context.Context) error {
	return d.update(ctx, func(c *change) error {
		c.dropReplies(d.now())
		c.dropSessions(d.now())
		for _, s := range d.dir.SeenSessions() {
			if !s.Valid(d.now()) {
				continue // it was just dropped
			}
			if err := c.putSession(s); err != nil {
				return err
			}
		}
		if d.state.allReadable(inUses) != nil {
			return nil // a damaged record cannot be replaced
		}
		for id := range d.state.keys {
			at := d.dir.LastUse(id)
			if at.IsZero() || !at.After(d.stored[id]) {
				continue
			}
			text, err := at.MarshalText()
			if err != nil {
				return err
			}
			c.writes = append(c.writes, write{inUses, string(id), text})
			c.publish = append(c.publish, func() { d.stored[id] = at })
		}
		return nil
	})
}
