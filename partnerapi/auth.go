package partnerapi

import (
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/requestid"
	"mtagd/partnerapi/cookie"
	"mtagd/store"
)

// partnerValue is the name of the user value that holds the partner's id, a string, in an authenticated request.
const partnerValue = "partner"

// callerValue is the name of the user value that holds the caller of an authenticated request.
const callerValue = "caller"

// PartnerOf returns the id of the partner whose key or session authenticated a request, "" before that. It is for logs.
func PartnerOf(r *fasthttp.RequestCtx) string {
	partner, _ := r.UserValue(partnerValue).(string)
	return partner
}

// Operator is what PartnerOf returns for an operator's session of the web console.
const Operator store.PartnerID = "operator"

// SetPartner sets what PartnerOf returns, for a request that something in front of the API has authenticated.
func SetPartner(r *fasthttp.RequestCtx, id store.PartnerID) { r.SetUserValue(partnerValue, string(id)) }

// caller is what has authenticated a request: an API key, or a session of the web console. A session that a key has begun
// has both.
type caller struct {
	key     store.Key     // zero without one
	session store.Session // zero without one
}

// check returns an error unless the caller's key allows an operation that is no GET.
func (c caller) check(operation string) error {
	switch {
	case c.key.Scope == store.Full || c.key.Personal && operation == personalOperation:
		return nil
	case operation == personalOperation:
		return errImpersonalKey
	}
	return errReadOnlyKey
}

// actor is who makes the changes of a request.
func (c caller) actor(r *fasthttp.RequestCtx) store.Actor {
	actor := store.Actor{Kind: store.ByKey, Name: string(c.key.ID)}
	if c.session.ID != "" {
		actor = c.session.Actor()
	}
	actor.Request = requestid.Of(r)
	return actor
}

// callerOf returns the caller of a request that serve has authenticated.
func callerOf(r *fasthttp.RequestCtx) caller {
	c, _ := r.UserValue(callerValue).(caller)
	return c
}

// tenantOf returns the partner of a request as the tenant of a refusal.
func tenantOf(r *fasthttp.RequestCtx) limit.Tenant {
	if id := PartnerOf(r); id != "" {
		return limit.Partner(store.PartnerID(id))
	}
	return limit.Tenant{}
}

// NeedsBody reports whether the answer to a request may depend on its body, when only the head has arrived. It does not
// without a valid key or session, or when the head announces a body that is too large. The front door asks before it
// reserves memory for a body.
func NeedsBody(directory *store.Directory, baseURL string, now func() time.Time) func(*fasthttp.RequestCtx) bool {
	console := cookie.New(baseURL)
	return func(r *fasthttp.RequestCtx) bool {
		_, _, ok := authenticate(r, directory, console, now())
		return ok && !isTooLarge(r)
	}
}

// maxBody is the largest request body, in bytes.
const maxBody = 64 << 10

// TooLarge is the message of a 413. The front door uses it too, for bodies that it does not read.
var TooLarge = fmt.Sprintf("Request body is larger than %d KiB", maxBody>>10)

// isTooLarge reports whether a request's body is too large, or will be.
func isTooLarge(r *fasthttp.RequestCtx) bool {
	return max(r.Request.Header.ContentLength(), len(r.PostBody())) > maxBody
}

// authenticate returns the partner of a request and its caller: a valid API key, or else a valid session of a partner that
// the request may use. A request with an Authorization header has no session.
func authenticate(
	r *fasthttp.RequestCtx, directory *store.Directory, console cookie.Cookie, now time.Time,
) (store.Partner, caller, bool) {
	switch headers := r.Request.Header.PeekAll(fasthttp.HeaderAuthorization); len(headers) {
	case 0:
		if s, key, ok := console.Session(r, directory, now); ok && console.MayUse(r) {
			partner, ok := directory.Partner(s.Partner)
			return partner, caller{key, s}, ok // not for an operator's, which has no partner
		}
	case 1:
		// The scheme is in any case. One space follows it.
		scheme, text, _ := strings.Cut(string(headers[0]), " ")
		if strings.EqualFold(scheme, "Bearer") {
			partner, key, ok := directory.Authenticate(store.APIKey(text), now)
			return partner, caller{key: key}, ok
		}
	}
	return store.Partner{}, caller{}, false
}
