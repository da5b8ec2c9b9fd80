package tlsmgr

import (
	"context"
	"crypto/tls"
	"strings"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
)

// TLSConfig is for the HTTPS listener. It offers TLS 1.2 and 1.3 with the standard library's choice of
// suites, and HTTP/1.1. Session ticket keys are made and changed daily by the standard library.
//
// A handshake for a name that is none of the service's ends before any cryptography, and without I/O.
func (c *Certificates) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1", acmez.ACMETLS1Protocol},
		GetConfigForClient: c.admit,
		GetCertificate:     c.certificate,
	}
}

// admit refuses a name that is none of the service's; nil stands for the configuration it is part of.
func (c *Certificates) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	known := false
	if isChallenge(hello) {
		_, known = certmagic.GetACMEChallenge(hello.ServerName)
	} else {
		known = c.serves(strings.ToLower(hello.ServerName))
	}
	if !known {
		c.metrics.unknown.Inc()
		return nil, errUnknownHost
	}
	return nil, nil
}

// isChallenge reports whether it is the CA that calls, to see a TLS-ALPN-01 challenge answered
// (RFC 8737).
func isChallenge(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol
}

// certificate answers a handshake for a name that was admitted: from memory, else from disk. A host whose
// certificate is being ordered keeps its visitor for a few seconds.
func (c *Certificates) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, err := c.ordering.GetCertificate(hello)
	if err == nil || isChallenge(hello) {
		return cert, err
	}
	onItsWay := c.want(strings.ToLower(hello.ServerName))
	if onItsWay == nil {
		return nil, errMovedAway
	}
	waiting, cancel := context.WithTimeout(hello.Context(), c.pace.visitor)
	defer cancel()
	select {
	case <-onItsWay:
		return c.ordering.GetCertificate(hello)
	case <-waiting.Done():
		return nil, errNotYet
	}
}

// HTTPChallenge is the answer to an HTTP-01 challenge of the CA (RFC 8555), false where a host has none at
// the path.
func (c *Certificates) HTTPChallenge(host, path string) (answer string, ok bool) {
	challenge, ok := certmagic.GetACMEChallenge(host)
	if !ok || path != challenge.HTTP01ResourcePath() {
		return "", false
	}
	return challenge.KeyAuthorization, true
}
