// Package partnerapi is the partner REST API. A partner's backend creates merchants, generates and verifies
// their tracking tags, and lists the events that the tags recorded. README.md is the guide for partners.
//
// Each request is checked in this order: route and method, API key or session of the web console, limits on rates, size of
// the body, parameters, existence, ownership, state. The first check that fails decides the answer. A suspended partner's
// changes are refused before their parameters are checked, except for what persons may ask for.
//
// A handler decodes the request, asks the engine and answers, or returns an error, which errors.go turns into an
// answer. Four files answer refusals themselves: api.go and reference.go a wrong method, api.go also a large body; limits.go a
// wrong key and too many requests; verify.go a DNS check that found the record missing or wrong.
//
// Read in this order:
//
//	api.go           routes, and the steps before a handler
//	merchants.go     list, read, create and delete merchants
//	change.go        change a merchant; its secrets: who may link identifiers of its users
//	keys.go          list, issue and revoke the partner's own API keys; what is enabled for it
//	generate.go      generate a tag; check whether it can get its domain
//	verify.go        verify the DNS of a tag
//	events.go        list events
//	feed.go          read events in the order of receipt, and wait for new ones
//	stream.go        the same as server-sent events
//	watch.go         wait for events; check again who may read
//	exports.go       all events of a merchant as a file
//	reference.go     the pages that describe the API
//	streamedbody.go  answers that are made while they are sent
//	summary.go       count events by time and by name or tag
//	refused.go       why an event is missing: what was refused, and what an event would get
//	erasures.go      erase a person, read what is held of one
//	destinations.go  where events are delivered to: package delivery
//	tag.go           read a tag; the JSON of a tag, and the HTML that installs it
//	owner.go         load a merchant or tag of the partner; refuse changes of a suspended one
//	limits.go        the rates of requests that a partner and an address may send
//	auth.go          find the partner of an API key or a session; what is known before the body
//	cookie/          the sessions of the web console
//	errors.go        turn errors into answers
//	config.go        what the API is made of
//	query.go         parameters of path and query, and Idempotency-Key; pages of a list
//	json.go          request and answer bodies
//	shares.go        limit what a partner has under way: the memory of listings, verifications, streams, exports
//	metrics.go       names the endpoints; counts the readers of the feed, and the events that they get
package partnerapi

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/fasthttp/router"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// resource is the operations of one path, by method.
type resource map[string]operation

// operation is what one method does at one path.
type operation struct {
	name   string // in metrics
	handle handler
	query  []string // the names of its query parameters
	waits  bool     // its context is that of Config.Waiting
}

func op(name string, handle handler, query ...string) operation {
	return operation{name, handle, query, false}
}

// handler answers one request of an authenticated partner, or returns an error instead.
type handler func(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error

// New returns the handler of the whole API. It does not recover from panics; the server around it does.
func New(cfg Config) fasthttp.RequestHandler { return newAPI(cfg).routes() }

func (a *api) routes() fasthttp.RequestHandler {
	routes := router.New()
	// A path has one spelling: no redirects from others.
	routes.RedirectFixedPath, routes.RedirectTrailingSlash = false, false
	// The router's own Allow header would list the methods of every pattern that matches the path: for
	// …/tracktag/generate also GET, because "generate" could be a tag id. So serve answers wrong methods.
	routes.HandleMethodNotAllowed, routes.HandleOPTIONS = false, false
	routes.NotFound = func(r *fasthttp.RequestCtx) { a.fail(context.Background(), r, errNoRoute) }
	for path, res := range a.resources() {
		routes.ANY(path, a.serve(res))
	}
	for path, serve := range a.references() {
		routes.ANY(path, serve)
	}
	return routes.Handler
}

// resources are the operations by path. Each is listed beside its handler, and openapi/openapi.yaml describes it.
func (a *api) resources() map[string]resource {
	all := a.merchantResources()
	for _, more := range []map[string]resource{
		a.tagResources(), a.eventResources(), a.keyResources(), a.personResources(), a.debugResources(), a.deliveryResources(),
	} {
		maps.Copy(all, more)
	}
	return all
}

// serve returns the handler of one path. It makes the checks that all operations have in common, and then calls the
// operation of the request's method.
func (a *api) serve(res resource) fasthttp.RequestHandler {
	if get, ok := res["GET"]; ok {
		res["HEAD"] = get // fasthttp does not send the body
	}
	allow := strings.Join(slices.Sorted(maps.Keys(res)), ", ")
	return func(r *fasthttp.RequestCtx) {
		op, ok := res[string(r.Method())]
		if !ok {
			r.Response.Header.Set(fasthttp.HeaderAllow, allow)
			WriteError(r, fasthttp.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		r.SetUserValue(endpointValue, op.name)
		partner, caller, ok := authenticate(r, a.Engine.Directory(), a.console, a.Now())
		if !ok {
			a.refuseStranger(r)
			return
		}
		SetPartner(r, partner.ID)
		r.SetUserValue(callerValue, caller)
		if caller.session.ID != "" {
			setSessionHeaders(r)
		}
		changes := !r.IsGet() && !r.IsHead() && op.name != tryOperation
		if !a.withinLimits(r, partner, changes) {
			return
		}
		if isTooLarge(r) {
			WriteError(r, fasthttp.StatusRequestEntityTooLarge, TooLarge)
			return
		}
		// A request that changes something is finished, even when its client has gone.
		ctx := store.WithActor(context.Background(), caller.actor(r))
		if changes {
			ctx = store.WithCheck(ctx, func() error { return a.mayChange(caller, partner.ID, op.name) })
		} else {
			var done context.CancelFunc
			open := a.Context
			if op.waits {
				open = a.Waiting
			}
			ctx, done = open(r)
			defer done()
		}
		ctx = store.WithPartner(ctx, partner.ID)
		err := checkNames(r.QueryArgs(), op.query)
		if changes {
			err = cmp.Or(caller.check(op.name), a.mayChange(caller, partner.ID, op.name), err)
		}
		if err == nil {
			err = op.handle(ctx, r, partner)
		}
		if err == nil && !changes {
			if _, valid := a.validFor(caller); !valid { // by reading, this node may have learnt what another one has revoked
				r.Response.Header.Del(fasthttp.HeaderContentEncoding)
				r.Response.Header.Del(fasthttp.HeaderContentDisposition)
				err = errKeyEnded
			}
		}
		if err != nil {
			a.fail(ctx, r, err)
		}
	}
}

// mayChange returns an error when a caller may not make the changes of an operation any more: its key or session has ended, or
// its partner is suspended.
func (a *api) mayChange(c caller, id store.PartnerID, operation string) error {
	if _, valid := a.validFor(c); !valid {
		return errKeyEnded
	}
	if p, _ := a.Engine.Directory().Partner(id); p.Suspended && !lawful[operation] {
		return errPartnerSuspended
	}
	return nil
}

// lawful are the POSTs that a suspended partner may still send: by law, it must answer in time when a person asks what
// is held of him, or wants it erased.
var lawful = map[string]bool{"erase_person": true, personalOperation: true}

// personalOperation changes nothing. It is limited like changes, because what it answers is worth more than an event.
const personalOperation = "personal_data"

// setSessionHeaders sets the headers of an answer to a browser: it must not keep it, guess its type, or show it as a page.
func setSessionHeaders(r *fasthttp.RequestCtx) {
	h := &r.Response.Header
	h.Set(fasthttp.HeaderCacheControl, "no-store")
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	h.Set(fasthttp.HeaderContentSecurityPolicy, "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

const notAuthenticated = "Authentication required"
