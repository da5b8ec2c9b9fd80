package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/tlsmgr"
	"mtagd/tlsmgr/certs"
	"mtagd/tlsmgr/dns"
)

// certificatesName is the folder in the data directory for ACME accounts, certificates and their keys.
const certificatesName = "certificates"

// openHosts prepares what looks after the DNS and the certificates of hosts. With TLS it also takes the port of
// --https; otherwise the listener is nil. http is where plain HTTP listens and ACME challenges are answered.
func openHosts(cfg config, engine store.Engine, metrics prometheus.Registerer, http net.Addr) (*tlsmgr.Manager, net.Listener, error) {
	hosts := tlsmgr.Config{
		Engine:   engine,
		OwnHosts: []string{cfg.BaseHost, cfg.ClientTagHost},
		DNS: dns.Config{
			CNAMETarget:  cfg.CNAMETarget,
			Resolvers:    cfg.Resolvers,
			Port:         cfg.DNSPort,
			AllowPrivate: cfg.DNSPrivate,
			Now:          time.Now,
		},
		Log: cfg.Log,
	}
	if cfg.TLS == nil {
		manager, err := tlsmgr.New(hosts)
		return manager, nil, err
	}
	https, err := net.Listen("tcp", cfg.TLS.HTTPS)
	if err != nil {
		return nil, nil, fmt.Errorf("--https: %w", err)
	}
	hosts.Certificates = &certs.Config{
		Dir:        filepath.Join(cfg.Data, certificatesName),
		CA:         cfg.TLS.CA,
		Roots:      cfg.TLS.Roots,
		Email:      cfg.TLS.Email,
		EABKeyID:   cfg.TLS.EABKeyID,
		EABHMACKey: cfg.TLS.EABHMACKey,
		HTTP:       http,
		HTTPS:      https.Addr(),
		Metrics:    metrics,
	}
	manager, err := tlsmgr.New(hosts)
	if err != nil {
		return nil, nil, errors.Join(err, https.Close())
	}
	return manager, https, nil
}
