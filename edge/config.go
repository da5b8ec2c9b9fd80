package edge

import (
	"crypto/tls"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// Config is what a Server is made of. Hosts are written as store.HostName returns them.
type Config struct {
	Engine        store.Engine
	BaseHost      string                                                     // serves the partner API
	Aliases       []string                                                   // other names of the base host (development)
	ClientTagHost string                                                     // serves client-side tags; may equal BaseHost
	PartnerAPI    fasthttp.RequestHandler                                    // answers on the base host, except on paths of the tag protocol
	PartnerError  func(ctx *fasthttp.RequestCtx, status int, message string) // writes the partner API's standard error body
	PartnerOf     func(ctx *fasthttp.RequestCtx) string                      // the id of the partner that the API has authenticated, "" before; for the log
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: none registered
	Now           func() time.Time

	// With TLS, ServeTLS answers for all hosts, and ServePlain redirects to it.
	TLS             *tls.Config
	Challenge       func(host, path string) (answer string, ok bool) // the answer to a CA's challenge over plain HTTP
	HSTS            bool                                             // browsers must never use plain HTTP for the base host
	HandshakesPerIP int                                              // limit of concurrent handshakes of one client address; 0: no limit

	// TrustedProxies are the addresses whose connections begin with a PROXY protocol header. Empty: trust no proxy.
	TrustedProxies []netip.Prefix
}
