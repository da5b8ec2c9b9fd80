package edge

import (
	"bytes"
	"cmp"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/edge/requestid"
	"mtagd/edge/tag"
	"mtagd/partnerapi"
)

// requestInfo is what is known of a request so far.
type requestInfo struct {
	surface   surface
	onTagHost bool         // the answer has the headers of tag.SetHeaders
	endpoint  tag.Endpoint // of a tag host
	began     time.Time    // when the request had been read to the end
}

// handle passes a request to the protocol of its host. began is when the request had been read.
func (s *Server) handle(ctx *fasthttp.RequestCtx, began time.Time) {
	v := requestInfo{began: began}
	defer s.finish(ctx, &v)
	t, ok := s.admit(ctx, &v)
	if !ok {
		return
	}
	if s.HSTS && t.host == s.BaseHost && ctx.Conn().(*clientConn).secure {
		ctx.Response.Header.Set(fasthttp.HeaderStrictTransportSecurity, "max-age=31536000") // a year
	}
	if v.surface == partnerSurface {
		s.PartnerAPI(ctx)
		if partnerapi.PartnerOf(ctx) == "" {
			s.admitClient(ctx, &v)
		}
		return
	}
	route := tag.NewRoute(t.host, t.path, t.query)
	v.endpoint = route.Endpoint
	s.tags.Serve(ctx, route)
}

// needsBody reports whether the answer of handle may depend on the body. It does not when the host is not served, for
// example, or when the tag is unknown.
func (s *Server) needsBody(ctx *fasthttp.RequestCtx) bool {
	var v requestInfo
	t, fault := s.readTarget(ctx)
	switch {
	case fault != "" || !s.findSurface(&v, t) || !isOwnHost(ctx, t.host):
		return false
	case v.surface == tagSurface:
		return s.tags.NeedsBody(ctx, tag.NewRoute(t.host, t.path, t.query))
	}
	return s.PartnerNeedsBody == nil || s.PartnerNeedsBody(ctx)
}

// admit reads the target of a request and finds its surface. It returns false when it has refused the request: the
// request is ambiguous, or this server does not serve the host.
func (s *Server) admit(ctx *fasthttp.RequestCtx, v *requestInfo) (target, bool) {
	requestid.Set(ctx)
	t, fault := s.readTarget(ctx)
	known := s.findSurface(v, t)
	if v.onTagHost {
		tag.SetHeaders(ctx)
	}
	switch {
	case fault != "":
		s.Refusals.Count(limit.Malformed, limit.Tenant{})
		drainOnClose(ctx)
		ctx.SetConnectionClose()
		s.writeError(ctx, v.surface, fasthttp.StatusBadRequest, fault)
	case !known:
		s.Refusals.Count(limit.UnknownHost, limit.Tenant{})
		s.writeError(ctx, v.surface, fasthttp.StatusMisdirectedRequest, "This host is not served here")
	case !isOwnHost(ctx, t.host):
		s.writeError(ctx, v.surface, fasthttp.StatusMisdirectedRequest, "This host is not served on this connection")
	default:
		return t, true
	}
	s.admitClient(ctx, v)
	return t, false
}

// admitClient takes a token from the bucket of the client's address. When the bucket is empty, it replaces the answer by a
// 429 and returns false. Two kinds of requests take no token: GET /health, and those with a valid API key, as partners
// have limits of their own. Requests to the tag protocol take theirs in package tag, one for each event. A request to the
// partner API takes it after it was answered: only then its key is known to be valid, and a 401 costs no more than a 429.
func (s *Server) admitClient(ctx *fasthttp.RequestCtx, v *requestInfo) bool {
	wait := s.Clients.Take(ctx, clientaddr.Of(ctx.RemoteAddr()), 1, s.Now())
	if wait == 0 {
		return true
	}
	for _, header := range []string{fasthttp.HeaderAllow, fasthttp.HeaderWWWAuthenticate, fasthttp.HeaderLocation} {
		ctx.Response.Header.Del(header)
	}
	ctx.Response.ResetBody()
	ctx.Response.Header.Set(fasthttp.HeaderRetryAfter, limit.RetryAfter(wait))
	s.writeError(ctx, v.surface, fasthttp.StatusTooManyRequests, limit.TooManyFromAddress)
	return false
}

