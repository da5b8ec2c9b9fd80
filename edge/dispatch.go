package edge

import (
	"bytes"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/tag"
	"mtagd/store"
)

// dispatcher passes each request on to the protocol that it is for.
type dispatcher struct {
	Config
	directory *store.Directory
	tags      *tag.Server
	metrics   *metrics
	stopping  atomic.Bool // each answer closes its connection
}

func newDispatcher(cfg Config) (*dispatcher, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	tags, err := tag.New(tag.Config{
		Engine:        cfg.Engine,
		ClientTagHost: cfg.ClientTagHost,
		Log:           cfg.Log,
		Metrics:       cfg.Metrics,
		Now:           cfg.Now,
	})
	if err != nil {
		return nil, err
	}
	return &dispatcher{Config: cfg, directory: cfg.Engine.Directory(), tags: tags, metrics: m}, nil
}

// visit is what is known of a request so far.
type visit struct {
	surface   surface
	onTagHost bool // CORS applies
	endpoint  endpoint
	began     time.Time // when the request had been read
}

// handle answers a request that could be read.
func (d *dispatcher) handle(ctx *fasthttp.RequestCtx) {
	v := visit{began: ctx.Time()}
	defer d.finish(ctx, &v)
	releaseSmallBody(ctx)
	t, ok := d.admit(ctx, &v)
	if !ok {
		return
	}
	if secure, isTLS := ctx.Conn().(*tlsConn); isTLS {
		if t.host != secure.serverName {
			// The certificate was for another host.
			d.writeError(ctx, v.surface, fasthttp.StatusMisdirectedRequest, "This host is not served on this connection")
			return
		}
		if d.HSTS && t.host == d.BaseHost {
			ctx.Response.Header.Set(fasthttp.HeaderStrictTransportSecurity, "max-age=31536000") // a year
		}
	}
	if v.surface == partnerSurface {
		v.endpoint = endpointPartner
		d.PartnerAPI(ctx)
		return
	}
	route := tag.NewRoute(t.host, t.path, t.query)
	v.endpoint = route.Endpoint
	d.tags.Serve(ctx, route)
}

// admit finds the target of a request. It returns false when it has answered: the target is ambiguous, or this server
// does not serve the host.
func (d *dispatcher) admit(ctx *fasthttp.RequestCtx, v *visit) (target, bool) {
	setRequestID(ctx)
	t, fault := newTarget(ctx.Request.Header.Host(), ctx.Request.Header.RequestURI())
	if slices.Contains(d.Aliases, t.host) {
		t.host = d.BaseHost
	}
	known := d.findSurface(v, t)
	if v.onTagHost {
		tag.AllowOrigin(ctx)
	}
	if fault == "" {
		fault = framingFault(&ctx.Request.Header)
	}
	switch {
	case fault != "":
		drainOnClose(ctx)
		ctx.SetConnectionClose()
		d.writeError(ctx, v.surface, fasthttp.StatusBadRequest, fault)
	case !known:
		d.writeError(ctx, v.surface, fasthttp.StatusMisdirectedRequest, "This host is not served here")
	default:
		return t, true
	}
	return t, false
}

// findSurface finds the surface of a target. It returns false when this server does not serve the host. The surface is
// then a guess by the path, to answer in the form that the client expects.
func (d *dispatcher) findSurface(v *visit, t target) bool {
	switch {
	case t.host == d.ClientTagHost && (t.host != d.BaseHost || tag.IsPath(t.path)):
		v.onTagHost = true
	case t.host == d.BaseHost:
		v.surface = partnerSurface
	case t.host != "" && d.directory.KnowsHost(t.host): // the directory keeps client-side tags under ""
		v.onTagHost = true
	default:
		if bytes.HasPrefix(t.path, []byte("/v1/")) {
			v.surface = partnerSurface
		}
		return false
	}
	return true
}

// writeError answers with an error in the form of a surface. The message must be plain ASCII without quotes.
func (d *dispatcher) writeError(ctx *fasthttp.RequestCtx, sf surface, status int, message string) {
	if sf == partnerSurface {
		d.PartnerError(ctx, status, message)
		return
	}
	tag.WriteError(ctx, status, message)
}

// finish counts and logs an answered request. It is deferred, and turns a panic into a 500.
func (d *dispatcher) finish(ctx *fasthttp.RequestCtx, v *visit) {
	if p := recover(); p != nil {
		d.metrics.panics.Inc()
		id := requestID(ctx)
		d.Log.Error("panic", "surface", surfaceNames[v.surface], "value", p, "stack", string(debug.Stack()), "request_id", id)
		ctx.Response.Reset()
		ctx.Response.Header.Set(tag.RequestIDHeader, id)
		if v.onTagHost {
			tag.AllowOrigin(ctx)
		}
		d.writeError(ctx, v.surface, fasthttp.StatusInternalServerError, "Unable to process request")
	}
	if d.stopping.Load() {
		ctx.SetConnectionClose()
	}
	status, took := ctx.Response.StatusCode(), time.Since(v.began)
	d.metrics.countRequest(v.surface, v.endpoint, status, took)
	if d.Log.Enabled(ctx, slog.LevelDebug) {
		d.logRequest(ctx, v, status, took)
	}
}

func (d *dispatcher) logRequest(ctx *fasthttp.RequestCtx, v *visit, status int, took time.Duration) {
	attrs := []slog.Attr{
		slog.String("surface", surfaceNames[v.surface]),
		slog.String("endpoint", endpointName(v.endpoint)),
		slog.String("method", string(ctx.Method())),
		slog.Int("status", status),
		slog.Float64("took_ms", float64(took.Microseconds())/1000),
		slog.String("request_id", requestID(ctx)),
	}
	if partner := d.PartnerOf(ctx); partner != "" {
		attrs = append(attrs, slog.String("partner", partner))
	}
	d.Log.LogAttrs(ctx, slog.LevelDebug, "request", attrs...)
}
