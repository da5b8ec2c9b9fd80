// Package partnerapi is the partner REST API: a partner's backend creates merchants, generates and
// verifies their tracking tags, and reads back the events that those tags collected.
//
// Every request takes the same way: route and method, API key, size of the body, parameters,
// existence, ownership, state. The first of these that is wrong decides the answer. A handler
// decodes, asks the engine, and answers or returns an error, which errors.go alone turns into a
// status code. What is no error of an operation is answered where it is found: a wrong method, key
// or size here, DNS that is not right in verify.go.
//
//	api.go        routes, and the way to a handler
//	auth.go       who is asking
//	errors.go     from errors to answers
//	json.go       bodies in and out
//	query.go      parameters of path and query, pagination
//	merchants.go  list, get and create merchants
//	generate.go   generate a tag
//	verify.go     verify a tag's DNS
//	line.go       how many verifications a partner has under way
//	tag.go        read a tag, and how a tag is shown
//	snippet.go    what a page installs
//	events.go     list events
//	config.go     what is enabled for the partner
package partnerapi

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// Config is what the API is made of. Every field is required, but Certificates.
type Config struct {
	Engine        store.Engine
	DNS           Verifier
	Certificates  Certificates             // nil where TLS ends in front of the service
	ClientTagHost string                   // host of client-side tags
	CNAMETarget   string                   // record.value: what the merchants' records point to
	TagURL        func(host string) string // address of a tag host; "https://<host>" but in development
	Log           *slog.Logger
	Now           func() time.Time
}

// Verifier looks at a tag host's DNS. It takes seconds at most, since a customer waits for it.
type Verifier interface {
	Verify(ctx context.Context, host string) store.DNSFinding
}

// Certificates looks after the certificates of tag hosts. Neither method waits for anything.
type Certificates interface {
	// Order gets a certificate in the background for a host whose DNS was just found correct.
	Order(host string)
	// Certificate tells how far that has come.
	Certificate(host string) store.Certificate
}

// maxBody is the largest request body, in bytes.
const maxBody = 64 << 10

type api struct {
	Config
	lookups *line
}

// handler answers one request of an authenticated partner, or returns why it cannot.
type handler func(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error

// resource is what can be done at one path, by method.
type resource map[string]handler

// New returns the whole API. It does not recover from panics; the server around it does.
func New(cfg Config) fasthttp.RequestHandler {
	a := &api{Config: cfg, lookups: newLine(lookupsPerPartner, lineTimeout)}
	routes := router.New()
	// A path has one spelling.
	routes.RedirectFixedPath, routes.RedirectTrailingSlash = false, false
	// The router's own answer names a method as allowed wherever a parameter could match: GET for
	// …/tracktag/generate, where "generate" could be a tag id. Here each resource knows its methods.
	routes.HandleMethodNotAllowed, routes.HandleOPTIONS = false, false
	routes.NotFound = func(r *fasthttp.RequestCtx) { a.fail(r, store.NotFound("route")) }

	generate := resource{"POST": a.generateTag}
	for path, res := range map[string]resource{
		"/v1/partners/merchant":              {"GET": a.listMerchants, "POST": a.createMerchant},
		"/v1/partners/merchant/{merchantId}": {"GET": a.getMerchant},
		"/v1/partners/tracktag":              generate,
		"/v1/partners/tracktag/generate":     generate,
		"/v1/partners/tracktag/verify":       {"POST": a.verifyTag},
		"/v1/partners/tracktag/{tagId}":      {"GET": a.readTag},
		"/v1/partners/events":                {"GET": a.listEvents},
		"/v1/partners/config":                {"GET": a.readConfig},
	} {
		routes.ANY(path, a.serve(res))
	}
	return routes.Handler
}

func (a *api) serve(res resource) fasthttp.RequestHandler {
	allow := strings.Join(slices.Sorted(maps.Keys(res)), ", ")
	return func(r *fasthttp.RequestCtx) {
		handle, ok := res[string(r.Method())]
		if !ok {
			r.Response.Header.Set("Allow", allow)
			WriteError(r, fasthttp.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		partner, ok := a.authenticate(r)
		if !ok {
			WriteError(r, fasthttp.StatusUnauthorized, "Authentication required")
			return
		}
		if len(r.PostBody()) > maxBody {
			WriteError(r, fasthttp.StatusRequestEntityTooLarge, "Request body is larger than 64 KiB")
			return
		}
		// Not r: as a context it ends when the server begins to shut down, and the requests that are
		// under way then are to be finished.
		if err := handle(context.Background(), r, partner); err != nil {
			a.fail(r, err)
		}
	}
}
