package certs

import (
	"context"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// magic is certmagic: one cache of certificates, and three configurations that share it.
type magic struct {
	cache    *certmagic.Cache
	renewing *certmagic.Config // renews certificates by a timer and staples OCSP
	resting  *certmagic.Config // does neither: for hosts whose DNS leads elsewhere, or which the CA refuses for now
	ordering *certmagic.Config // loads certificates without a request to OCSP, and orders them in one attempt
}

// newMagic configures certmagic. Certmagic will call mayRenew, while its cache is locked, to choose between renewing
// and resting for a host's certificate. It will call onEvent during orders and renewals, and wait for it.
func newMagic(
	cfg Config, p pace, storage certmagic.Storage, ca issuer,
	mayRenew func(host string) bool, onEvent func(context.Context, string, map[string]any) error,
) *magic {
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
		Storage: storage,
		OnEvent: onEvent,
		Logger:  log,
	}
	replacing := ca
	replacing.replaces = true
	base.Issuers = []certmagic.Issuer{replacing}
	m.renewing = certmagic.New(m.cache, base)

	base.Issuers = []certmagic.Issuer{ca}
	base.OnDemand = &certmagic.OnDemandConfig{DecisionFunc: func(context.Context, string) error { return errDNSElsewhere }}
	m.resting = certmagic.New(m.cache, base) // the renewal timer skips certificates that are on demand

	base.OnDemand = nil
	base.OCSP.DisableStapling = true // loading must not wait for an OCSP responder; an hourly run of the cache staples
	m.ordering = certmagic.New(m.cache, base)
	return m
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
