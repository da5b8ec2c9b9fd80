// Package tlsmgr looks after the hosts that tags are served on. It is wiring over two packages that do not know each
// other:
//
//	dns/       whether a host's DNS leads to the service: verify, and an hourly recheck of every host
//	certs/     the hosts' TLS certificates; absent with --tls off
//	acmetest/  a CA for tests
//
// Which hosts may have a certificate is a rule of store.Hosts. Before an order or a renewal the certificates ask
// the recheck where the host's DNS leads, and the recheck tells them what it found. Only verify and the recheck
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

// Config says which hosts there are, and how to check and serve them.
type Config struct {
	Engine   store.Engine
	OwnHosts []string   // the base host and the client tag host
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

// New returns a Manager that can verify and does nothing else yet.
func New(cfg Config) (*Manager, error) { return newManager(cfg, 0) }

// newManager lets tests choose the interval of the recheck; 0 is the usual one.
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

// Start begins the hourly recheck, and gets the certificates of all hosts in the background. Call it when the
// CA can reach the service: from then on it may be asked to answer challenges.
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

// Verify checks a host's DNS. It updates no tag: the caller keeps the finding.
func (m *Manager) Verify(ctx context.Context, host string) store.DNSFinding {
	return m.verifier.Verify(ctx, host)
}

// Certificates returns the certificates; nil without TLS.
func (m *Manager) Certificates() *certs.Certificates { return m.certificates }

// Control is an engine's control data for operators. With TLS, it orders the certificate of a tracking domain as soon
// as an operator has set the domain.
func (m *Manager) Control(control store.Control) store.Control {
	if m.certificates == nil {
		return control
	}
	return orderingControl{control, m.certificates}
}

type orderingControl struct {
	store.Control
	certificates *certs.Certificates
}

func (c orderingControl) EnablePreverified(ctx context.Context, id store.PartnerID, domain string) (store.Partner, error) {
	p, err := c.Control.EnablePreverified(ctx, id, domain)
	if err == nil {
		c.certificates.Order(p.TrackingDomain)
	}
	return p, err
}
