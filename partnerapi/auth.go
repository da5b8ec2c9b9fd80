package partnerapi

import (
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// partnerValue is the user value with the id of the partner, a string, of an authenticated request.
const partnerValue = "partner"

// PartnerOf returns the id of the partner that a request has authenticated, "" before. It is for logs.
func PartnerOf(r *fasthttp.RequestCtx) string {
	partner, _ := r.UserValue(partnerValue).(string)
	return partner
}

// authenticate returns the partner whose API key the request carries. The answer to a request without a
// valid key does not say why: it is always the same (spec, Authentication).
func (a *api) authenticate(r *fasthttp.RequestCtx) (store.Partner, bool) {
	headers := r.Request.Header.PeekAll(fasthttp.HeaderAuthorization)
	if len(headers) != 1 {
		return store.Partner{}, false
	}
	// The scheme is in any case, and one or more spaces follow it (RFC 9110, 11.4).
	scheme, credentials, ok := strings.Cut(string(headers[0]), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return store.Partner{}, false
	}
	apiKey := store.APIKey(strings.TrimLeft(credentials, " "))
	id, err := apiKey.ID()
	if err != nil {
		return store.Partner{}, false
	}
	directory := a.Engine.Directory()
	key, ok := directory.Key(id)
	if !ok || !apiKey.Matches(key) || !key.Valid(a.Now()) {
		return store.Partner{}, false
	}
	return directory.Partner(key.Partner)
}
