package edge

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/valyala/fasthttp"

	"mtagd/edge/tag"
)

// requestIDKey is in canonical case, so fasthttp need not convert the name for each request.
var requestIDKey = []byte(tag.RequestIDHeader)

// setRequestID sets the X-Request-Id of the answer: the client's when it sent a valid one, otherwise 16 random
// hexadecimal digits. It does not allocate.
func setRequestID(ctx *fasthttp.RequestCtx) {
	sent := ctx.Request.Header.PeekCanonical(requestIDKey)
	if isRequestID(sent) {
		ctx.Response.Header.SetCanonical(requestIDKey, sent)
		return
	}
	var random [8]byte
	binary.NativeEndian.PutUint64(random[:], rand.Uint64())
	var id [2 * len(random)]byte
	hex.Encode(id[:], random[:])
	ctx.Response.Header.SetCanonical(requestIDKey, id[:])
}

// requestID returns the id that setRequestID has set.
func requestID(ctx *fasthttp.RequestCtx) string {
	return string(ctx.Response.Header.PeekCanonical(requestIDKey))
}

// isRequestID reports whether an id is valid: 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen.
func isRequestID(id []byte) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for _, c := range id {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
