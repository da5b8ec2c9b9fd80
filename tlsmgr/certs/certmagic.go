package certs

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"
)

// magic is certmagic: one cache of certificates, and three configurations that share it.
type magic struct {
	cache    *certmagic.Cache
	renewing *certmagic.Config // renews certificates by a timer and staples OCSP
	resting  *certmagic.Config // does neither: for hosts whose DNS leads elsewhere
	ordering *certmagic.Config // loads certificates without a request to OCSP, and orders them in one attempt
}

func init() {
	// Certmagic limits the rate of orders and renewals in the whole process. With its default of 10 in 10 seconds, a
	// partner with 200 new shops would wait for minutes. So lift it, and let orders.limiter limit the orders alone.
	certmagic.RateLimitEvents, certmagic.RateLimitEventsWindow = 100, time.Second
	certmagic.UserAgent = "mtagd"
}

// newMagic configures certmagic. Certmagic will call mayRenew, while its cache is locked, to choose between renewing
// and resting for a host's certificate. It will call onEvent during orders and renewals, and wait for it.
func newMagic(cfg Config, p pace, mayRenew func(host string) bool, onEvent func(context.Context, string, map[string]any) error) *magic {
	log := zap.New(&logCore{log: cfg.Log, redact: cfg.redact})
	m := &magic{}
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(cert certmagic.Certificate) (*certmagic.Config, error) {
			if len(cert.Names) == 1 && mayRenew(cert.Names[0]) {
				return m.renewing, nil
			}
			return m.resting, nil
		},
		RenewCheckInterval: p.renewCheck,
		Logger:             log,
	})
	base := certmagic.Config{
		Storage: newStorage(cfg.Dir),
		OnEvent: onEvent,
		Logger:  log,
	}
	m.renewing = certmagic.New(m.cache, base)
	issuer := certmagic.NewACMEIssuer(m.renewing, issuerTemplate(cfg, p, log))
	m.renewing.Issuers = []certmagic.Issuer{issuer}

	base.Issuers = []certmagic.Issuer{plainIssuer{issuer}}
	base.OnDemand = &certmagic.OnDemandConfig{DecisionFunc: func(context.Context, string) error { return errDNSElsewhere }}
	m.resting = certmagic.New(m.cache, base) // the renewal timer skips certificates that are on demand

	base.OnDemand = nil
	base.OCSP.DisableStapling = true // loading must not wait for an OCSP responder; an hourly run of the cache staples
	m.ordering = certmagic.New(m.cache, base)
	return m
}

// plainIssuer hides from certmagic that the issuer is an ACMEIssuer. Then the order for a renewal does not name the
// certificate that it replaces. Some CAs refuse orders that do (see isRefusedOrder).
type plainIssuer struct{ *certmagic.ACMEIssuer }

func issuerTemplate(cfg Config, p pace, log *zap.Logger) certmagic.ACMEIssuer {
	template := certmagic.ACMEIssuer{
		CA:                        cfg.CA,
		TrustedRoots:              cfg.Roots,
		Email:                     cmp.Or(cfg.Email, noEmail),
		Agreed:                    true,
		DisableDistributedSolvers: true, // one process answers all challenges, so they need not be on disk
		CertObtainTimeout:         p.order,
		Logger:                    log,
		NewAccountFunc: func(_ context.Context, _ *certmagic.ACMEIssuer, account acme.Account) (acme.Account, error) {
			if cfg.Email == "" {
				account.Contact = nil // CAs refuse noEmail
			}
			return account, nil
		},
	}
	// Certmagic tries to open listeners for the challenges itself. Give it the addresses of this service's listeners:
	// it finds them in use, and relies on these to answer.
	template.ListenHost, template.AltHTTPPort = solverAddress(cfg.HTTP)
	_, template.AltTLSALPNPort = solverAddress(cfg.HTTPS)
	if cfg.EABKeyID != "" {
		template.ExternalAccount = &acme.EAB{KeyID: cfg.EABKeyID, MACKey: cfg.EABHMACKey}
	}
	return template
}

// noEmail is the address that certmagic gets when none is configured. It is the name of certmagic's folder for an
// account without an address. With an empty address, certmagic would look for one among the accounts on disk, and
// while the first account is being written it would take this folder's name for an address.
const noEmail = "default"

func solverAddress(listening net.Addr) (host string, port int) {
	at, err := netip.ParseAddrPort(listening.String())
	if err != nil {
		return "", 0
	}
	if !at.Addr().IsUnspecified() {
		host = at.Addr().String()
	}
	return host, int(at.Port())
}

// load puts the certificate on disk into memory. The error is fs.ErrNotExist when there is none.
func (m *magic) load(ctx context.Context, host string) (certmagic.Certificate, error) {
	return m.ordering.CacheManagedCertificate(ctx, host)
}

// expiryOf is when the certificate in memory expires; zero when there is none. The caller must not hold hostStates.mu.
func (m *magic) expiryOf(host string) time.Time {
	var latest time.Time
	for _, cert := range m.cache.AllMatchingCertificates(host) {
		if cert.Leaf != nil && cert.Leaf.NotAfter.After(latest) {
			latest = cert.Leaf.NotAfter
		}
	}
	return latest
}
