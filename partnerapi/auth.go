package partnerapi

import (
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/store"
)

// partnerValue is the name of the user value that holds the partner's id, a string, in an authenticated request.
const partnerValue = "partner"

// keyValue is the name of the user value that holds the id of the request's key, a string.
const keyValue = "key"

// PartnerOf returns the id of the partner whose key authenticated a request, "" before the key was checked. It is for
// logs.
func PartnerOf(r *fasthttp.RequestCtx) string {
	partner, _ := r.UserValue(partnerValue).(string)
	return partner
}

// keyOf returns the id of the key that authenticated a request, "" before the key was checked.
func keyOf(r *fasthttp.RequestCtx) store.KeyID {
	key, _ := r.UserValue(keyValue).(string)
	return store.KeyID(key)
}

// tenantOf returns the partner of a request as the tenant of a refusal.
func tenantOf(r *fasthttp.RequestCtx) limit.Tenant {
	if id := PartnerOf(r); id != "" {
		return limit.Partner(store.PartnerID(id))
	}
	return limit.Tenant{}
}

// NeedsBody reports whether the answer to a request may depend on its body, when only the head has arrived. It does not
// without a valid key, or when the head announces a body that is too large. The front door asks before it reserves
// memory for a body.
func NeedsBody(directory *store.Directory, now func() time.Time) func(*fasthttp.RequestCtx) bool {
	return func(r *fasthttp.RequestCtx) bool {
		_, _, ok := authenticate(r, directory, now())
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

// authenticate returns the partner whose API key the request carries, and the key; false without a valid key.
func authenticate(r *fasthttp.RequestCtx, directory *store.Directory, now time.Time) (store.Partner, store.Key, bool) {
	text, ok := credentials(r)
	if !ok {
		return store.Partner{}, store.Key{}, false
	}
	return directory.Authenticate(text, now)
}

// credentials returns the text that should be an API key; false when the request has none.
func credentials(r *fasthttp.RequestCtx) (store.APIKey, bool) {
	headers := r.Request.Header.PeekAll(fasthttp.HeaderAuthorization)
	if len(headers) != 1 {
		return "", false
	}
	// The scheme is in any case. One space follows it.
	scheme, text, ok := strings.Cut(string(headers[0]), " ")
	return store.APIKey(text), ok && strings.EqualFold(scheme, "Bearer")
}

// hasDamagedKey reports whether the request's key has a record that cannot be read, so that nobody knows whether it is valid.
func hasDamagedKey(r *fasthttp.RequestCtx, directory *store.Directory) bool {
	text, _ := credentials(r)
	id, err := text.ID()
	return err == nil && directory.IsDamaged(string(id))
}
