package partnerapi

import (
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// authenticate returns the partner whose API key the request carries. What is wrong with a key is
// not told: every failure has the same answer (spec, Authentication).
func (a *api) authenticate(r *fasthttp.RequestCtx) (store.Partner, bool) {
	headers := r.Request.Header.PeekAll(fasthttp.HeaderAuthorization)
	if len(headers) != 1 {
		return store.Partner{}, false
	}
	text, ok := strings.CutPrefix(string(headers[0]), "Bearer ")
	if !ok {
		return store.Partner{}, false
	}
	apiKey := store.APIKey(text)
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
