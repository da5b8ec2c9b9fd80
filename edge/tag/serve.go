// Package tag is the protocol of a tag host (spec, Tag-server endpoints): it records tracking events, resolves muids,
// and serves the loader script. It knows nothing of connections and TLS. The front door, package edge, finds the
// requests that are for a tag host, and passes each one on with its Route.
//
// Read in this order:
//
//	serve.go     answers a request: method, tag, endpoint
//	route.go     which endpoint and which tag a request means
//	mark.go      POST /mark: records one event or a batch before it answers
//	report.go    which events partners can look up because they were refused, or are odd
//	explain.go   what partners are told about each refusal
//	try.go       what POST /mark would answer, without recording anything
//	resolve.go   POST /id: finds the muid of identifiers
//	secret.go    who may link identifiers and be resolved by them
//	cookie.go    reads and renews the cookie that holds the muid
//	bots.go      which user agents call themselves bots
//	engine.go    records events, and answers when the engine cannot
//	config.go    what a Server is made of; counts events
//	limits.go    limits the events of a merchant, and the bytes that are stored
//	script.go    GET /script: the loader and the extras that are asked for, compressed once
//	cors.go      the headers of every answer: for pages of any origin, and to know the service by
//	decode.go    reads an event's JSON: who, what, when
//	readable.go  refuses or repairs events that some JSON parsers cannot read
//	answer.go    the answers that never change, rendered once
//
// The front door has set X-Request-Id on every answer. Errors are logged with that id.
package tag

import (
	"net/netip"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/clientaddr"
	"mtagd/edge/limit"
	"mtagd/store"
)

// Serve answers a request on a tag host. The request id and the headers of SetHeaders are set already.
func (s *Server) Serve(ctx *fasthttp.RequestCtx, route Route) {
	client, now := clientaddr.Of(ctx.RemoteAddr()), s.cfg.Now()
	free := route.Endpoint == endpointHealth && (ctx.IsGet() || ctx.IsHead())
	if !free && !s.limits.admitRequest(ctx, client, now) {
		return
	}
	switch route.Endpoint {
	case endpointMark, endpointID:
		if allowMethods(ctx, "POST, OPTIONS", ctx.IsPost()) {
			s.serveTag(ctx, route, client, now)
		}
	case endpointScript:
		if allowMethods(ctx, "GET, HEAD, OPTIONS", ctx.IsGet() || ctx.IsHead()) {
			s.sendScript(ctx, route)
		}
	case endpointHealth:
		if allowMethods(ctx, "GET, HEAD, OPTIONS", ctx.IsGet() || ctx.IsHead()) {
			s.health(ctx)
		}
	default:
		notFound.send(ctx)
	}
}

// allowMethods returns ok: whether the endpoint serves the request's method. Otherwise it has answered. allow is the
// list of methods for the Allow header.
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

// serveTag answers a request to an endpoint of one tag.
func (s *Server) serveTag(ctx *fasthttp.RequestCtx, route Route, client netip.Addr, now time.Time) {
	tag, settings, refused := s.findTag(route)
	muid, onlyMUID := cookieMUID(ctx)
	from := sender{
		address: client, merchant: tag.Merchant, limits: settings.Limits,
		partner: tag.Partner, partnerBytes: settings.PartnerBytesPerDay,
		cookie: muid, browsers: s.cfg.Browsers, now: now, behind: route.clockBehind(now),
	}
	if refused == nil {
		from.mayIdentify, from.withSecret, refused = s.mayIdentify(ctx, &tag, settings.IdentityRequiresSecret)
	}
	if settings.DeliverClientDetails {
		from.client = s.browserOf(ctx, &tag, &from)
	}
	switch {
	case refused != nil:
		countRefusal(s.cfg.Refusals, refused, &from)
		if route.Endpoint == endpointMark && tag.ID != "" { // a tag that is not known belongs to nobody
			s.reports.refused(ctx, &tag, &from, refused, nil, nil)
		}
		refused.send(ctx)
	case route.Endpoint == endpointMark:
		s.mark(ctx, &tag, &from)
	default:
		s.resolve(ctx, &tag, &from)
	}
	s.limits.settle(&from)
	if onlyMUID {
		renewCookie(ctx, &route, muid)
	}
}

// browserOf returns what is known of the browser that has sent a request, encrypted; nil for a backend's request, which says
// nothing of the visitor.
func (s *Server) browserOf(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender) []byte {
	if s.cfg.Browsers == nil || from.withSecret || len(ctx.Request.Header.PeekCanonical(originKey)) == 0 {
		return nil
	}
	return s.cfg.Browsers.Seal(tag.Merchant, clientaddr.Exact(ctx.RemoteAddr()), ctx.UserAgent())
}

// countRefusal counts a request that findTag, mayIdentify or admit has refused.
func countRefusal(refusals *limit.Refusals, refused *answer, from *sender) {
	merchant := limit.Merchant(from.merchant)
	switch refused {
	case tagNotFound:
		refusals.Count(limit.UnknownTag, limit.Tenant{})
	case tagSuspended:
		refusals.Count(limit.Suspended, merchant)
	case secretWrong:
		refusals.Count(limit.Authentication, merchant)
	case tooManyForMerchant:
		refusals.Count(limit.MerchantEvents, merchant)
	case tooManyBytes:
		refusals.Count(limit.MerchantBytes, merchant)
	case tooManyBytesFromAddress:
		refusals.Count(limit.AddressBytes, limit.Tenant{})
	case tooManyBytesOfPartner:
		refusals.Count(limit.PartnerBytes, limit.Partner(from.partner))
	}
}

// health is GET /health: 503 while the engine cannot accept events.
func (s *Server) health(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.Set(fasthttp.HeaderCacheControl, "no-store")
	if s.cfg.Engine.Ready() != nil {
		unhealthy.send(ctx)
	} else {
		healthy.send(ctx)
	}
}

// NeedsBody reports whether the answer to a request may depend on its body, of which nothing has arrived yet.
func (s *Server) NeedsBody(ctx *fasthttp.RequestCtx, route Route) bool {
	if !ctx.IsPost() || route.Endpoint != endpointMark && route.Endpoint != endpointID {
		return false
	}
	tag, settings, refused := s.findTag(route)
	if refused == nil {
		_, _, refused = s.mayIdentify(ctx, &tag, settings.IdentityRequiresSecret)
	}
	return refused == nil
}
