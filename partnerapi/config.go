package partnerapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/store"
)

// Config is what the API is made of. Every field is required, except where it says otherwise.
type Config struct {
	Engine        store.Engine
	DNS           Verifier
	Certificates  Certificates             // nil: a proxy in front of the service ends TLS
	ClientTagHost string                   // serves client-side tags
	CNAMETarget   string                   // record.value: the name that merchants' CNAME records point to
	Claimable     store.Claimable          // which domains server-side tags can have
	TagURL        func(host string) string // address of a tag host: "https://<host>" except in development
	Log           *slog.Logger
	Now           func() time.Time
	Refusals      *limit.Refusals // nil: refusals are not counted
	Limits        bool            // limit the rates of requests

	// Context returns the context of a GET or HEAD request, which ends when the client has gone, and the function that
	// releases it. All other requests run until they are done. nil: GET and HEAD do too.
	Context func(r *fasthttp.RequestCtx) (context.Context, context.CancelFunc)

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
	verifications *slots
	readings      *slots // of everything that is held of a person
	labelsWarned  sync.Once
	limits        *limits // nil: no limits
	listings      *listings
}

func newAPI(cfg Config) *api {
	if cfg.Context == nil {
		// Not the RequestCtx itself: as a context it ends when the server begins to shut down, but requests that are
		// under way then must be finished.
		cfg.Context = func(*fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
			return context.Background(), func() {}
		}
	}
	a := &api{
		Config:        cfg,
		verifications: newSlots(verificationsPerPartner, slotTimeout, errVerifications),
		readings:      newSlots(1, slotTimeout, errReadings),
		listings:      newListings(listingMemory, cfg.Engine.Directory(), memoryTimeout),
	}
	if cfg.Limits {
		a.limits = newLimits()
	}
	return a
}
