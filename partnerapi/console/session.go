package console

import (
	"bytes"
	"context"
	"log/slog"
	"time"

	"github.com/goccy/go-json/v2"
	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/edge/requestid"
	"mtagd/partnerapi"
	"mtagd/store"
)

// sessionJSON says who is signed in, or who a link signs in.
type sessionJSON struct {
	Role      string       `json:"role"` // partner or operator
	Partner   *partnerJSON `json:"partner,omitempty"`
	Scope     string       `json:"scope"`                 // full or read-only
	Personal  bool         `json:"personalData,omitzero"` // read-only, but may ask what is held of a person
	ExpiresAt string       `json:"expiresAt"`
}

type partnerJSON struct {
	ID   store.PartnerID `json:"id"`
	Name string          `json:"name"`
}

// show returns what the page needs to know of a session, or of a link, and its key. A session of operators can only read.
func (c *Console) show(s store.Session, key store.Key) sessionJSON {
	shown := sessionJSON{Role: "operator", Scope: "read-only", ExpiresAt: store.FormatTime(s.ExpiresAt)}
	if s.IsOperators() {
		return shown
	}
	partner, _ := c.Engine.Directory().Partner(s.Partner)
	shown.Role, shown.Partner = "partner", &partnerJSON{s.Partner, partner.Name}
	if shown.Personal = key.Personal; key.Scope == store.Full {
		shown.Scope = "full"
	}
	return shown
}

// maxSignIn is the largest body of a request to sign in, in bytes.
const maxSignIn = 4 << 10

const (
	notAuthenticated = "Authentication required"
	tooManyWrong     = "Too many wrong keys or links"
	otherSite        = "Access denied: the request comes from another site"
)

// signIn begins a session with an API key or a link.
func (c *Console) signIn(r *fasthttp.RequestCtx) {
	switch in, ok := c.credentials(r); {
	case !ok:
	case in.Link != "":
		c.useLink(r, in.Link)
	default:
		c.useKey(r, in.APIKey)
	}
}

// showLink answers whom a link signs in, and leaves it as it is: the page asks before it uses one. Otherwise whoever sends a link
// could put another one into a session of his own, unnoticed, and a program that looks at links in mails would use it up.
func (c *Console) showLink(r *fasthttp.RequestCtx) {
	in, ok := c.credentials(r)
	if !ok {
		return
	}
	if in.Link == "" {
		partnerapi.WriteError(r, fasthttp.StatusBadRequest, "Invalid request parameters: link is required")
		return
	}
	if !c.mayAsk(r, in.Link) {
		return
	}
	if link, err := c.Engine.Link(context.Background(), in.Link); err == nil {
		c.reply(r, c.show(link, store.Key{}))
	} else {
		c.failLink(r, err)
	}
}

// credentials returns those of a request. If it has none, or comes from another site, it answers, and returns false.
func (c *Console) credentials(r *fasthttp.RequestCtx) (in credentials, ok bool) {
	if !c.cookie.IsSameOrigin(r) {
		partnerapi.WriteError(r, fasthttp.StatusForbidden, otherSite)
		return in, false
	}
	if max(r.Request.Header.ContentLength(), len(r.PostBody())) > maxSignIn {
		partnerapi.WriteError(r, fasthttp.StatusRequestEntityTooLarge, "Request body is larger than 4 KiB")
		return in, false
	}
	if r.Request.Header.ContentLength() < 0 && len(r.PostBody()) == 0 { // the front door (package edge) does not read such a body
		partnerapi.WriteError(r, fasthttp.StatusLengthRequired, "Content-Length is required")
		return in, false
	}
	in, err := readCredentials(r.PostBody())
	if err != nil {
		partnerapi.WriteError(r, fasthttp.StatusBadRequest, "Invalid request parameters: "+err.Error())
		return in, false
	}
	return in, true
}

type credentials struct {
	APIKey store.APIKey      `json:"apiKey"`
	Link   store.SessionText `json:"link"`
}

