// Package tlsmgr checks the DNS of the hosts that tags are served on, and manages their TLS certificates. It connects
// two packages that do not import each other:
//
//	dns/       whether a host's DNS leads to the service: verify, and an hourly recheck of every host
//	certs/     the hosts' TLS certificates; absent with --tls off
//	acmetest/  a CA for tests
//	dnstest/   DNS servers for tests
//
// store.Hosts decides which hosts may have a certificate. Before an order or a renewal, certs asks the recheck where
// the host's DNS leads. The hourly recheck passes each finding to certs. Only verify and the recheck update tags.
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
	DNS      dns.Config // without Log and CAAIdentities, which New sets

	// Certificates is nil when something else terminates TLS. New sets Log, Hosts and CheckDNS.
	Certificates *certs.Config

	RecheckEvery time.Duration // 0: an hour
	Log          *slog.Logger
}

// Manager checks the DNS of hosts and holds their certificates. Verify updates no tag: the caller does that with the
// finding. Its methods are safe for concurrent use.
type Manager struct {
	*dns.Verifier
	recheck      *dns.Recheck
	Certificates *certs.Certificates // nil without TLS
}

// New returns a Manager. It can verify; everything else begins with Start.
func New(cfg Config) (*Manager, error) {
	hosts := store.NewHosts(cfg.Engine.Directory(), cfg.OwnHosts...)
	m := &Manager{}

	verify := cfg.DNS
	verify.Log = cfg.Log
	if cfg.Certificates != nil {
		verify.CAAIdentities = func(ctx context.Context) []string { return m.Certificates.CAAIdentities(ctx) }
	}
	var err error
	if m.Verifier, err = dns.NewVerifier(verify); err != nil {
		return nil, err
	}

	recheck := dns.RecheckConfig{
		Hosts: hosts, Engine: cfg.Engine, Verify: m.Verify, Every: cfg.RecheckEvery, Log: cfg.Log,
	}
	if cfg.Certificates != nil {
		c := *cfg.Certificates
		c.Log, c.Hosts = cfg.Log, hosts
		c.CheckDNS = func(ctx context.Context, host string) store.DNSFinding { return m.recheck.Now(ctx, host) }
		m.Certificates = certs.New(c)
		recheck.Found = m.Certificates.DNSFound
	}
	m.recheck = dns.NewRecheck(recheck)
	return m, nil
}

// Start begins the hourly recheck, and gets the certificates of all hosts in the background. Call it once the
// listeners are open: from then on the CA may connect to validate challenges.
func (m *Manager) Start() {
	if m.Certificates != nil {
		m.Certificates.Start()
	}
	m.recheck.Start()
}

// Stop ends what Start began. Call it once, after the last handshake and before the engine is closed.
func (m *Manager) Stop() {
	m.recheck.Stop()
	if m.Certificates != nil {
		m.Certificates.Stop()
	}
}
