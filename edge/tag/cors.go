package tag

import (
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

// preflight answers a browser that asks whether a page may send a request. The browser keeps the answer for a day.
func preflight(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.Set(fasthttp.HeaderAccessControlAllowMethods, "GET, POST, OPTIONS")
	if asked := ctx.Request.Header.Peek(fasthttp.HeaderAccessControlRequestHeaders); len(asked) > 0 {
		h.SetBytesV(fasthttp.HeaderAccessControlAllowHeaders, asked)
	} else {
		h.Set(fasthttp.HeaderAccessControlAllowHeaders, "content-type")
	}
	h.Set(fasthttp.HeaderAccessControlMaxAge, "86400")
	ctx.Response.SetStatusCode(fasthttp.StatusNoContent)
}
