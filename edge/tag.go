package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// isTagPath reports whether a path is the tag server's where it shares its host with the partner API.
func isTagPath(path []byte) bool {
	if len(path) == 0 || path[0] != '/' {
		return false
	}
	first, _, _ := bytes.Cut(path[1:], []byte("/"))
	switch string(first) {
	case "mark", "id", "script", "health":
		return true
	}
	return false
}

// serveTag routes a request on a tag host (spec, Tag-server endpoints).
func (s *Server) serveTag(ctx *fasthttp.RequestCtx, t target, v *visit) {
	if !isTagPath(t.path) {
		notFound.send(ctx)
		return
	}
	first, rest, more := bytes.Cut(t.path[1:], []byte("/"))
	switch string(first) {
	case "mark", "id":
		if more && (len(rest) == 0 || bytes.IndexByte(rest, '/') >= 0) {
			notFound.send(ctx)
			return
		}
		v.endpoint = endpointMark
		if string(first) == "id" {
			v.endpoint = endpointID
		}
		if !allowMethods(ctx, "POST, OPTIONS", ctx.IsPost()) {
			return
		}
		if !more {
			rest = nil
		}
		tag, refused := s.tagOf(t, rest)
		switch {
		case refused != nil:
			refused.send(ctx)
		case v.endpoint == endpointMark:
			s.mark(ctx, &tag)
		default:
			s.resolve(ctx, &tag)
		}
		renewCookie(ctx, t.host)
	default: // script, health
		if more {
			notFound.send(ctx)
			return
		}
		if !allowMethods(ctx, "GET, HEAD, OPTIONS", ctx.IsGet() || ctx.IsHead()) {
			return
		}
		if string(first) == "script" {
			v.endpoint = endpointScript
			s.script.send(ctx)
			return
		}
		s.health(ctx)
	}
}

// allowMethods reports whether the request's method is one that the route serves; else it has answered.
func allowMethods(ctx *fasthttp.RequestCtx, allow string, ok bool) bool {
	switch {
	case ok:
		return true
	case ctx.IsOptions():
		ctx.Response.Header.Set(fasthttp.HeaderAllow, allow)
		preflight(ctx)
	default:
		ctx.Response.Header.Set(fasthttp.HeaderAllow, allow)
		methodNotAllowed.send(ctx)
	}
	return false
}

// tagOf finds the active tag that a request means: by the id in its path, by the one in its query
// (?tagId=), or, without any, the only tag of the host.
func (s *Server) tagOf(t target, id []byte) (store.Tag, *answer) {
	onHost := t.host
	if t.host == s.ClientTagHost {
		onHost = "" // where client-side tags are
	}
	if id == nil {
		id = queryTagID(t.query)
	}
	var tag store.Tag
	var ok bool
	if id != nil {
		tag, ok = s.directory.Tag(store.TagID(view(id)))
	} else {
		tag, ok = s.directory.OnlyTag(onHost)
	}
	switch {
	case !ok || tag.Host != onHost:
		return tag, tagNotFound
	case tag.Status() != store.Active:
		return tag, tagNotActive
	}
	return tag, nil
}

// queryTagID is the value of tagId in a query, nil where there is none. Tag ids have no characters that
// need an escape, so none is undone.
func queryTagID(query []byte) []byte {
	for pair := range bytes.SplitSeq(query, []byte("&")) {
		if id, ok := bytes.CutPrefix(pair, []byte("tagId=")); ok {
			return id
		}
	}
	return nil
}

// health is GET /health: 503 while the engine cannot accept events.
func (s *Server) health(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
	if err := s.Engine.Ready(); err != nil {
		unhealthy.send(ctx)
		return
	}
	healthy.send(ctx)
}

// allowOrigin lets the page that sent a request read its answer, with its cookies: pages of any site
// install tags, and errors must be as readable as answers.
func allowOrigin(ctx *fasthttp.RequestCtx) {
	origin := ctx.Request.Header.Peek(fasthttp.HeaderOrigin)
	if len(origin) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.SetBytesV(fasthttp.HeaderAccessControlAllowOrigin, origin)
	h.Set(fasthttp.HeaderAccessControlAllowCredentials, "true")
	h.Set(fasthttp.HeaderAccessControlExposeHeaders, fasthttp.HeaderRetryAfter)
	h.Add(fasthttp.HeaderVary, fasthttp.HeaderOrigin)
}

// preflight answers a browser that asks whether a page may send a request; the answer is kept for a day.
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
