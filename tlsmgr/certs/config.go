// Package certs gets the TLS certificates of the service's hosts from an ACME CA, renews them, and answers handshakes.
//
// A host's certificate is ordered as soon as verify has found the host's DNS correct, so that no visitor has to wait
// for it. All certificates stay in memory, because certmagic's timer renews only those. A certificate is not renewed
// while the host's DNS leads elsewhere. Config.CheckDNS and DNSFound say where DNS leads. The package never updates
// tags.
//
// Several nodes can share their certificates: see store.Shared. Each answers the challenges of all, loads what another
// has got, and keeps to the same limits of the CA.
//
// Read in this order:
//
//	handshake.go  TLS handshakes: unknown names are refused here
//	certs.go      Certificates: start, stop, and the calls of other packages
//	order.go      from an order to a certificate, with retries
//	certmagic.go  certmagic, configured: it keeps the certificates, and renews them
//	issuer.go     one attempt at the CA, by the ACME protocol
//	account.go    the service's account at the CA, and the names that CAA records use for the CA
//	challenge.go  the challenges by which the CA validates hosts
//	limits.go     how often attempts for a host may fail, their type of challenge, and how many orders all nodes have left
//	turns.go      the queues in which orders wait: partners take turns
//	failure.go    what a failed order means for the next attempt and for the merchant, and when the CA says to come back
//	storage.go    certmagic's files, and its locks in memory; or both in the store that several nodes share
//	metrics.go    counters and gauges
//	host.go       the state of each host's certificate
//	config.go     Config; intervals, timeouts and limits
package certs

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"mtagd/store"
)

// Config says which hosts get certificates, and from which CA.
type Config struct {
	Dir    string       // directory of accounts, keys and certificates; not used with Shared
	Shared store.Shared // keeps them for several nodes; nil: Dir does
	Hosts  store.Hosts  // the hosts that may have certificates

	// CheckDNS checks where the DNS of a tag host leads at this moment. It is called before each order and renewal; a
	// host whose DNS leads elsewhere gets neither.
	CheckDNS func(ctx context.Context, host string) store.DNSFinding

	CA         string         // URL of the CA's ACME directory
	Roots      *x509.CertPool // verify the server at CA; nil: the system's
	Email      string         // contact of the ACME account; may be empty
	EABKeyID   string         // key id of the external account binding; may be empty
	EABHMACKey string         // secret of that key, in base64url

	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: register no metrics
}

// redact removes the email address of the ACME account from a text. Certmagic puts it into some errors, in lower case.
func (c Config) redact(text string) string {
	if c.Email == "" {
		return text
	}
	return strings.NewReplacer(c.Email, "(contact)", strings.ToLower(c.Email), "(contact)").Replace(text)
}

// pace is a set of intervals and timeouts. Tests use shorter ones.
type pace struct {
	renewCheck time.Duration // between two checks of which certificates are due for renewal
	loadNew    time.Duration // between two looks for hosts that other nodes have verified
	visitor    time.Duration // how long a handshake waits for a certificate that is being ordered
	order      time.Duration // timeout of one order

	// Waits after the first failure, by its kind. Each further failure doubles the wait, up to maxWait.
	caFailed    time.Duration // the CA could not be reached, or failed itself
	hostRefused time.Duration // the CA refused
	caLimited   time.Duration // the CA's rate limit was reached, and it did not say when to come back
	maxWait     time.Duration
}

var usualPace = pace{
	renewCheck:  time.Minute,
	loadNew:     5 * time.Second,
	visitor:     8 * time.Second,
	order:       3 * time.Minute,
	caFailed:    5 * time.Second,
	hostRefused: time.Minute,
	caLimited:   10 * time.Minute,
	maxWait:     6 * time.Hour,
}

// ordersAtOnce limits the orders in progress. An order mostly waits for the CA.
const ordersAtOnce = 300

// checksAtOnce limits the DNS checks before orders. A check takes at most eight seconds.
const checksAtOnce = 32

// Let's Encrypt's limit on new orders of one account: 300 in three hours.
const (
	letsEncryptBurst = 300
	letsEncryptEvery = 36 * time.Second
)

// newOrderLimiter is the token bucket for new orders at a CA.
func newOrderLimiter(ca string) *rate.Limiter {
	if u, err := url.Parse(ca); err == nil && strings.HasSuffix(u.Hostname(), ".letsencrypt.org") {
		return rate.NewLimiter(rate.Every(letsEncryptEvery), letsEncryptBurst)
	}
	return rate.NewLimiter(rate.Inf, 0)
}