// readTarget reads the target of a request. The second result says what is wrong with its head, or is "".
func (s *Server) readTarget(ctx *fasthttp.RequestCtx) (target, string) {
	t, fault := newTarget(ctx.Request.Header.Host(), ctx.Request.Header.RequestURI())
	if slices.Contains(s.Aliases, t.host) {
		t.host = s.BaseHost
	}
	if fault == "" {
		fault = framingFault(ctx)
	}
	return t, fault
}

// isOwnHost reports whether a host may be asked for on the connection of a request. With TLS that is the certificate's.
func isOwnHost(ctx *fasthttp.RequestCtx, host string) bool {
	c := ctx.Conn().(*clientConn)
	return !c.secure || host == c.serverName
}

// findSurface sets the surface of a target. It returns false when this server does not serve the host. Then it guesses
// the surface by the path, so that the error has the form that the client expects.
func (s *Server) findSurface(v *requestInfo, t target) bool {
	switch {
	case t.host == s.ClientTagHost && (t.host != s.BaseHost || tag.IsPath(t.path)):
		v.onTagHost = true
	case t.host == s.BaseHost:
		v.surface = partnerSurface
	case t.host != "" && s.directory.KnowsHost(t.host): // "" is where the directory keeps client-side tags
		v.onTagHost = true
	default:
		if bytes.HasPrefix(t.path, []byte("/v1/")) {
			v.surface = partnerSurface
		}
		return false
	}
	return true
}

// writeError answers with an error body in the surface's form. The message must be plain ASCII without quotes.
func (s *Server) writeError(ctx *fasthttp.RequestCtx, sf surface, status int, message string) {
	if sf == partnerSurface {
		partnerapi.WriteError(ctx, status, message)
		return
	}
	tag.WriteError(ctx, status, message)
}

// finish counts and logs an answered request. It must be deferred: it turns a panic into a 500.
func (s *Server) finish(ctx *fasthttp.RequestCtx, v *requestInfo) {
	if p := recover(); p != nil {
		s.metrics.panics.Inc()
		id := requestid.Of(ctx)
		s.Log.Error("panic", "surface", surfaceNames[v.surface], "value", p, "stack", string(debug.Stack()),
			"request_id", id)
		ctx.Response.Reset()
		ctx.Response.Header.Set(requestid.Header, id)
		if v.onTagHost {
			tag.SetHeaders(ctx)
		}
		s.writeError(ctx, v.surface, fasthttp.StatusInternalServerError, "Unable to process request")
	}
	if s.open.stopping.Load() {
		ctx.SetConnectionClose()
	}
	status, took := ctx.Response.StatusCode(), time.Since(v.began)
	if v.surface == partnerSurface {
		s.metrics.countPartnerRequest(partnerEndpoint(ctx), status, took)
	} else {
		s.metrics.countTagRequest(v.endpoint, status, took)
	}
	if s.Log.Enabled(ctx, slog.LevelDebug) {
		s.logRequest(ctx, v, status, took)
	}
	if status == fasthttp.StatusTooManyRequests && s.Limits && !s.open.stopping.Load() {
		slowDown(ctx)
	}
}

// refusalDelay is how long a client waits for a 429. Clients that ignore Retry-After send their next request when they
// have the answer. Without the delay their refused requests would take as much of the processor as accepted ones.
const refusalDelay = 200 * time.Millisecond

// slowDown waits before a refused request is answered. The body needs no memory meanwhile.
func slowDown(ctx *fasthttp.RequestCtx) {
	ctx.Request.ResetBody()
	if c := connOf(ctx); c.body != nil {
		c.body.release()
	}
	time.Sleep(refusalDelay)
}

// partnerEndpoint returns the name of the partner API's endpoint that a request was for.
func partnerEndpoint(ctx *fasthttp.RequestCtx) string {
	return cmp.Or(partnerapi.EndpointOf(ctx), "other")
}

func (s *Server) logRequest(ctx *fasthttp.RequestCtx, v *requestInfo, status int, took time.Duration) {
	endpoint := v.endpoint.String()
	if v.surface == partnerSurface {
		endpoint = partnerEndpoint(ctx)
	}
	attrs := []slog.Attr{
		slog.String("surface", surfaceNames[v.surface]),
		slog.String("endpoint", endpoint),
		slog.String("method", string(ctx.Method())),
		slog.Int("status", status),
		slog.Float64("took_ms", float64(took.Microseconds())/1000),
		slog.String("request_id", requestid.Of(ctx)),
	}
	if partner := partnerapi.PartnerOf(ctx); partner != "" {
		attrs = append(attrs, slog.String("partner", partner))
	}
	s.Log.LogAttrs(ctx, slog.LevelDebug, "request", attrs...)
}
