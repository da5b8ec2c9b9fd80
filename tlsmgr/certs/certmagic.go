package certs

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
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
	base := certmagic.Config{Storage: storage, OnEvent: onEvent, Logger: log}
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
		if cert.Leaf != nil {
			latest = later(latest, cert.Leaf.NotAfter)
		}
	}
	return latest
}

// logCore writes certmagic's warnings and errors to the service's own log. It keeps only fields that are known to be
// harmless: others could hold an email address or a client's IP address.
type logCore struct {
	log    *slog.Logger
	redact func(string) string
	fields []zapcore.Field
}

var harmlessFields = []string{"identifier", "identifiers", "subjects", "server_name", "issuer", "ca", "error",
	"expiration", "remaining", "url", "method", "status_code", "challenge_type", "explanation_url"}

// Enabled drops info and debug messages: this package itself logs each certificate that is issued or renewed.
func (l *logCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (l *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{l.log, l.redact, slices.Concat(l.fields, fields)}
}

func (l *logCore) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(entry.Level) {
		return to.AddCore(entry, l)
	}
	return to
}

// Write logs errors as warnings too: each concerns one host, and what failed is retried.
func (l *logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(l.fields, fields) {
		if slices.Contains(harmlessFields, f.Key) {
			f.AddTo(values)
		}
	}
	attrs := []slog.Attr{slog.String("event", l.redact(entry.Message))}
	for _, key := range harmlessFields {
		if v, ok := values.Fields[key]; ok {
			attrs = append(attrs, slog.String(key, l.redact(fmt.Sprint(v))))
		}
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "certificates", attrs...)
	return nil
}

func (l *logCore) Sync() error { return nil }
