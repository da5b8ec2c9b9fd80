package edge

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// surface is one of the two protocols behind the server. Each has its own form of error.
type surface uint8

const (
	tagSurface surface = iota
	partnerSurface
	surfaces
)

var surfaceNames = [surfaces]string{"tag", "partner"}

// visit is what is known of a request on its way through.
type visit struct {
	surface   surface
	onTagHost bool // CORS applies
	endpoint  endpoint
	began     time.Time // when the request had been read
}

// handle is the way of every request that could be read.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	v := visit{began: ctx.Time()}
	defer s.end(ctx, &v)
	settleBody(ctx)
	t, ok := s.reach(ctx, &v)
	if !ok {
		return
	}
	if secure, isTLS := ctx.Conn().(*tlsConn); isTLS {
		if t.host != secure.serverName {
			// One host's certificate must not speak for another.
			s.fail(ctx, v.surface, fasthttp.StatusMisdirectedRequest, "This host is not served on this connection")
			return
		}
		if s.HSTS && t.host == s.BaseHost {
			ctx.Response.Header.Set(fasthttp.HeaderStrictTransportSecurity, "max-age=31536000") // a year
		}
	}
	if v.surface == partnerSurface {
		v.endpoint = endpointPartner
		s.PartnerAPI(ctx)
		return
	}
	s.serveTag(ctx, t, &v)
}

// reach finds out where a request is meant to go. It reports false when it has answered, because that is in
// doubt or is none of this server's hosts.
func (s *Server) reach(ctx *fasthttp.RequestCtx, v *visit) (target, bool) {
	t, fault := newTarget(ctx.Request.Header.Host(), ctx.Request.Header.RequestURI())
	if slices.Contains(s.Aliases, t.host) {
		t.host = s.BaseHost
	}
	known := s.place(v, t)
	if v.onTagHost {
		allowOrigin(ctx)
	}
	if fault == "" {
		fault = framingFault(&ctx.Request.Header)
	}
	switch {
	case fault != "":
		drainOnClose(ctx)
		ctx.SetConnectionClose()
		s.fail(ctx, v.surface, fasthttp.StatusBadRequest, fault)
	case !known:
		s.fail(ctx, v.surface, fasthttp.StatusMisdirectedRequest, "This host is not served here")
	default:
		return t, true
	}
	return t, false
}

// target is where a request is meant to go. Its parts alias the request.
type target struct {
	host        string // lower case, without a port; empty where the request has none
	path, query []byte // as they were sent, never decoded
}

// newTarget reads the target from a Host header and a request line, and says what is wrong with it. What
// could be read of a wrong target is returned too, to answer in the right form.
func newTarget(host, uri []byte) (target, string) {
	t := target{host: store.HostName(view(host))}
	fault := ""
	if t.host == "" {
		fault = "Host header is required"
	}
	if _, rest, absolute := bytes.Cut(uri, []byte("://")); absolute && !bytes.HasPrefix(uri, []byte("/")) {
		end := bytes.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		if fault == "" && store.HostName(view(rest[:end])) != t.host {
			fault = "request target and Host header name different hosts"
		}
		if uri = rest[end:]; len(uri) == 0 || uri[0] == '?' {
			uri = append([]byte("/"), uri...)
		}
	}
	t.path, t.query, _ = bytes.Cut(uri, []byte("?"))
	return t, fault
}

// unreadableTarget is the target of a request that fasthttp could not read. After an error in the head the
// request is empty, but the error quotes how it began: enough to choose a form of error, and no
// more than that hangs on it.
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

// headParts finds the Host header and the request target in the beginning of a request.
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

