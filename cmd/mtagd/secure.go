package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/partnerapi"
	"mtagd/store"
	"mtagd/tlsmgr"
)

// certificatesName is the folder in the data directory for ACME accounts, certificates and their keys.
const certificatesName = "certificates"

// secureSide is what there is more with HTTPS than without. A nil one is the lack of it.
type secureSide struct {
	listener     net.Listener
	certificates *tlsmgr.Certificates
}

// openSecureSide takes the port of --https and prepares the certificates. http is where plain HTTP
// listens, and challenges are answered.
func openSecureSide(cfg config, engine store.Engine, verifier *tlsmgr.Verifier, metrics prometheus.Registerer, http net.Addr) (*secureSide, error) {
	listener, err := net.Listen("tcp", cfg.TLS.HTTPS)
	if err != nil {
		return nil, fmt.Errorf("--https: %w", err)
	}
	certificates, err := tlsmgr.NewCertificates(tlsmgr.CertConfig{
		Dir:        filepath.Join(cfg.Data, certificatesName),
		Hosts:      ownHosts(cfg),
		Engine:     engine,
		LookUp:     verifier.Verify,
		CA:         cfg.TLS.CA,
		Roots:      cfg.TLS.Roots,
		Email:      cfg.TLS.Email,
		EABKeyID:   cfg.TLS.EABKeyID,
		EABHMACKey: cfg.TLS.EABHMACKey,
		HTTP:       http,
		HTTPS:      listener.Addr(),
		Log:        cfg.Log,
		Metrics:    metrics,
	})
	if err != nil {
		listener.Close()
		return nil, err
	}
	return &secureSide{listener, certificates}, nil
}

func ownHosts(cfg config) []string {
	if cfg.BaseHost == cfg.ClientTagHost {
		return []string{cfg.BaseHost}
	}
	return []string{cfg.BaseHost, cfg.ClientTagHost}
}

// close comes after the last handshake.
func (s *secureSide) close() {
	s.listener.Close() // the server has closed it already, unless it never ran
	s.certificates.Stop()
}

// forAPI is a nil interface where there is no HTTPS.
func (s *secureSide) forAPI() partnerapi.Certificates {
	if s == nil {
		return nil
	}
	return s.certificates
}

// control is the engine's control data for operator commands: with HTTPS, a new tracking domain has its
// certificate ordered at once.
func (s *secureSide) control(engine store.Control) store.Control {
	if s == nil {
		return engine
	}
	return orderingControl{engine, s.certificates}
}

type orderingControl struct {
	store.Control
	certificates *tlsmgr.Certificates
}

func (c orderingControl) EnablePreverified(ctx context.Context, id store.PartnerID, domain string) (store.Partner, error) {
	p, err := c.Control.EnablePreverified(ctx, id, domain)
	if err == nil {
		c.certificates.Order(p.TrackingDomain)
	}
	return p, err
}
