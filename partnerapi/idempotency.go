package partnerapi

import (
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

const (
	idempotencyHeader = "Idempotency-Key"
	maxIdempotencyKey = 255 // characters
)

// idempotencyKey returns the Idempotency-Key of a request, "" when it has none. It makes a request that creates something
// repeatable: see store.OnceWindow.
func idempotencyKey(r *fasthttp.RequestCtx) (string, error) {
	values := r.Request.Header.PeekAll(idempotencyHeader)
	if len(values) == 0 {
		return "", nil
	}
	key := string(values[0])
	unprintable := func(c rune) bool { return c < ' ' || c > '~' }
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, unprintable) {
		return "", store.Invalid(idempotencyHeader, "must be one header of 1 to %d printable ASCII characters", maxIdempotencyKey)
	}
	return key, nil
}
