package edge

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/requestid"
	"mtagd/edge/tag"
	"mtagd/partnerapi"
	"mtagd/store"
)

// handleExpect answers a client that asks before it sends its body (Expect: 100-continue). It may refuse the body now.
func (f *front) handleExpect(ctx *fasthttp.RequestCtx) int {
	c := connOf(ctx)
	isRefused := c.headDecides || c.bodyRefused != nil
	if ctx.Request.Header.ContentLength() <= store.MaxBatchBytes && !isRefused {
		return fasthttp.StatusContinue
	}
	f.handleUnreadable(ctx, fasthttp.ErrBodyTooLarge)
	return ctx.Response.StatusCode()
}

// handleUnreadable answers a request that fasthttp could not or should not read. fasthttp then closes the connection.
func (f *front) handleUnreadable(ctx *fasthttp.RequestCtx, err error) {
	c := connOf(ctx)
	if c.head != nil { // fasthttp has emptied the request, because it could not read the chunked body
		c.head.CopyTo(&ctx.Request.Header)
	}
	if c.headDecides {
		f.answer(ctx, time.Now())
		drainOnClose(ctx)
		return
	}
	f.refuseUnreadable(ctx, c, err)
	if c.body != nil {
		c.body.release() // now, because Close may take a second
	}
}

// refuseUnreadable answers a request that fasthttp could not read because of err. c is its connection.
func (s *Server) refuseUnreadable(ctx *fasthttp.RequestCtx, c *conn, err error) {
	v := requestInfo{began: time.Now()}
	defer s.finish(ctx, &v)
	requestid.Set(ctx)
	s.findSurface(&v, unreadableTarget(ctx, err))
	if v.onTagHost {
		tag.SetHeaders(ctx)
	}
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case c.bodyRefused == errManyOfClient:
		s.Refusals.Count(limit.BodyMemory, limit.Tenant{})
		s.writeError(ctx, v.surface, fasthttp.StatusTooManyRequests, "Too many large requests of this client are under way, please retry")
	case c.bodyRefused != nil || c.body != nil && c.body.hasGivenWay():
		s.Refusals.Count(limit.BodyMemory, limit.Tenant{})
		s.writeError(ctx, v.surface, fasthttp.StatusServiceUnavailable, "Too many large requests are under way, please retry")
	case errors.As(err, &timeout) && timeout.Timeout() && s.open.stopping.Load():
		// Not 408: the client has done nothing wrong.
		s.writeError(ctx, v.surface, fasthttp.StatusServiceUnavailable, "The service is stopping, please retry")
		return
	case errors.As(err, &timeout) && timeout.Timeout():
		// After a timeout the request is empty unless its body is chunked: it has no Origin, so a page cannot read this
		// answer. The browser tag treats that as a network error, and sends again.
		s.writeError(ctx, v.surface, fasthttp.StatusRequestTimeout, "Request was not received in time")
		return // without drainOnClose: the client of a slow request would only be waited for again
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && v.surface == partnerSurface:
		s.writeError(ctx, v.surface, fasthttp.StatusRequestEntityTooLarge, partnerapi.TooLarge)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		s.writeError(ctx, v.surface, fasthttp.StatusRequestEntityTooLarge, tag.BodyTooLargeMessage)
	case errors.As(err, &small):
		s.Refusals.Count(limit.Malformed, limit.Tenant{})
		s.writeError(ctx, v.surface, fasthttp.StatusRequestHeaderFieldsTooLarge, "Request header is too large")
	case errors.Is(err, errBareHead):
		s.Refusals.Count(limit.Malformed, limit.Tenant{})
		s.writeError(ctx, v.surface, fasthttp.StatusBadRequest, bareLineFault)
	default:
		s.Refusals.Count(limit.Malformed, limit.Tenant{})
		s.writeError(ctx, v.surface, fasthttp.StatusBadRequest, "Request is malformed")
	}
	drainOnClose(ctx)
}

// unreadableTarget returns the target of a request that fasthttp could not read. After an error in the head ctx has no
// request, but the error quotes the first bytes of the head. The target only decides the form of the error answer.
func unreadableTarget(ctx *fasthttp.RequestCtx, err error) target {
	header := &ctx.Request.Header
	host, uri := header.Host(), header.RequestURI()
	if _, quoted, ok := strings.Cut(err.Error(), `, contents: "`); ok {
		if quoted, err := strconv.QuotedPrefix(`"` + quoted); err == nil {
			if head, err := strconv.Unquote(quoted); err == nil {
				host, uri = headParts([]byte(head))
			}
		}
	}
	t, _ := newTarget(host, uri)
	return t
}

// headParts finds the Host header and the request target in the first bytes of a request.
func headParts(head []byte) (host, uri []byte) {
	line, head, _ := bytes.Cut(head, []byte("\n"))
	if parts := bytes.SplitN(line, []byte(" "), 3); len(parts) > 1 {
		uri = parts[1]
	}
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Host")) {
			return bytes.TrimSpace(value), uri
		}
	}
	return nil, uri
}
