package console

import (
	"context"
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/edge/requestid"
	"mtagd/partnerapi"
	"mtagd/store"
)

// maxSessions is how many sessions a list has, the newest first.
const maxSessions = 200

// signedInJSON is the JSON of a session in a list. It was begun with a key or with a link.
type signedInJSON struct {
	ID        store.SessionID `json:"sessionId"`
	Current   bool            `json:"current"` // it is that of the request
	BegunAt   string          `json:"begunAt"`
	SeenAt    string          `json:"seenAt"` // of its last request; up to an hour too early if another machine has answered that, or after a restart
	ExpiresAt string          `json:"expiresAt"`
	Key       store.KeyID     `json:"keyId,omitempty"`
	KeyName   string          `json:"keyName,omitempty"`
	Link      store.SessionID `json:"linkId,omitempty"`
}

// forPartners returns a handler that only sessions of partners reach. Those of keys that can only read reach it if mayRead is set.
func (c *Console) forPartners(mayRead bool, handle func(*fasthttp.RequestCtx, store.Session)) fasthttp.RequestHandler {
	return func(r *fasthttp.RequestCtx) {
		s, key, ok := c.current(r)
		switch {
		case !ok:
		case !c.cookie.MayUse(r):
			partnerapi.WriteError(r, fasthttp.StatusUnauthorized, notAuthenticated)
		case s.IsOperators():
			partnerapi.WriteError(r, fasthttp.StatusForbidden, "Access denied")
		case key.Scope != store.Full && !mayRead:
			partnerapi.WriteError(r, fasthttp.StatusForbidden, "Access denied: this session can read, and end itself, but no other")
		default:
			partnerapi.SetPartner(r, s.Partner)
			handle(r, s)
		}
	}
}

// listSessions answers with the sessions of the partner.
func (c *Console) listSessions(r *fasthttp.RequestCtx, current store.Session) {
	all := c.Engine.Directory().Sessions(current.Partner, c.Now())
	view := struct {
		Sessions []signedInJSON `json:"sessions"`
		Total    int            `json:"total"`
	}{[]signedInJSON{}, len(all)}
	for _, s := range all[:min(len(all), maxSessions)] {
		key, _ := c.Engine.Directory().Key(s.Key)
		view.Sessions = append(view.Sessions, signedInJSON{s.ID, s.ID == current.ID, store.FormatTime(s.CreatedAt), store.FormatTime(s.SeenAt),
			store.FormatTime(s.ExpiresAt),
			s.Key, key.Name, s.Link})
	}
	c.reply(r, view)
}

// endSession ends the session of the partner that the path names.
func (c *Console) endSession(r *fasthttp.RequestCtx, by store.Session) {
	id := store.SessionID(strings.TrimPrefix(string(r.Path()), sessionPrefix))
	s, _, ok := c.Engine.Directory().Session(id, c.Now())
	if !ok || s.Partner != by.Partner {
		partnerapi.WriteError(r, fasthttp.StatusNotFound, "Session not found")
		return
	}
	c.end(r, by, func(ctx context.Context) error { return c.Engine.EndSession(ctx, id) })
}

// endSessions ends all sessions of the partner, that of the request too, and the links that were not used.
func (c *Console) endSessions(r *fasthttp.RequestCtx, by store.Session) {
	c.end(r, by, func(ctx context.Context) error {
		_, err := c.Engine.EndSessions(ctx, by.Partner)
		return err
	})
}

// end ends sessions on behalf of one. It is no error if they have just ended.
func (c *Console) end(r *fasthttp.RequestCtx, by store.Session, end func(context.Context) error) {
	if err := end(as(by, r)); err != nil && store.KindOf(err) != store.KindNotFound {
		c.fail(r, err)
		return
	}
	c.Log.Info("console: sessions ended", "partner", by.Partner, "by_session", by.ID, "path", string(r.Path()), "request_id", requestid.Of(r))
	r.SetStatusCode(fasthttp.StatusNoContent)
}
