package edge

import (
	"bytes"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/tag"
)

// challengePath is the prefix of the paths at which a CA fetches the answers to its challenges (RFC 8555, HTTP-01).
const challengePath = "/.well-known/acme-challenge/"

// consolePath is the prefix of the web console's paths. The body of a POST there has an API key or a link.
const consolePath = "/console/"

// handlePlain answers plain HTTP when there is HTTPS: the CA's challenges, and a redirect to HTTPS for all other
// requests. Status 308 makes clients repeat the method and the body. began is when the request had been read.
//
// A request to the partner API is refused when it has a key, and one to a tag host when it has a merchant's secret. If it
// were redirected, the client would work, and would send the key or secret unencrypted with each request.
func (s *Server) handlePlain(ctx *fasthttp.RequestCtx, began time.Time) {
	v := requestInfo{began: began}
	defer s.finish(ctx, &v)
	t, ok := s.admit(ctx, &v)
	if !ok || !s.admitClient(ctx, &v) {
		return
	}
	switch {
	case !bytes.HasPrefix(t.path, []byte("/")): // after https://<host> it could name another host
		s.writeError(ctx, v.surface, fasthttp.StatusBadRequest, "request target must be a path")
	case v.surface == partnerSurface && (len(ctx.Request.Header.Peek(fasthttp.HeaderAuthorization)) > 0 ||
		ctx.IsPost() && bytes.HasPrefix(t.path, []byte(consolePath))):
		s.writeError(ctx, v.surface, fasthttp.StatusForbidden, "The API key was sent unencrypted: have it revoked, and use https:// with a new one")
	case v.surface == tagSurface && tag.CarriesSecret(ctx):
		s.writeError(ctx, v.surface, fasthttp.StatusForbidden, "The secret was sent unencrypted: have it deleted, and use https:// with a new one")
	case bytes.HasPrefix(t.path, []byte(challengePath)):
		waiting, cancel := WaitContext(ctx)
		answer, ok := s.Challenge(waiting, t.host, string(t.path))
		cancel()
		if !ok {
			s.writeError(ctx, v.surface, fasthttp.StatusNotFound, "There is no such challenge")
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
