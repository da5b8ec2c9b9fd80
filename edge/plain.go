package edge

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// challengePath is the prefix of the paths at which a CA fetches the answers to its challenges (RFC 8555, HTTP-01).
const challengePath = "/.well-known/acme-challenge/"

// handlePlain answers plain HTTP when there is HTTPS: the CA's challenges, and a redirect to HTTPS for all other
// requests. Status 308 makes clients repeat the method and the body.
func (d *dispatcher) handlePlain(ctx *fasthttp.RequestCtx) {
	v := requestInfo{began: ctx.Time()}
	defer d.finish(ctx, &v)
	t, ok := d.admit(ctx, &v)
	if !ok {
		return
	}
	switch {
	case !bytes.HasPrefix(t.path, []byte("/")): // after https://<host> it could name another host
		d.writeError(ctx, v.surface, fasthttp.StatusBadRequest, "request target must be a path")
	case bytes.HasPrefix(t.path, []byte(challengePath)):
		answer, ok := d.Challenge(t.host, string(t.path))
		if !ok {
			d.writeError(ctx, v.surface, fasthttp.StatusNotFound, "There is no such challenge")
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