// readCredentials reads the body of a request to sign in. Its errors contain nothing of the body.
func readCredentials(body []byte) (in credentials, err error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 || body[0] != '{' || json.Unmarshal(body, &in) != nil {
		return in, store.Invalid("body", `must be a JSON object with the string "apiKey" or "link"`)
	}
	switch {
	case in.APIKey == "" && in.Link == "":
		return in, store.Invalid("apiKey", "is required, or a link")
	case in.APIKey != "" && in.Link != "":
		return in, store.Invalid("link", "must not be there together with apiKey")
	}
	return in, nil
}

func (c *Console) useKey(r *fasthttp.RequestCtx, text store.APIKey) {
	id, _ := text.ID() // empty when it is no key
	_, key, ok := c.Engine.Directory().Authenticate(text, c.Now())
	if !ok {
		if id != "" && c.Engine.Directory().IsDamaged(string(id)) {
			c.fail(r, store.Unavailable("the record of the API key is damaged"))
			return
		}
		c.refuse(r, string(id))
		return
	}
	if !c.mayBegin(r, key) {
		return
	}
	s, session, err := c.Engine.BeginSession(as(store.Session{Key: key.ID}, r), key.ID)
	c.begun(r, s, key, session, err)
}

func (c *Console) useLink(r *fasthttp.RequestCtx, text store.SessionText) {
	if !c.mayAsk(r, text) {
		return
	}
	id, _ := text.ID()
	s, session, err := c.Engine.UseLink(as(store.Session{ID: id, IsLink: true}, r), text)
	if err != nil {
		c.failLink(r, err)
		return
	}
	c.begun(r, s, store.Key{}, session, nil)
}

// mayAsk reports whether the engine may be asked for a link now. If not, it answers.
func (c *Console) mayAsk(r *fasthttp.RequestCtx, text store.SessionText) bool {
	if _, err := text.ID(); err != nil {
		c.refuse(r, "")
		return false
	}
	if wait := c.attempts.link(clientaddr.Of(r.RemoteAddr()), c.Now()); wait > 0 {
		c.Refusals.Count(limit.Authentication, limit.Tenant{})
		tooMany(r, wait, tooManyWrong)
		return false
	}
	return true
}

// failLink answers that there is no such link, or with a fault of the service.
func (c *Console) failLink(r *fasthttp.RequestCtx, err error) {
	if store.KindOf(err) != store.KindNotFound {
		c.fail(r, err)
		return
	}
	c.Refusals.Count(limit.Authentication, limit.Tenant{})
	partnerapi.WriteError(r, fasthttp.StatusUnauthorized, notAuthenticated)
}

// mayBegin reports whether a key may begin a session now. If not, it answers.
func (c *Console) mayBegin(r *fasthttp.RequestCtx, key store.Key) bool {
	if wait := c.attempts.right(key.ID, c.Now()); wait > 0 {
		c.Refusals.Count(limit.PartnerWrites, limit.Partner(key.Partner))
		tooMany(r, wait, "Too many sign-ins")
		return false
	}
	return true
}

// begun answers with a new session, or with the error why there is none.
func (c *Console) begun(r *fasthttp.RequestCtx, s store.Session, key store.Key, text store.SessionText, err error) {
	switch {
	case store.KindOf(err) == store.KindNotFound:
		c.refuse(r, "")
	case err != nil:
		c.fail(r, err)
	default:
		c.endReplaced(r, s)
		partnerapi.SetPartner(r, caller(s))
		c.cookie.Set(r, text, s.ExpiresAt.Sub(c.Now()))
		c.Log.Info("console: signed in", "partner", s.Partner, "key_id", s.Key, "link_id", s.Link, "session", s.ID, "request_id", requestid.Of(r))
		c.reply(r, c.show(s, key))
	}
}

// endReplaced ends the session of the request's cookie, which a new one replaces: nobody could end it any more.
func (c *Console) endReplaced(r *fasthttp.RequestCtx, by store.Session) {
	old, _, ok := c.cookie.Session(r, c.Engine.Directory(), c.Now())
	if !ok || old.ID == by.ID {
		return
	}
	if err := c.Engine.EndSession(as(old, r), old.ID); err != nil && store.KindOf(err) != store.KindNotFound {
		c.Log.Warn("console: a session that was replaced cannot be ended", "session", old.ID, "request_id", requestid.Of(r), "error", err)
	}
}

