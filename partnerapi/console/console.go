// Package console serves the web console below /console/ on the base host: its page, its sessions, and what operators see.
// The page gets everything else from the partner API, as every other client does.
//
// The page is a program that runs in the browser. It is built from app/, and embedded from dist/.
//
//	console.go   routes
//	files.go     the page and its files
//	session.go   sign in, sign out
//	sessions.go  who is signed in as a partner; sign out elsewhere
//	attempts.go  limits of signing in
//	overview.go  what operators see of the service
//	tenants.go   partners with their figures; who is suspended
//	hosts.go     hosts of tags
//	audit.go     the newest entries of the audit log
//
// # Sessions
//
// Whoever signs in with an API key, or with a link that an operator has made, gets a session: a random text of 160 bits in a
// cookie (package cookie). It is control data, of which only a hash is stored. The audit log has its beginning and its end.
// Two other ways were weighed:
//
//   - A sealed cookie that says who is signed in needs no record. But signing out must end a session at once, also for
//     whoever has copied the cookie. So every machine of the service would need a list of the ended sessions: a record after
//     all, and a secret to guard as well.
//   - A table in memory is lost at every restart, and no other machine has it.
//
// Each request looks its session up in the directory, in memory. A session ends after 12 hours, when somebody signs out,
// with its key and with its partner. It may do what its key may do; a link's session may do everything that its partner may.
// As with a key, a suspended partner can still read.
//
// A link can be used once, within 15 minutes, when its holder has said so: the page shows first whom it signs in. Its text
// is after the # of its URL, which browsers send to no server: so no proxy and no log has it.
package console

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/edge/limit"
	"mtagd/partnerapi"
	"mtagd/partnerapi/cookie"
	"mtagd/store"
)

// Config has what the console needs. Every field is required, except where it says otherwise.
type Config struct {
	Engine       store.Engine
	API          fasthttp.RequestHandler // answers all requests that are not for the console
	BaseURL      string                  // "https://<base host>" except in development
	OwnHosts     []string                // the base host and the client tag host
	Certificates Certificates            // nil: a proxy in front of the service ends TLS
	System       func() System           // what is known of the service's process
	Log          *slog.Logger
	Now          func() time.Time
	Refusals     *limit.Refusals // nil: refusals are not counted
	Limits       bool            // limit the rates of signing in
}

// Certificates knows the certificates of hosts.
type Certificates interface {
	Certificate(host string) store.Certificate
}

// Console answers the requests of the console.
type Console struct {
	Config
	cookie cookie.Cookie
	files  map[string]func() asset.File // of the page, by name

	ofAddresses *limit.Addresses // wrong keys and links; nil: no limits
	ofKeys      *limit.Buckets   // attempts with a key; nil: no limits
	figures     kept[map[store.PartnerID]figures]
	hosts       store.Hosts
	hostList    kept[hostsJSON]
}

// New makes a console.
func New(cfg Config) *Console {
	c := &Console{Config: cfg, cookie: cookie.New(cfg.BaseURL), files: pageFiles(), hosts: store.NewHosts(cfg.Engine.Directory(), cfg.OwnHosts...)}
	if cfg.Limits {
		c.ofAddresses, c.ofKeys = limit.NewAddresses(limit.NewBuckets(), addressRate), limit.NewBuckets()
	}
	return c
}

const (
	root        = "/console/"
	assetPrefix = root + "assets/"

	sessionPrefix = root + "sessions/"
)

// Serve answers requests below /console/, and passes all others to the API.
func (c *Console) Serve(r *fasthttp.RequestCtx) {
	path := string(r.Path())
	isRoot := path == strings.TrimSuffix(root, "/")
	if !isRoot && !strings.HasPrefix(path, root) {
		c.API(r)
		return
	}
	c.setHeaders(r)
	switch {
	case isRoot:
		r.Response.Header.Set(fasthttp.HeaderLocation, root)
		r.SetStatusCode(fasthttp.StatusPermanentRedirect)
	case strings.HasPrefix(path, assetPrefix):
		c.route(r, route{"GET": {"console_asset", c.serveAsset}})
	case strings.HasPrefix(path, sessionPrefix):
		c.route(r, route{"DELETE": {"console_end_session", c.forPartners(false, c.endSession)}})
	case path == root+"session":
		c.route(r, route{"GET": {"console_session", c.showSession}, "POST": {"console_sign_in", c.signIn}, "DELETE": {"console_sign_out", c.signOut}})
	case path == root+"link":
		c.route(r, route{"POST": {"console_link", c.showLink}})
	case path == root+"sessions":
		c.route(r, route{"GET": {"console_sessions", c.forPartners(true, c.listSessions)}, "DELETE": {"console_end_sessions", c.forPartners(false, c.endSessions)}})
	case path == root+"operator/overview":
		c.route(r, route{"GET": {"console_overview", c.forOperators(c.overview)}})
	case path == root+"operator/audit":
		c.route(r, route{"GET": {"console_audit", c.forOperators(c.audit)}})
	default:
		c.route(r, route{"GET": {"console_page", c.servePage}})
	}
}

// route is the operations of one path, by method.
type route map[string]operation

// operation answers a request, or returns an error instead. name is for metrics.
type operation struct {
	name   string
	handle func(*fasthttp.RequestCtx) error
}

// route calls the operation of a request's method.
func (c *Console) route(r *fasthttp.RequestCtx, by route) {
	if get, ok := by["GET"]; ok {
		by["HEAD"] = get // fasthttp does not send the body
	}
	op, ok := by[string(r.Method())]
	if !ok {
		r.Response.Header.Set(fasthttp.HeaderAllow, strings.Join(slices.Sorted(maps.Keys(by)), ", "))
		partnerapi.WriteError(r, fasthttp.StatusMethodNotAllowed, "Method not allowed")
		return
	}
	partnerapi.SetEndpoint(r, op.name)
	if err := op.handle(r); err != nil {
		c.fail(r, err)
	}
}

// policy is the Content-Security-Policy of all answers.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// setHeaders sets the headers that all answers have. No cache may store an answer, unless Cache-Control is set again.
func (c *Console) setHeaders(r *fasthttp.RequestCtx) {
	h := &r.Response.Header
	h.Set(fasthttp.HeaderContentSecurityPolicy, policy)
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	h.Set(fasthttp.HeaderReferrerPolicy, "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set(fasthttp.HeaderCacheControl, "no-store")
}
