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

// certificatesName is the folder in the data directory that holds ACME accounts, certificates and their private keys.
const certificatesName = "certificates"

// secureSide holds the parts that exist only with HTTPS; it is nil when HTTPS is off.
type secureSide struct {
	listener     net.Listener
	certificates *tlsmgr.Certificates
}

// openSecureSide takes the port of --https and prepares the certificates. http is the address of plain HTTP, where ACME
// challenges are answered.
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

// close must be called after the last handshake.
func (s *secureSide) close() {
	s.listener.Close() // usually the server has closed it already
	s.certificates.Stop()
}

// forAPI returns a nil interface when HTTPS is off.
func (s *secureSide) forAPI() partnerapi.Certificates {
	if s == nil {
		return nil
	}
	return s.certificates
}

// control returns the control data for operator commands. With HTTPS it orders the certificate of a new tracking domain
// immediately.
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
