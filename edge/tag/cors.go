package tag

import (
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/edge/requestid"
)

// Names in canonical case, which fasthttp need not convert for each request.
var (
	originKey      = []byte(fasthttp.HeaderOrigin)
	allowOriginKey = []byte(fasthttp.HeaderAccessControlAllowOrigin)
	markKey        = []byte("Mtag")
	markValue      = []byte("1")
)

// pageHeaders are on every answer to a page, beside its origin. Their names are in canonical case too.
var pageHeaders = [][2][]byte{
	{[]byte(fasthttp.HeaderAccessControlAllowCredentials), []byte("true")}, // the browser sends the cookie
	{[]byte(fasthttp.HeaderAccessControlExposeHeaders), []byte("Date, Mtag, " + fasthttp.HeaderRetryAfter + ", " + requestid.Header)},
	{[]byte(fasthttp.HeaderVary), originKey},
	{[]byte(resourcePolicyKey), []byte(resourcePolicy)},
}

// The header that lets pages with a Cross-Origin-Embedder-Policy use an answer.
const (
	resourcePolicyKey = "Cross-Origin-Resource-Policy"
	resourcePolicy    = "cross-origin"
)

// SetHeaders sets the headers that all answers of a tag host have. Mtag tells the browser tag that the service has answered,
// and not a proxy or a captive portal on the way. The others let a page of any origin read the answer, because pages of any
// site install tags. They must be there for errors too, so the front door calls SetHeaders before anything can fail.
func SetHeaders(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.SetCanonical(markKey, markValue)
	origin := ctx.Request.Header.PeekCanonical(originKey)
	if len(origin) == 0 {
		return
	}
	h.SetCanonical(allowOriginKey, origin)
	for _, header := range pageHeaders {
		h.SetCanonical(header[0], header[1])
	}
}

// preflight answers a browser that asks whether a page may send a request. The browser keeps the answer for a day. A page
// may send any header but Authorization: a secret in a page is no secret.
func preflight(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.Set(fasthttp.HeaderAccessControlAllowMethods, "GET, POST, OPTIONS")
	var allowed []string
	for name := range strings.SplitSeq(string(ctx.Request.Header.Peek(fasthttp.HeaderAccessControlRequestHeaders)), ",") {
		if name = strings.TrimSpace(name); name != "" && !strings.EqualFold(name, fasthttp.HeaderAuthorization) {
			allowed = append(allowed, name)
		}
	}
	if allowed == nil {
		allowed = []string{"content-type"}
	}
	h.Set(fasthttp.HeaderAccessControlAllowHeaders, strings.Join(allowed, ", "))
	h.Set(fasthttp.HeaderAccessControlMaxAge, "86400")
	ctx.Response.SetStatusCode(fasthttp.StatusNoContent)
}
