package console

import (
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi"
	"mtagd/store"
)

// maxSessions is how many sessions a list has, the newest first.
const maxSessions = 200

// signedInJSON is the JSON of a session in a list. It was begun with a key or with a link.
type signedInJSON struct {
	ID        store.SessionID `json:"sessionId"`
	Current   bool            `json:"current"` // it is that of the request
	BegunAt   time.Time       `json:"begunAt"`
	SeenAt    time.Time       `json:"seenAt"` // of its last request; up to an hour too early if another machine has answered that, or after a restart
	ExpiresAt time.Time       `json:"expiresAt"`
	Key       store.KeyID     `json:"keyId,omitempty"`
	KeyName   string          `json:"keyName,omitempty"`
	Link      store.SessionID `json:"linkId,omitempty"`
}

// forPartners returns a handler that only sessions of partners reach. Those of keys that can only read reach it if mayRead
// is set.
func (c *Console) forPartners(mayRead bool, handle func(*fasthttp.RequestCtx, store.Session) error) func(*fasthttp.RequestCtx) error {
	return func(r *fasthttp.RequestCtx) error {
		s, key, err := c.authorize(r, false)
		switch {
		case err != nil:
			return err
		case key.Scope != store.Full && !mayRead:
			return refusal{fasthttp.StatusForbidden, "Access denied: this session can read, and end itself, but no other"}
		}
		partnerapi.SetPartner(r, caller(s))
		return handle(r, s)
	}
}

// listSessions answers with the sessions of the partner.
func (c *Console) listSessions(r *fasthttp.RequestCtx, current store.Session) error {
	all := c.Engine.Directory().Sessions(current.Partner, c.Now())
	view := struct {
		Sessions []signedInJSON `json:"sessions"`
		Total    int            `json:"total"`
	}{[]signedInJSON{}, len(all)}
	for _, s := range all[:min(len(all), maxSessions)] {
		key, _ := c.Engine.Directory().Key(s.Key)
		view.Sessions = append(view.Sessions, signedInJSON{s.ID, s.ID == current.ID, s.CreatedAt, s.SeenAt, s.ExpiresAt, s.Key, key.Name, s.Link})
	}
	return partnerapi.Reply(r, fasthttp.StatusOK, view)
}

// endSession ends the session of the partner that the path names.
func (c *Console) endSession(r *fasthttp.RequestCtx, by store.Session) error {
	id := store.SessionID(strings.TrimPrefix(string(r.Path()), sessionPrefix))
	s, _, ok := c.Engine.Directory().Session(id, c.Now())
	if !ok || s.Partner != by.Partner {
		return refusal{fasthttp.StatusNotFound, "Session not found"}
	}
	return ended(r, c.Engine.EndSession(as(by, r), id))
}

// endSessions ends all sessions of the partner, that of the request too, and the links that were not used.
func (c *Console) endSessions(r *fasthttp.RequestCtx, by store.Session) error {
	_, err := c.Engine.EndSessions(as(by, r), by.Partner)
	return ended(r, err)
}

// ended answers after sessions were ended. It is no error if they have just ended.
func ended(r *fasthttp.RequestCtx, err error) error {
	if err != nil && store.KindOf(err) != store.KindNotFound {
		return err
	}
	r.SetStatusCode(fasthttp.StatusNoContent)
	return nil
}
