package console

import (
	"bytes"
	"context"
	"log/slog"
	"time"

	"github.com/goccy/go-json/v2"
	"github.com/valyala/fasthttp"

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
	ExpiresAt time.Time    `json:"expiresAt"`
}

type partnerJSON struct {
	ID   store.PartnerID `json:"id"`
	Name string          `json:"name"`
}

// show returns what the page needs to know of a session, or of a link, and its key. A session of operators can only read.
func (c *Console) show(s store.Session, key store.Key) sessionJSON {
	shown := sessionJSON{Role: "operator", Scope: "read-only", ExpiresAt: s.ExpiresAt}
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

// refusal is an error of a request, which the answer has as it is.
type refusal struct {
	status  int
	message string
}

func (r refusal) Error() string { return r.message }

// tooMany is the error of requests that come too fast.
type tooMany struct {
	wait time.Duration
	what string
}

func (t tooMany) Error() string { return t.what }

var (
	unauthenticated = refusal{fasthttp.StatusUnauthorized, "Authentication required"}
	otherSite       = refusal{fasthttp.StatusForbidden, "Access denied: the request comes from another site"}
)

// signIn begins a session with an API key or a link.
func (c *Console) signIn(r *fasthttp.RequestCtx) error {
	in, err := c.credentials(r)
	switch {
	case err != nil:
		return err
	case in.Link != "":
		return c.useLink(r, in.Link)
	}
	return c.useKey(r, in.APIKey)
}

// showLink answers whom a link signs in, and does not use it up: the page asks first. Otherwise the sender of a link could
// sign the recipient in as himself, unnoticed, and a program that opens links in mails would use it up.
func (c *Console) showLink(r *fasthttp.RequestCtx) error {
	in, err := c.credentials(r)
	if err != nil {
		return err
	}
	if in.Link == "" {
		return store.Invalid("link", "is required")
	}
	if err := c.mayAsk(r, in.Link); err != nil {
		return err
	}
	link, err := c.Engine.Link(context.Background(), in.Link)
	if err != nil {
		return c.noLink(err)
	}
	return partnerapi.Reply(r, fasthttp.StatusOK, c.show(link, store.Key{}))
}

// credentials returns those of a request. The error says that it has none, or comes from another site.
func (c *Console) credentials(r *fasthttp.RequestCtx) (in credentials, err error) {
	length := r.Request.Header.ContentLength()
	switch {
	case !c.cookie.IsSameOrigin(r):
		return in, otherSite
	case max(length, len(r.PostBody())) > maxSignIn:
		return in, refusal{fasthttp.StatusRequestEntityTooLarge, "Request body is larger than 4 KiB"}
	case length < 0 && len(r.PostBody()) == 0: // the front door (package edge) does not read such a body
		return in, refusal{fasthttp.StatusLengthRequired, "Content-Length is required"}
	}
	return readCredentials(r.PostBody())
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

func (c *Console) useKey(r *fasthttp.RequestCtx, text store.APIKey) error {
	id, _ := text.ID() // empty when it is no key
	_, key, ok := c.Engine.Directory().Authenticate(text, c.Now())
	if !ok {
		return c.refuse(r, string(id))
	}
	if wait := c.ofKeys.TakeOne(kindBegin, string(key.ID), beginRate, c.Now()); wait > 0 {
		c.Refusals.Count(limit.PartnerWrites, limit.Partner(key.Partner))
		return tooMany{wait, "Too many sign-ins"}
	}
	s, session, err := c.Engine.BeginSession(as(store.Session{Key: key.ID}, r), key.ID)
	if store.KindOf(err) == store.KindNotFound { // since a moment ago
		return c.refuse(r, "")
	}
	if err != nil {
		return err
	}
	return c.begun(r, s, key, session)
}

func (c *Console) useLink(r *fasthttp.RequestCtx, text store.SessionText) error {
	if err := c.mayAsk(r, text); err != nil {
		return err
	}
	id, _ := text.ID()
	s, session, err := c.Engine.UseLink(as(store.Session{ID: id, IsLink: true}, r), text)
	if err != nil {
		return c.noLink(err)
	}
	return c.begun(r, s, store.Key{}, session)
}

// mayAsk returns an error unless the engine may be asked for a link now.
func (c *Console) mayAsk(r *fasthttp.RequestCtx, text store.SessionText) error {
	if _, err := text.ID(); err != nil {
		return c.refuse(r, "")
	}
	err := c.takeAttempt(r, "")
	if err != nil {
		c.Refusals.Count(limit.Authentication, limit.Tenant{})
	}
	return err
}

// noLink returns the error of a link that the engine has not found; other errors as they are.
func (c *Console) noLink(err error) error {
	if store.KindOf(err) != store.KindNotFound {
		return err
	}
	c.Refusals.Count(limit.Authentication, limit.Tenant{})
	return unauthenticated
}

// begun answers with a new session.
func (c *Console) begun(r *fasthttp.RequestCtx, s store.Session, key store.Key, text store.SessionText) error {
	c.endReplaced(r, s)
	partnerapi.SetPartner(r, caller(s))
	c.cookie.Set(r, text, s.ExpiresAt.Sub(c.Now()))

	return partnerapi.Reply(r, fasthttp.StatusOK, c.show(s, key))
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

// current returns the session of a request. The error says that there is none, or that the request comes from another site.
func (c *Console) current(r *fasthttp.RequestCtx) (store.Session, store.Key, error) {
	s, key, ok := c.cookie.Session(r, c.Engine.Directory(), c.Now())
	if !ok || !c.cookie.IsSameOrigin(r) {
		return s, key, unauthenticated
	}
	return s, key, nil
}

// authorize returns the session of a request that may use it, of operators or of a partner. Other sessions are refused. The
// caller calls partnerapi.SetPartner when it refuses nothing either: what is refused counts for the client's address.
func (c *Console) authorize(r *fasthttp.RequestCtx, operators bool) (store.Session, store.Key, error) {
	s, key, err := c.current(r)
	switch {
	case err != nil:
		return s, key, err
	case !c.cookie.MayUse(r):
		return s, key, unauthenticated
	case s.IsOperators() != operators:
		return s, key, refusal{fasthttp.StatusForbidden, "Access denied"}
	}
	return s, key, nil
}

// showSession answers who is signed in.
func (c *Console) showSession(r *fasthttp.RequestCtx) error {
	s, key, err := c.current(r)
	if err != nil {
		return err
	}
	return partnerapi.Reply(r, fasthttp.StatusOK, c.show(s, key))
}

// signOut ends the session of a request. It is no error if that has ended already.
func (c *Console) signOut(r *fasthttp.RequestCtx) error {
	if !c.cookie.IsSameOrigin(r) {
		return otherSite
	}
	c.cookie.Clear(r) // at least this browser forgets it
	s, _, ok := c.cookie.Session(r, c.Engine.Directory(), c.Now())
	if !ok {
		return ended(r, nil)
	}
	partnerapi.SetPartner(r, caller(s))
	return ended(r, c.Engine.EndSession(as(s, r), s.ID))
}

// fail answers with an error. Faults of the service are logged.
func (c *Console) fail(r *fasthttp.RequestCtx, err error) {
	if refused, ok := err.(refusal); ok {
		partnerapi.WriteError(r, refused.status, refused.message)
		return
	}
	if soon, ok := err.(tooMany); ok {
		partnerapi.TooMany(r, soon.wait, soon.what)
		return
	}
	status, level := fasthttp.StatusInternalServerError, slog.LevelError
	switch store.KindOf(err) {
	case store.KindInvalid:
		partnerapi.WriteError(r, fasthttp.StatusBadRequest, "Invalid request parameters: "+err.Error())
		return
	case store.KindUnavailable, store.KindUncertain:
		status, level = fasthttp.StatusServiceUnavailable, slog.LevelWarn
	}
	c.Log.Log(context.Background(), level, "console request failed", "path", string(r.Path()), "status", status, "request_id", requestid.Of(r),
		"partner", partnerapi.PartnerOf(r), "error", err)
	partnerapi.WriteError(r, status, "Unable to process request")
}
