package tag

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/edge/requestid"
	"mtagd/edge/sdk"
	"mtagd/store"
)

// Config is what a Server is made of.
type Config struct {
	Engine        store.Engine
	ClientTagHost string // serves client-side tags
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: metrics are not exported
	Now           func() time.Time
}

// Server answers the requests of all tag hosts.
type Server struct {
	Config
	directory *store.Directory
	script    script
	metrics   *metrics
}

// New makes a server. It fails when cfg.Metrics already has the server's metrics.
func New(cfg Config) (*Server, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	return &Server{Config: cfg, directory: cfg.Engine.Directory(), script: newScript(sdk.Loader()), metrics: m}, nil
}

// engineFailed logs an error of the engine and answers the request: 503 when a retry may succeed, 500 otherwise.
func (s *Server) engineFailed(ctx *fasthttp.RequestCtx, operation string, err error) {
	id := requestid.Of(ctx)
	if store.KindOf(err) == store.KindUnavailable {
		s.Log.Warn("engine is unavailable", "operation", operation, "error", err, "request_id", id)
		unavailable.send(ctx)
		return
	}
	s.Log.Error("engine failed", "operation", operation, "error", err, "request_id", id)
	failed.send(ctx)
}
