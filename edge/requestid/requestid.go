// Package requestid gives each request an id. The front door sets it on the answer first; errors are logged with it.
package requestid

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/valyala/fasthttp"
)

// Header is the header of a request's id, in requests and answers.
const Header = "X-Request-Id"

// key is in canonical case, so fasthttp need not convert the name for each request.
var key = []byte(Header)

// Set sets the X-Request-Id of the answer: the client's when it sent a valid one, otherwise 16 random
// hexadecimal digits. It does not allocate.
func Set(ctx *fasthttp.RequestCtx) {
	sent := ctx.Request.Header.PeekCanonical(key)
	if isValid(sent) {
		ctx.Response.Header.SetCanonical(key, sent)
		return
	}
	var random [8]byte
	binary.NativeEndian.PutUint64(random[:], rand.Uint64())
	var id [2 * len(random)]byte
	hex.Encode(id[:], random[:])
	ctx.Response.Header.SetCanonical(key, id[:])
}

// Of returns the id that Set has set, "" when it has not.
func Of(ctx *fasthttp.RequestCtx) string {
	return string(ctx.Response.Header.PeekCanonical(key))
}

// isValid reports whether an id is valid: 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen.
func isValid(id []byte) bool {
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
