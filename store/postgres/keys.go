package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// IssueKey implements store.Control.
func (e *engine) IssueKey(ctx context.Context, id store.PartnerID, opt store.KeyOptions) (key store.Key, text store.APIKey, err error) {
	err = e.change(ctx, func(c *change) error {
		if _, err := c.partner(id); err != nil {
			return err
		}
		if _, before, err := c.reply(id, opt.Once); err != nil {
			return err
		} else if before {
			return store.Mismatch("was used before: its API key was shown then, and cannot be shown again. " +
				"Revoke the key that you do not have, and issue another one with a new Idempotency-Key")
		}
		if err := c.makeRoomForKey(id); err != nil {
			return err
		}
		key, text = store.NewKey(id, c.now, opt)
		c.putKey(key)
		c.putReply(id, reply{IssuedKey: key.ID}, opt.Once)
		return c.audit(store.AboutKey(store.KeyIssued, key))
	})
	if err != nil {
		return store.Key{}, "", err
	}
	return key, text, nil
}

func (c *change) putKey(k store.Key) {
	c.exec("INSERT INTO api_key (id, partner, created, record) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
		string(k.ID), string(k.Partner), k.CreatedAt, c.encode(k))
	c.publish(keySet, k)
}

func (c *change) deleteKey(id store.KeyID) {
	c.exec("DELETE FROM api_key WHERE id = $1", string(id))
	c.publish(keyRemoved, id)
}

// keysOf returns a partner's keys, oldest first.
func keysOf(ctx context.Context, tx pgx.Tx, id store.PartnerID) (keys []store.Key, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		var text []byte
		var used *time.Time
		if err := rows.Scan(&text, &used); err != nil {
			return err
		}
		k, err := decode[store.Key](text)
		if used != nil {
			k.LastUsedAt = used.UTC()
		}
		keys = append(keys, k)
		return err
	}, "SELECT record, used FROM api_key WHERE partner = $1 ORDER BY created, id", string(id))
	return keys, err
}

// makeRoomForKey bounds the number of a partner's keys. It deletes the oldest one that is not valid any more.
func (c *change) makeRoomForKey(id store.PartnerID) error {
	keys, err := keysOf(c.ctx, c.tx, id)
	if err != nil {
		return err
	}
	ended := slices.DeleteFunc(slices.Clone(keys), func(k store.Key) bool { return k.Valid(c.now) })
	if valid := len(keys) - len(ended); valid >= store.MaxKeys {
		return store.Limited("key", "cannot be issued: there are %d valid keys, which is the limit. Revoke one first", valid)
	}
	for len(ended) >= store.MaxKeys {
		c.deleteKey(ended[0].ID)
		ended = ended[1:]
	}
	return nil
}

// Keys implements store.Control.
func (e *engine) Keys(ctx context.Context, id store.PartnerID) (keys []store.Key, err error) {
	err = e.read(ctx, func(tx pgx.Tx) error {
		if _, err := partner(ctx, tx, id); err != nil {
			return err
		}
		keys, err = keysOf(ctx, tx, id)
		return err
	})
	for i, k := range keys {
		keys[i].LastUsedAt = e.lastUse(k)
	}
	return keys, err
}

// lastUse returns when a key was last used: on this node, or as other nodes have stored it.
func (e *engine) lastUse(k store.Key) time.Time {
	if here := e.Directory().LastUse(k.ID); here.After(k.LastUsedAt) {
		return here
	}
	return k.LastUsedAt
}

// RevokeKey implements store.Control.
func (e *engine) RevokeKey(ctx context.Context, id store.KeyID, evenLast bool) (k store.Key, err error) {
	if !isStorable(id) {
		return k, store.NotFound("key")
	}
	err = e.change(ctx, func(c *change) error {
		if k, err = find[store.Key](c.ctx, c.tx, "key", "SELECT record FROM api_key WHERE id = $1", string(id)); err != nil || k.RevokedAt != nil {
			return err
		}
		keys, err := keysOf(c.ctx, c.tx, k.Partner)
		if err != nil {
			return err
		}
		isOther := func(other store.Key) bool { return other.ID != id && other.Scope == store.Full && other.Valid(c.now) }
		if k.Scope == store.Full && k.Valid(c.now) && !evenLast && !slices.ContainsFunc(keys, isOther) {
			return store.Conflict("key", "is the last one that can change anything")
		}
		k.RevokedAt = &c.now
		c.putKey(k)
		return c.audit(store.AboutKey(store.KeyRevoked, k))
	})
	if err != nil {
		return store.Key{}, err
	}
	k.LastUsedAt = e.lastUse(k)
	return k, nil
}

// noteKeyUse tidies once in store.KeyUseDelay, until Close, which does it once more.
func (e *engine) noteKeyUse() {
	tick := time.NewTicker(store.KeyUseDelay)
	defer tick.Stop()
	for {
		select {
		case <-e.opened.Done():
			return
		case <-tick.C:
			if err := e.tidy(e.opened); err != nil && e.opened.Err() == nil {
				e.log.Error("it cannot be stored when API keys and sessions were last used, and old rows cannot be deleted", "error", err)
			}
		}
	}
}

// tidy stores when keys and sessions were last used here, and deletes what is too old to be needed.
func (e *engine) tidy(ctx context.Context) error {
	var ids []string
	var used []time.Time
	if err := query(ctx, e.pool, func(rows pgx.Rows) error {
		var id string
		var known *time.Time
		if err := rows.Scan(&id, &known); err != nil {
			return err
		}
		if at := e.Directory().LastUse(store.KeyID(id)); !at.IsZero() && (known == nil || at.After(*known)) {
			ids, used = append(ids, id), append(used, at)
		}
		return nil
	}, "SELECT id, used FROM api_key"); err != nil {
		return err
	}
	if len(ids) > 0 {
		if _, err := e.pool.Exec(ctx, `UPDATE api_key SET used = n.at FROM unnest($1::text[], $2::timestamptz[]) AS n(id, at)
			WHERE api_key.id = n.id AND (used IS NULL OR used < n.at)`, ids, used); err != nil {
			return err
		}
	}
	if err := e.noteSeen(ctx); err != nil {
		return err
	}
	return e.deleteOld(ctx)
}
