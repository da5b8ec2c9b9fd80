package tag

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/store"
	"mtagd/store/budget"
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

	Browsers Browsers // nil: nobody wants to know of browsers

	Refused *refused.Memory // remembers refused and odd events; nil: nothing is remembered
}

// Browsers takes the address and the user agent of browsers along with events, for those who may have them.
type Browsers interface {
	// Seal returns what store.Mark.Client is for events of a browser; nil when it is not wanted.
	Seal(m store.MerchantID, address netip.Addr, userAgent []byte) []byte
	// MayTake reports whether the visitor of an event has agreed to it.
	MayTake(event []byte) bool
}

// Server answers the requests of all tag hosts.
type Server struct {
	cfg       Config
	directory *store.Directory
	scripts   versions
	events    eventCounters
	limits    *limits                          // nil: no limits
	parsing   *budget.Budget[store.MerchantID] // slots for large batches
	bots      *bots
	reports   *reporter // nil: nothing is reported
}

// New makes a server.
func New(cfg Config) *Server {
	s := &Server{
		cfg:       cfg,
		directory: cfg.Engine.Directory(),
		scripts:   newVersions(),
		events:    newEventCounters(cfg.Metrics),
		parsing:   budget.Turns[store.MerchantID](parsers()),
		bots:      new(bots),
	}
	if cfg.Refused != nil {
		s.reports = &reporter{memory: cfg.Refused, addresses: cfg.Clients != nil}
	}
	if cfg.Limits {
		s.limits = newLimits(cfg.Clients, cfg.Nodes, cfg.Engine.FreeSpace, cfg.Refusals)
	}
	return s
}

// eventCounters count events by outcome. They are looked up once by their labels: a look-up costs more than the increment.
type eventCounters [outcomes]prometheus.Counter

// eventOutcome is what became of an event, the label of the event counter.
type eventOutcome uint8

const (
	eventRecorded eventOutcome = iota
	eventDuplicate
	eventUnresolved
	eventSuppressed // the person was erased, and later events are refused
	eventRefused    // the event is wrong; a batch that is refused as a whole counts as one
	eventFailed     // the engine returned an error
	outcomes
)

var outcomeNames = [outcomes]string{"recorded", "duplicate", "unresolved", "suppressed", "refused", "failed"}

func newEventCounters(reg prometheus.Registerer) (counters eventCounters) {
	events := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_events_total",
		Help: "Events received, by outcome: recorded, duplicate, unresolved (no muid found), suppressed (the person was erased), refused, failed. A batch that is refused as a whole counts as one.",
	}, []string{"outcome"})
	for o, name := range outcomeNames {
		counters[o] = events.WithLabelValues(name)
	}
	return counters
}
