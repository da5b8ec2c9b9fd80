package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// challengePath begins the paths at which a CA looks for the answers to its challenges (RFC 8555, HTTP-01).
const challengePath = "/.well-known/acme-challenge/"

// handlePlain is the way of every request that comes over plain HTTP while there is HTTPS: the CA is
// answered, whoever else came to the right host is sent on. The method and the body go along: 308.
func (s *Server) handlePlain(ctx *fasthttp.RequestCtx) {
	v := visit{began: ctx.Time()}
	defer s.end(ctx, &v)
	t, ok := s.reach(ctx, &v)
	if !ok {
		return
	}
	switch {
	case !bytes.HasPrefix(t.path, []byte("/")): // any other could change the host of the redirect
		s.fail(ctx, v.surface, fasthttp.StatusBadRequest, "request target must be a path")
	case bytes.HasPrefix(t.path, []byte(challengePath)):
		answer, ok := s.Challenge(t.host, string(t.path))
		if !ok {
			s.fail(ctx, v.surface, fasthttp.StatusNotFound, "There is no such challenge")
			return
		}
		ctx.SetContentType("text/plain")
		ctx.SetBodyString(answer)
	default:
		location := append([]byte("https://"+t.host), t.path...)
		if t.query != nil {
			location = append(append(location, '?'), t.query...)
		}
		ctx.Response.Header.SetBytesV(fasthttp.HeaderLocation, location)
		ctx.SetStatusCode(fasthttp.StatusPermanentRedirect)
	}
}
