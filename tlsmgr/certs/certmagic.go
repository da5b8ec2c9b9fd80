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

// magic is certmagic, configured: one cache of certificates, and three ways to treat those in it.
type magic struct {
	cache    *certmagic.Cache
	renewing *certmagic.Config // renews certificates by a timer and staples OCSP
	resting  *certmagic.Config // does neither: for hosts whose DNS leads elsewhere
	ordering *certmagic.Config // loads certificates without asking for OCSP, and orders them in one attempt
}

func init() {
	// Certmagic's own rate limit holds for the whole process. It delays renewals too, and its 10 orders in 10 seconds
	// would make a partner with 200 new shops wait for minutes. The orders have their own token bucket instead.
	certmagic.RateLimitEvents, certmagic.RateLimitEventsWindow = 100, time.Second
	certmagic.UserAgent = "mtagd"
}

// newMagic configures certmagic. It calls mayRenew for a host to choose how to treat its certificate, while the
// cache is locked. It calls onEvent during orders and renewals, and waits for it.
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
	m.resting = certmagic.New(m.cache, base) // the renewal timer skips certificates on demand

	base.OnDemand = nil
	base.OCSP.DisableStapling = true // loading must not wait for an OCSP responder; certmagic's hourly run staples
	m.ordering = certmagic.New(m.cache, base)
	return m
}

// plainIssuer hides from certmagic that the issuer is an ACMEIssuer. Then the order of a renewal does not name the
// certificate that it replaces, which some CAs refuse (see isRefusedOrder).
type plainIssuer struct{ *certmagic.ACMEIssuer }

func issuerTemplate(cfg Config, p pace, log *zap.Logger) certmagic.ACMEIssuer {
	template := certmagic.ACMEIssuer{
		CA:                        cfg.CA,
		TrustedRoots:              cfg.Roots,
		Email:                     cmp.Or(cfg.Email, noEmail),
		Agreed:                    true,
		DisableDistributedSolvers: true, // there is one process, so challenges need not go through the disk
		CertObtainTimeout:         p.order,
		Logger:                    log,
		NewAccountFunc: func(_ context.Context, _ *certmagic.ACMEIssuer, account acme.Account) (acme.Account, error) {
			if cfg.Email == "" {
				account.Contact = nil // CAs refuse noEmail
			}
			return account, nil
		},
	}
	// Certmagic tries to listen where challenges are answered, and accepts that the address is in use.
	template.ListenHost, template.AltHTTPPort = solverAddress(cfg.HTTP)
	_, template.AltTLSALPNPort = solverAddress(cfg.HTTPS)
	if cfg.EABKeyID != "" {
		template.ExternalAccount = &acme.EAB{KeyID: cfg.EABKeyID, MACKey: cfg.EABHMACKey}
	}
	return template
}

// noEmail is the name that certmagic gives to the folder of an account without an email address. When the address is
// left empty, certmagic looks for one among the accounts on disk. While the first account is being written, it
// takes this name for an address.
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

// expiryOf is when the certificate in memory expires; zero when there is none. The caller does not hold hostStates.mu.
func (m *magic) expiryOf(host string) time.Time {
	var latest time.Time
	for _, cert := range m.cache.AllMatchingCertificates(host) {
		if cert.Leaf != nil && cert.Leaf.NotAfter.After(latest) {
			latest = cert.Leaf.NotAfter
		}
	}
	return latest
}
