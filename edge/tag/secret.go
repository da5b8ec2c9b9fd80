package tag

import (
	"bytes"
	"slices"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// authorizationKey is in canonical case, as originKey is.
var authorizationKey = []byte(fasthttp.HeaderAuthorization)

// mayIdentify reports whether a request may link identifiers to a muid, and resolve a muid by them, and whether it has the
// merchant's secret. It returns an answer instead when the request carries a wrong secret: a typing error must not go
// unnoticed. required says that only the merchant's secret allows it.
//
// Where no secret is required, an Authorization header without "mts_" is not meant for this service: a proxy may have
// added it, or a client may send its API key with every request. It is ignored, as it was before there were secrets.
func (s *Server) mayIdentify(ctx *fasthttp.RequestCtx, tag *store.Tag, required bool) (may, withSecret bool, refused *answer) {
	if len(ctx.Request.Header.PeekCanonical(authorizationKey)) == 0 { // the common case
		return !required, false, nil
	}
	headers := ctx.Request.Header.PeekAll(fasthttp.HeaderAuthorization)
	scheme, text, _ := bytes.Cut(headers[0], []byte(" "))
	if len(headers) == 1 && bytes.EqualFold(scheme, []byte("Bearer")) &&
		s.directory.HasSecret(tag.Merchant, store.SecretText(text)) {
		return true, true, nil
	}
	if required || CarriesSecret(ctx) {
		return false, false, secretWrong
	}
	return true, false, nil
}

// CarriesSecret reports whether an Authorization header of a request has what looks like a merchant's secret in it.
func CarriesSecret(ctx *fasthttp.RequestCtx) bool {
	return slices.ContainsFunc(ctx.Request.Header.PeekAll(fasthttp.HeaderAuthorization), func(header []byte) bool {
		return bytes.Contains(header, []byte(store.SecretPrefix))
	})
}
