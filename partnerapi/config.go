package partnerapi

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/partnerapi/cookie"
	"mtagd/partnerapi/delivery"
	"mtagd/store"
	"mtagd/store/budget"
)

// Config is what the API is made of. Every field is required, except where it says otherwise.
type Config struct {
	Engine        store.Engine
	Delivery      *delivery.Service // nil: events are not delivered
	DNS           Verifier
	Certificates  Certificates             // nil: a proxy in front of the service ends TLS
	BaseURL       string                   // address of the API: "https://<base host>" except in development
	ClientTagHost string                   // serves client-side tags
	CNAMETarget   string                   // record.value: the name that merchants' CNAME records point to
	Claimable     store.Claimable          // which domains server-side tags can have
	TagURL        func(host string) string // address of a tag host: "https://<host>" except in development
	Log           *slog.Logger
	Now           func() time.Time
	Refusals      *limit.Refusals       // nil: refusals are not counted
	Refused       *refused.Memory       // what the tag hosts have refused
	Limits        bool                  // limit the rates of requests
	Nodes         *limit.Exchange       // makes limits hold over several nodes; nil: there is one
	Metrics       prometheus.Registerer // gets the API's own metrics; nil: they are not exported

	// Context returns the context of a GET or HEAD request, which ends when the client has gone, and the function that
	// releases it. All other requests run until they are done. The RequestCtx itself does not fit: it ends when the server
	// begins to shut down, and requests under way must still be answered.
	Context func(r *fasthttp.RequestCtx) (context.Context, context.CancelFunc)

	// Waiting is Context for a request that waits for events, streams or exports them. Its context also ends when the
	// request must end, for example because the service stops. The function that releases it may be called after the
	// handler has returned.
	Waiting func(r *fasthttp.RequestCtx) (context.Context, context.CancelFunc)

	// WhenAnswered calls a function when the answer to a request is written or its connection is closed. nil: large
	// answers count as memory only until their handler returns.
	WhenAnswered func(r *fasthttp.RequestCtx, call func())
}

// Verifier checks the DNS of a tag host. A partner waits for the answer, so Verify takes seconds at most.
type Verifier interface {
	Verify(ctx context.Context, host string) store.DNSFinding
}

// Certificates manages the certificates of tag hosts. Neither method blocks.
type Certificates interface {
	// Order orders a certificate in the background for a host whose DNS was just found correct.
	Order(host string)
	// Certificate returns the state of a host's certificate.
	Certificate(host string) store.Certificate
}

// api has the handlers as its methods.
type api struct {
	Config
	verifications *shares
	readings      *shares // of everything that is held of a person
	trials        *shares // of events; one takes up to 10 ms of a processor, so a partner uses one processor at most
	labelsWarned  sync.Once
	rates         *limit.Buckets   // of partners; nil: no limits
	strangers     *limit.Addresses // without a valid key; nil: no limits
	console       cookie.Cookie
	listings      *shares
	readers       *shares       // requests that follow the feed
	heartbeat     time.Duration // the constant of this name, except in tests
	exports       *shares
	metrics       *metrics
	turns         *budget.Budget[store.PartnerID] // see takeTurn
}

func newAPI(cfg Config) *api {
	a := &api{
		Config:        cfg,
		verifications: newSlots(verificationsPerPartner, slotTimeout, errVerifications),
		readings:      newSlots(1, slotTimeout, errReadings),
		trials:        newSlots(1, slotTimeout, errTrials),
		listings:      newListings(listingMemory, cfg.Engine.Directory(), memoryTimeout),
		readers:       newReaderSlots(cfg.Engine.Directory(), cfg.Limits),
		heartbeat:     heartbeat,
		exports:       newExportSlots(),
		metrics:       newMetrics(cfg.Metrics),
		console:       cookie.New(cfg.BaseURL),
		turns:         budget.Turns[store.PartnerID](max(1, int64(runtime.GOMAXPROCS(0)/2))),
	}
	if cfg.Limits {
		a.rates, a.strangers = cfg.Nodes.NewBuckets(limit.OfPartners), limit.NewAddresses(cfg.Nodes.NewBuckets(limit.OfStrangers), strangerRate)
	}
	return a
}