// as returns a context in which a session, or a link, makes the changes of a request.
func as(s store.Session, r *fasthttp.RequestCtx) context.Context {
	actor := s.Actor()
	actor.Request = requestid.Of(r)
	return store.WithActor(context.Background(), actor)
}

// caller is what PartnerOf returns for a session.
func caller(s store.Session) store.PartnerID {
	if s.IsOperators() {
		return partnerapi.Operator
	}
	return s.Partner
}

// refuse answers a request with a wrong key, or with a text that is no link. id is that of the key, if it has one.
func (c *Console) refuse(r *fasthttp.RequestCtx, id string) {
	c.Refusals.Count(limit.Authentication, limit.Tenant{})
	if wait := c.attempts.wrong(clientaddr.Of(r.RemoteAddr()), id, c.Now()); wait > 0 {
		tooMany(r, wait, tooManyWrong)
		return
	}
	partnerapi.WriteError(r, fasthttp.StatusUnauthorized, notAuthenticated)
}

// current returns the session of a request. If there is none, or the request comes from another site, it answers, and returns false.
func (c *Console) current(r *fasthttp.RequestCtx) (store.Session, store.Key, bool) {
	s, key, ok := c.cookie.Session(r, c.Engine.Directory(), c.Now())
	if !ok || !c.cookie.IsSameOrigin(r) {
		partnerapi.WriteError(r, fasthttp.StatusUnauthorized, notAuthenticated)
		return s, key, false
	}
	return s, key, true
}

// showSession answers who is signed in.
func (c *Console) showSession(r *fasthttp.RequestCtx) {
	if s, key, ok := c.current(r); ok {
		c.reply(r, c.show(s, key))
	}
}

// signOut ends the session of a request. It is no error if that has ended already.
func (c *Console) signOut(r *fasthttp.RequestCtx) {
	if !c.cookie.IsSameOrigin(r) {
		partnerapi.WriteError(r, fasthttp.StatusForbidden, otherSite)
		return
	}
	if s, _, ok := c.cookie.Session(r, c.Engine.Directory(), c.Now()); ok {
		err := c.Engine.EndSession(as(s, r), s.ID)
		if err != nil && store.KindOf(err) != store.KindNotFound { // else it has just ended
			c.cookie.Clear(r) // at least this browser forgets it
			c.fail(r, err)
			return
		}
		partnerapi.SetPartner(r, caller(s))
		c.Log.Info("console: signed out", "partner", s.Partner, "session", s.ID, "request_id", requestid.Of(r))
	}
	c.cookie.Clear(r)
	r.SetStatusCode(fasthttp.StatusNoContent)
}

// reply answers with JSON.
func (c *Console) reply(r *fasthttp.RequestCtx, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		c.fail(r, err)
		return
	}
	r.SetContentType("application/json")
	r.SetBody(body)
}

// fail answers with a fault of the service, and logs it.
func (c *Console) fail(r *fasthttp.RequestCtx, err error) {
	status, level := fasthttp.StatusInternalServerError, slog.LevelError
	if kind := store.KindOf(err); kind == store.KindUnavailable || kind == store.KindUncertain {
		status, level = fasthttp.StatusServiceUnavailable, slog.LevelWarn
	}
	c.Log.Log(context.Background(), level, "console request failed", "path", string(r.Path()), "status", status, "request_id", requestid.Of(r),
		"partner", partnerapi.PartnerOf(r), "error", err)
	partnerapi.WriteError(r, status, "Unable to process request")
}

func tooMany(r *fasthttp.RequestCtx, wait time.Duration, what string) {
	seconds := limit.RetryAfter(wait)
	r.Response.Header.Set(fasthttp.HeaderRetryAfter, seconds)
	partnerapi.WriteError(r, fasthttp.StatusTooManyRequests, what+". Please try again in "+seconds+" s")
}
