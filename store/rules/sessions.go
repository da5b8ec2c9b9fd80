package rules

import (
	"context"
	"maps"
	"time"

	"mtagd/store"
)

// AddLink implements store.Control.
func (d *Data) AddLink(ctx context.Context, partner store.PartnerID) (store.Session, store.SessionText, error) {
	var link store.Session
	var text store.SessionText
	err := d.update(ctx, func(c *change) error {
		if err := d.state.hasPartner(partner); err != nil {
			return err
		}
		link, text = store.NewLink(partner, c.now)
		c.addSession(link, store.LinkMade)
		return nil
	})
	return link, text, err
}

// BeginSession implements store.Control.
func (d *Data) BeginSession(ctx context.Context, id store.KeyID) (s store.Session, text store.SessionText, err error) {
	err = d.update(ctx, func(c *change) error {
		key, err := d.state.key(id)
		if err != nil {
			return err
		}
		if !key.Valid(c.now) {
			return store.NotFound("key")
		}
		s, text = store.NewSession(key, c.now)
		c.addSession(s, store.SessionBegun)
		return nil
	})
	return s, text, err
}

// Link implements store.Control.
func (d *Data) Link(ctx context.Context, text store.SessionText) (store.Session, error) {
	ctx = store.WithPartner(ctx, "console links") // anybody may ask: these calls take turns with partners, as one of them
	return viewed(ctx, d, func(s *State, now time.Time) (store.Session, error) { return s.link(text, now) })
}

// link returns the link with this text. KindNotFound: link.
func (s *State) link(text store.SessionText, now time.Time) (store.Session, error) {
	id, err := text.ID()
	link := s.sessions[id]
	if err != nil || !text.Opens(link, now) {
		return store.Session{}, store.NotFound("link")
	}
	err = s.hasPartner(link.Partner)
	if store.KindOf(err) == store.KindNotFound {
		err = store.NotFound("link")
	}
	return link, err
}

// UseLink implements store.Control. The link goes in the transaction that begins the session, so that two calls cannot both
// use it.
func (d *Data) UseLink(ctx context.Context, used store.SessionText) (s store.Session, text store.SessionText, err error) {
	if _, err := d.Link(ctx, used); err != nil { // so that wrong links do not queue with all changes
		return store.Session{}, "", err
	}
	err = d.update(ctx, func(c *change) error {
		link, err := d.state.link(used, c.now)
		if err != nil {
			return err
		}
		s, text = link.Begin(c.now)
		c.delete(Sessions, string(link.ID))
		c.addSession(s, store.SessionBegun)
		return nil
	})
	return s, text, err
}

// EndSession implements store.Control.
func (d *Data) EndSession(ctx context.Context, id store.SessionID) error {
	return d.update(ctx, func(c *change) error {
		s, err := find(d.state.sessions, id, "session")
		if err != nil {
			return err
		}
		if s.IsLink {
			return store.NotFound("session")
		}
		c.delete(Sessions, string(s.ID))
		c.audit(store.AboutSession(store.SessionEnded, s))
		return nil
	})
}

// EndSessions implements store.Control.
func (d *Data) EndSessions(ctx context.Context, partner store.PartnerID) (n int, err error) {
	err = d.update(ctx, func(c *change) error {
		if err := d.state.hasPartner(partner); err != nil {
			return err
		}
		for _, s := range d.state.sessions {
			if s.Partner != partner {
				continue
			}
			c.delete(Sessions, string(s.ID))
			_, _, valid := d.dir.Session(s.ID, c.now)
			if s.IsLink {
				valid = s.Valid(c.now)
			}
			if !valid { // it has ended already
				continue
			}
			n++
			c.audit(store.AboutSession(store.SessionEnded, s))
		}
		return nil
	})
	return n, err
}

// hasPartner returns an error unless a session can be this partner's, or an operator's when the id is empty. KindNotFound:
// partner.
func (s *State) hasPartner(id store.PartnerID) error {
	if id == "" {
		return nil
	}
	_, err := s.partner(id)
	return err
}

// addSession adds a session or a link, and ends the oldest one like it when there are too many.
func (c *change) addSession(s store.Session, done store.AuditAction) {
	if oldest, ends := s.Replaces(maps.Values(c.d.state.sessions)); ends {
		c.delete(Sessions, string(oldest.ID))
	}
	c.put(Sessions, string(s.ID), s)
	c.audit(store.AboutSession(done, s))
}

// noteSeen stores when sessions were last used here.
func (c *change) noteSeen() {
	for _, s := range c.d.dir.SeenSessions() {
		if c.now.Before(s.ExpiresAt) { // else it is dropped
			c.put(Sessions, string(s.ID), s)
		}
	}
}

// dropSessions deletes the sessions and links whose time is over. Those of keys and partners that are gone have ended
// already, and stay until then.
func (c *change) dropSessions() {
	for _, s := range c.d.state.sessions {
		if !c.now.Before(s.ExpiresAt) {
			c.delete(Sessions, string(s.ID))
		}
	}
}
