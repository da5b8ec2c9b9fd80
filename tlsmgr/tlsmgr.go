// Package tlsmgr checks the DNS of the hosts that tags are served on, and manages their TLS certificates. It connects
// two packages that do not import each other:
//
//	dns/       whether a host's DNS leads to the service: verify, and an hourly recheck of every host
//	certs/     the hosts' TLS certificates; absent with --tls off
//	acmetest/  a CA for tests
//	dnstest/   DNS servers for tests
//
// store.Hosts decides which hosts may have a certificate. Before certs orders or renews a certificate, it asks the
// recheck where the host's DNS leads. The hourly recheck passes each finding to certs. Only verify and the recheck
// update tags.
package tlsmgr

import (
	"context"
	"log/slog"
	"time"

	"mtagd/store"
	"mtagd/tlsmgr/certs"
	"mtagd/tlsmgr/dns"
)

// Config says which hosts exist, how their DNS is checked and where their certificates come from.
type Config struct {
	Engine   store.Engine
	OwnHosts []string   // the base host and the client tag host: they get certificates, but their DNS is not checked
	DNS      dns.Config // without Log, CA and Roots, which New sets

	// Certificates is nil when something else terminates TLS. New sets Log, Hosts and CheckDNS.
	Certificates *certs.Config

	Log *slog.Logger
}

// Manager checks the DNS of hosts and holds their certificates. Its methods are safe for concurrent use.
type Manager struct {
	verifier     *dns.Verifier
	recheck      *dns.Recheck
	certificates *certs.Certificates // nil without TLS
}

// New returns a Manager. It can verify; everything else begins with Start.
func New(cfg Config) (*Manager, error) { return newManager(cfg, 0) }

// newManager lets tests choose the interval of the recheck; 0 means an hour.
func newManager(cfg Config, recheckEvery time.Duration) (*Manager, error) {
	hosts := store.NewHosts(cfg.Engine.Directory(), cfg.OwnHosts...)
	m := &Manager{}

	verify := cfg.DNS
	verify.Log = cfg.Log
	if cfg.Certificates != nil {
		verify.CA, verify.Roots = cfg.Certificates.CA, cfg.Certificates.Roots
	}
	var err error
	if m.verifier, err = dns.NewVerifier(verify); err != nil {
		return nil, err
	}

	recheck := dns.RecheckConfig{
		Hosts: hosts, Engine: cfg.Engine, Verify: m.verifier.Verify, Every: recheckEvery, Log: cfg.Log,
	}
	if cfg.Certificates != nil {
		c := *cfg.Certificates
		c.Log, c.Hosts = cfg.Log, hosts
		c.CheckDNS = func(ctx context.Context, host string) store.DNSFinding { return m.recheck.Now(ctx, host) }
		if m.certificates, err = certs.New(c); err != nil {
			return nil, err
		}
		recheck.Found = m.certificates.DNSFound
	}
	m.recheck = dns.NewRecheck(recheck)
	return m, nil
}

// Start begins the hourly recheck, and gets the certificates of all hosts in the background. Call it once the
// listeners are open: from then on the CA may connect to validate challenges.
func (m *Manager) Start() {
	if m.certificates != nil {
		m.certificates.Start()
	}
	m.recheck.Start()
}

// Stop ends what Start began. Call it once, after the last handshake and before the engine is closed.
func (m *Manager) Stop() {
	m.recheck.Stop()
	if m.certificates != nil {
		m.certificates.Stop()
	}
}

// Verify checks a host's DNS. It updates no tag: the caller does that with the finding.
func (m *Manager) Verify(ctx context.Context, host string) store.DNSFinding {
	return m.verifier.Verify(ctx, host)
}

// Certificates returns nil without TLS.
func (m *Manager) Certificates() *certs.Certificates { return m.certificates }