// place finds the surface of a target. It reports false when the host is none of this server's; the surface
// is then the one whose form of error the client is likely to read.
func (s *Server) place(v *visit, t target) bool {
	switch {
	case t.host == s.ClientTagHost && (t.host != s.BaseHost || isTagPath(t.path)):
		v.onTagHost = true
	case t.host == s.BaseHost:
		v.surface = partnerSurface
	case t.host != "" && s.directory.KnowsHost(t.host): // "" is where the directory has client-side tags
		v.onTagHost = true
	default:
		if bytes.HasPrefix(t.path, []byte("/v1/")) {
			v.surface = partnerSurface
		}
		return false
	}
	return true
}

// handleUnreadable answers a request that fasthttp could not read; the connection is closed after it.
func (s *Server) handleUnreadable(ctx *fasthttp.RequestCtx, err error) {
	v := visit{began: time.Now()}
	defer s.end(ctx, &v)
	s.place(&v, unreadableTarget(ctx, err))
	if v.onTagHost {
		allowOrigin(ctx)
	}
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout() && s.stopping.Load():
		s.fail(ctx, v.surface, fasthttp.StatusServiceUnavailable, "The service is stopping, please retry") // not 408, the client's fault
		return
	case errors.As(err, &timeout) && timeout.Timeout():
		// Nothing is known of the request, so a page cannot read this. The tag takes that for what it is, a slow
		// network, and sends again.
		s.fail(ctx, v.surface, fasthttp.StatusRequestTimeout, "Request was not received in time")
		return // whoever sends so slowly is not waited for
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && bodyRefused(ctx):
		s.fail(ctx, v.surface, fasthttp.StatusServiceUnavailable, "Too many large requests are under way, please retry")
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		s.fail(ctx, v.surface, fasthttp.StatusRequestEntityTooLarge, "Request body is larger than 1 MiB")
	case errors.As(err, &small):
		s.fail(ctx, v.surface, fasthttp.StatusRequestHeaderFieldsTooLarge, "Request header is too large")
	default:
		s.fail(ctx, v.surface, fasthttp.StatusBadRequest, "Request is malformed")
	}
	drainOnClose(ctx)
}

// expect answers a client that asks before it sends its body: there is no need to send one that will not be
// read.
func (s *Server) expect(ctx *fasthttp.RequestCtx) int {
	if ctx.Request.Header.ContentLength() <= store.MaxBatchBytes && !bodyRefused(ctx) {
		return fasthttp.StatusContinue
	}
	s.handleUnreadable(ctx, fasthttp.ErrBodyTooLarge)
	return ctx.Response.StatusCode()
}

// fail answers with an error in the form of a surface; a 503 says when to come again. The message is one of this
// package's own, as refusal wants it.
func (s *Server) fail(ctx *fasthttp.RequestCtx, sf surface, status int, message string) {
	if sf == partnerSurface {
		s.PartnerError(ctx, status, message)
		return
	}
	refusal(status, message).send(ctx)
}

// end counts and logs an answered request. It is deferred: a panic becomes a 500 here.
func (s *Server) end(ctx *fasthttp.RequestCtx, v *visit) {
	if p := recover(); p != nil {
		s.metrics.panics.Inc()
		s.Log.Error("panic", "surface", surfaceNames[v.surface], "value", p, "stack", string(debug.Stack()))
		ctx.Response.Reset()
		if v.onTagHost {
			allowOrigin(ctx)
		}
		s.fail(ctx, v.surface, fasthttp.StatusInternalServerError, "Unable to process request")
	}
	if s.stopping.Load() {
		ctx.SetConnectionClose()
	}
	status, took := ctx.Response.StatusCode(), time.Since(v.began)
	s.metrics.request(v.surface, v.endpoint, status, took)
	level := slog.LevelDebug // the tag server's own failures were logged with their cause
	if status >= 500 && v.surface == partnerSurface {
		level = slog.LevelWarn
	}
	if s.Log.Enabled(ctx, level) {
		s.Log.Log(ctx, level, "request", "surface", surfaceNames[v.surface], "endpoint", endpointNames[v.endpoint],
			"method", strconv.Quote(string(ctx.Method())), "status", status, "took", took)
	}
}
