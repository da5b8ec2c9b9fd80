package partnerapi

import (
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/store"
)

// partnerValue is the name of the user value that holds the partner's id, a string, in an authenticated request.
const partnerValue = "partner"

// PartnerOf returns the id of the partner whose key authenticated a request, "" before the key was checked. It is for
// logs.
func PartnerOf(r *fasthttp.RequestCtx) string {
	partner, _ := r.UserValue(partnerValue).(string)
	return partner
}

// tenantOf returns the partner of a request as the tenant of a refusal.
func tenantOf(r *fasthttp.RequestCtx) limit.Tenant {
	if id := PartnerOf(r); id != "" {
		return limit.Partner(store.PartnerID(id))
	}
	return limit.Tenant{}
}

// authenticate returns the partner whose API key the request carries, and the key's id; false without a valid key.
func (a *api) authenticate(r *fasthttp.RequestCtx) (store.Partner, store.KeyID, bool) {
	headers := r.Request.Header.PeekAll(fasthttp.HeaderAuthorization)
	if len(headers) != 1 {
		return store.Partner{}, "", false
	}
	// The scheme is in any case. One space follows it.
	scheme, credentials, ok := strings.Cut(string(headers[0]), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return store.Partner{}, "", false
	}
	return a.Engine.Directory().Authenticate(store.APIKey(credentials), a.Now())
}
