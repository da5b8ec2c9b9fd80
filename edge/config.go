package edge

import (
	"crypto/tls"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/refused"
	"mtagd/edge/tag"
	"mtagd/store"
)

// DefaultConnectionsPerAddress is for Config.ConnectionsPerAddress. An office of 1,000 people behind one address, each
// with one page open, fits; so does a backend that sends events on a few hundred connections.
const DefaultConnectionsPerAddress = 1024

// Config is what a Server is made of. Hosts are written as store.HostName returns them.
type Config struct {
	Engine        store.Engine
	BaseHost      string   // serves the partner API
	Aliases       []string // other names of the base host (development)
	ClientTagHost string   // serves client-side tags; may equal BaseHost, which then serves both
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: metrics are not exported
	Now           func() time.Time

	// Refusals counts what is refused; nil: nothing is counted.
	Refusals *limit.Refusals
	// Browsers takes along what is known of browsers; nil: nobody wants it.
	Browsers tag.Browsers
	// Refused remembers refused and odd events; nil: nothing is remembered.
	Refused *refused.Memory
	// Limits are on: the rates of requests and events are limited, and the bytes that are stored.
	Limits bool
	Nodes  *limit.Exchange // makes limits hold over several nodes; nil: there is one
	// AddressEvents is, with Limits, how many requests and events one client address may send in a second. 0: no limit.
	AddressEvents int

	// PartnerAPI answers on the base host. When ClientTagHost is the same host, the paths of the tag protocol are not
	// its own.
	PartnerAPI fasthttp.RequestHandler
	// PartnerError answers with the partner API's standard error body.
	PartnerError func(ctx *fasthttp.RequestCtx, status int, message string)
	// PartnerNeedsBody reports whether the answer of PartnerAPI may depend on the body of a request, of which only the
	// head has arrived. When it does not, the request is answered without its body. nil: every answer may.
	PartnerNeedsBody func(ctx *fasthttp.RequestCtx) bool
	// PartnerTooLarge is the partner API's message of a 413.
	PartnerTooLarge string
	// PartnerOf returns the id of the partner whose key authenticated a request, "" before the API has checked the key.
	// It is for the log.
	PartnerOf func(ctx *fasthttp.RequestCtx) string
	// PartnerEndpoint returns the name of the endpoint that a request was for, one of a few; "" when it was for none. It is
	// for metrics and the log.
	PartnerEndpoint func(ctx *fasthttp.RequestCtx) string

	// With TLS, ServeTLS answers for all hosts, and ServePlain redirects to it.
	TLS *tls.Config
	// Challenge returns the answer to a CA's challenge over plain HTTP, and false when there is no such challenge.
	Challenge func(host, path string) (answer string, ok bool)
	// HSTS makes browsers use only HTTPS for the base host, for a year.
	HSTS bool
	// HandshakesPerIP limits the concurrent TLS handshakes of one client address. 0: no limit.
	HandshakesPerIP int

	// ConnectionsPerAddress limits the open connections of one client address: an IPv4 address or an IPv6 /64 network.
	// The limit is never more than an eighth of all connections that the process may have. 0: no limit.
	ConnectionsPerAddress int

	// TrustedProxies are the addresses whose connections begin with a PROXY protocol header. Empty: trust no proxy.
	TrustedProxies []netip.Prefix
}
