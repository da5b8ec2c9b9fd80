package tag

import (
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/edge/requestid"
)

// originKey is in canonical case, so fasthttp need not convert the name for each request.
var originKey = []byte(fasthttp.HeaderOrigin)

// AllowOrigin lets the page that sent a request read the answer, and lets the browser send cookies. Every origin is
// allowed: pages of any site install tags. A page must be able to read errors too, so the front door calls AllowOrigin
// before anything can fail.
func AllowOrigin(ctx *fasthttp.RequestCtx) {
	origin := ctx.Request.Header.PeekCanonical(originKey)
	if len(origin) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.SetBytesV(fasthttp.HeaderAccessControlAllowOrigin, origin)
	h.Set(fasthttp.HeaderAccessControlAllowCredentials, "true")
	h.Set(fasthttp.HeaderAccessControlExposeHeaders, fasthttp.HeaderRetryAfter+", "+requestid.Header)
	h.Add(fasthttp.HeaderVary, fasthttp.HeaderOrigin)
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
