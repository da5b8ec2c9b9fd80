package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// AddLink implements store.Control.
func (e *engine) AddLink(ctx context.Context, partner store.PartnerID) (link store.Session, text store.SessionText, err error) {
	err = e.change(ctx, func(c *change) error {
		if err := c.hasPartner(partner); err != nil {
			return err
		}
		link, text = store.NewLink(partner, c.now)
		if err := c.addSession(link); err != nil {
			return err
		}
		return c.audit(store.AboutSession(store.LinkMade, link))
	})
	return ifDone(link, text, err)
}

// BeginSession implements store.Control.
func (e *engine) BeginSession(ctx context.Context, id store.KeyID) (s store.Session, text store.SessionText, err error) {
	if !isStorable(id) {
		return s, "", store.NotFound("key")
	}
	err = e.change(ctx, func(c *change) error {
		key, err := find[store.Key](c.ctx, c.tx, "key", "SELECT record FROM api_key WHERE id = $1", string(id))
		if err != nil {
			return err
		}
		if !key.Valid(c.now) {
			return store.NotFound("key")
		}
		s, text = store.NewSession(key, c.now)
		if err := c.addSession(s); err != nil {
			return err
		}
		return c.audit(store.AboutSession(store.SessionBegun, s))
	})
	return ifDone(s, text, err)
}

// Link implements store.Control.
func (e *engine) Link(ctx context.Context, text store.SessionText) (link store.Session, err error) {
	err = e.readFor(ctx, "console links", func(tx pgx.Tx) error { // anybody may ask
		now, err := e.timeOf(ctx, tx)
		if err == nil {
			link, err = findLink(ctx, tx, text, now)
		}
		return err
	})
	return link, err
}

// UseLink implements store.Control.
func (e *engine) UseLink(ctx context.Context, used store.SessionText) (s store.Session, text store.SessionText, err error) {
	// Anybody may send wrong links: these must not wait for their turn with all changes.
	if _, err := e.Link(ctx, used); err != nil {
		return s, "", err
	}
	err = e.change(ctx, func(c *change) error {
		link, err := findLink(c.ctx, c.tx, used, c.now)
		if err != nil {
			return err
		}
		s, text = link.Begin(c.now)
		c.deleteSession(link)
		if err := c.addSession(s); err != nil {
			return err
		}
		return c.audit(store.AboutSession(store.SessionBegun, s))
	})
	return ifDone(s, text, err)
}

// findLink returns the link with this text. KindNotFound: link.
func findLink(ctx context.Context, tx pgx.Tx, text store.SessionText, now time.Time) (store.Session, error) {
	id, err := text.ID()
	if err != nil {
		return store.Session{}, store.NotFound("link")
	}
	link, err := find[store.Session](ctx, tx, "link", "SELECT record FROM session WHERE id = $1", string(id))
	if err == nil && !text.Opens(link, now) {
		err = store.NotFound("link")
	}
	if err == nil && !link.IsOperators() {
		if _, err = partner(ctx, tx, link.Partner); store.KindOf(err) == store.KindNotFound {
			err = store.NotFound("link")
		}
	}
	if err != nil {
		return store.Session{}, err
	}
	return link, nil
}

// ifDone returns nothing but the error if there is one.
func ifDone(s store.Session, text store.SessionText, err error) (store.Session, store.SessionText, error) {
	if err != nil {
		return store.Session{}, "", err
	}
	return s, text, nil
}

// EndSession implements store.Control.
func (e *engine) EndSession(ctx context.Context, id store.SessionID) error {
	if !isStorable(id) {
		return store.NotFound("session")
	}
	return e.change(ctx, func(c *change) error {
		s, err := find[store.Session](c.ctx, c.tx, "session", "SELECT record FROM session WHERE id = $1", string(id))
		if err != nil {
			return err
		}
		if s.IsLink {
			return store.NotFound("session")
		}
		c.deleteSession(s)
		return c.audit(store.AboutSession(store.SessionEnded, s))
	})
}

// EndSessions implements store.Control.
func (e *engine) EndSessions(ctx context.Context, partner store.PartnerID) (n int, err error) {
	err = e.change(ctx, func(c *change) error {
		n = 0
		if err := c.hasPartner(partner); err != nil {
			return err
		}
		all, err := c.sessionsOf(partner)
		if err != nil {
			return err
		}
		var keys []store.Key // operators have none
		if partner != "" {
			keys, err = keysOf(c.ctx, c.tx, partner)
		}
		if err != nil {
			return err
		}
		valid := map[store.KeyID]bool{"": true} // of links
		for _, k := range keys {
			valid[k.ID] = k.Valid(c.now)
		}
		return c.inOneTrip(func() error {
			for _, s := range all {
				c.deleteSession(s)
				if !s.Valid(c.now) || !valid[s.Key] { // it has ended already
					continue
				}
				n++
				if err := c.audit(store.AboutSession(store.SessionEnded, s)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// hasPartner returns an error unless a session can be this partner's, or an operator's when the id is empty. KindNotFound: partner.
func (c *change) hasPartner(id store.PartnerID) error {
	if id == "" {
		return nil
	}
	_, err := c.partner(id)
	return err
}

// sessionsOf returns the sessions and links of a partner, or of operators, oldest first.
func (c *change) sessionsOf(id store.PartnerID) ([]store.Session, error) {
	return list[store.Session](c.ctx, c.tx, "SELECT record FROM session WHERE partner = $1 ORDER BY created, id", string(id))
}

// addSession adds a session or a link, and ends the oldest one like it when there are too many.
func (c *change) addSession(s store.Session) error {
	all, err := c.sessionsOf(s.Partner)
	if err != nil {
		return err
	}
	if oldest, ends := s.Replaces(slices.Values(all)); ends {
		c.deleteSession(oldest)
	}
	c.exec("INSERT INTO session (id, partner, created, record) VALUES ($1, $2, $3, $4)",
		string(s.ID), string(s.Partner), s.CreatedAt, c.encode(s))
	if !s.IsLink {
		c.publish(sessionSet, s)
	}
	return nil
}

// noteSeen stores when sessions were last used here.
func (e *engine) noteSeen(ctx context.Context) error {
	seen := e.Directory().SeenSessions()
	if len(seen) == 0 {
		return nil
	}
	return e.change(ctx, func(c *change) error {
		for _, s := range seen {
			done, err := c.tx.Exec(ctx, "UPDATE session SET record = $2 WHERE id = $1", string(s.ID), c.encode(s))
			if err != nil {
				return err
			}
			if done.RowsAffected() > 0 { // else it has just ended
				c.publish(sessionSet, s)
			}
		}
		return nil
	})
}

func (c *change) deleteSession(s store.Session) {
	c.exec("DELETE FROM session WHERE id = $1", string(s.ID))
	if !s.IsLink {
		c.publish(sessionRemoved, s.ID)
	}
}

// loadSessions puts the sessions, not the links, into a directory.
func loadSessions(ctx context.Context, tx pgx.Tx, d *store.Directory) error {
	all, err := list[store.Session](ctx, tx, "SELECT record FROM session")
	for _, s := range all {
		if !s.IsLink {
			d.SetSession(s)
		}
	}
	return err
}
