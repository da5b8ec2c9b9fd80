package tag

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/store"
)

// Config is what a Server is made of.
type Config struct {
	Engine        store.Engine
	ClientTagHost string // serves client-side tags
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: metrics are not exported
	Now           func() time.Time

	Refusals *limit.Refusals // nil: refusals are not counted
	Limits   bool            // limit the rates of events and the bytes stored
	Nodes    *limit.Exchange // makes limits hold over several nodes; nil: there is one
	Clients  *limit.Clients  // with Limits: limits each client address; nil for no limit

	Refused *refused.Memory // remembers refused and odd events; nil: nothing is remembered
}

// Server answers the requests of all tag hosts.
type Server struct {
	cfg       Config
	directory *store.Directory
	scripts   versions
	metrics   *metrics
	limits    *limits // nil: no limits
	parsing   *turns
	bots      *bots
	reports   *reporter // nil: nothing is reported
}

// New makes a server. It fails when cfg.Metrics already has the server's metrics.
func New(cfg Config) (*Server, error) {
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:       cfg,
		directory: cfg.Engine.Directory(),
		scripts:   newVersions(),
		metrics:   m,
		parsing:   newTurns(parsers()),
		bots:      newBots(),
		reports:   newReporter(cfg.Refused, cfg.Clients != nil),
	}
	if cfg.Limits {
		s.limits = newLimits(cfg.Clients, cfg.Nodes, cfg.Engine.FreeSpace, cfg.Refusals)
	}
	return s, nil
}
