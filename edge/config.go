package edge

import (
	"context"
	"crypto/tls"

	"github.com/valyala/fasthttp"

	"mtagd/edge/tag"
	"mtagd/store"
)

// DefaultConnectionsPerAddress is for Config.ConnectionsPerAddress. An office of 1,000 people behind one address, each
// with one page open, fits; so does a backend that sends events on a few hundred connections.
const DefaultConnectionsPerAddress = 1024

// Config is what a Server is made of. Hosts are written as store.HostName returns them.
type Config struct {
	tag.Config // without Clients. ClientTagHost may equal BaseHost, which then serves both.

	BaseHost string   // serves the partner API
	Aliases  []string // other names of the base host (development)
	// AddressEvents is, with Limits, how many requests and events one client address may send in a second. 0: no limit.
	AddressEvents int

	// PartnerAPI answers on the base host, except the paths of the tag protocol when ClientTagHost is the same host.
	PartnerAPI fasthttp.RequestHandler
	// PartnerNeedsBody reports whether the answer of PartnerAPI may depend on the body of a request, of which only the
	// head has arrived. When it does not, the request is answered without its body. nil: every answer may.
	PartnerNeedsBody func(ctx *fasthttp.RequestCtx) bool

	// With TLS, ServeTLS answers for all hosts, and ServePlain redirects to it.
	TLS *tls.Config
	// Challenge returns the answer to a CA's challenge over plain HTTP, and false when there is no such challenge. It may
	// wait for one until ctx ends.
	Challenge func(ctx context.Context, host, path string) (answer string, ok bool)
	// HSTS makes browsers use only HTTPS for the base host, for a year.
	HSTS bool
	// HandshakesPerIP limits the concurrent TLS handshakes of one client address. 0: no limit.
	HandshakesPerIP int

	// ConnectionsPerAddress limits the open connections of one client address: an IPv4 address or an IPv6 /64 network.
	// The limit is never more than an eighth of all connections that the process may have. 0: no limit.
	ConnectionsPerAddress int

	// TrustedProxies are the addresses whose connections begin with a PROXY protocol header. Empty: trust no proxy.
	TrustedProxies store.Networks
}
