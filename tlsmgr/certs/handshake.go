package certs

import (
	"context"
	"crypto/tls"
	"strings"

	"github.com/mholt/acmez/v3"
)

// TLSConfig is for the HTTPS listener. It offers HTTP/1.1 over TLS 1.2 and 1.3. The standard library chooses the
// cipher suites, and rotates the session ticket keys daily.
//
// It refuses a handshake for an unknown name before any cryptography, and without I/O: a flood of made-up names must
// cost next to nothing.
func (c *Certificates) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"http/1.1", acmez.ACMETLS1Protocol},
		GetConfigForClient: c.admit,
		GetCertificate:     c.getCertificate,
	}
}

// admit refuses an unknown name. For a known one it returns no config, so the handshake goes on with TLSConfig's.
func (c *Certificates) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	known := false
	if isChallenge(hello) {
		_, known = c.orders.ca.challenges.of(hello.ServerName)
	} else {
		known = c.orders.Hosts.MayHaveCertificate(strings.ToLower(hello.ServerName))
	}
	if !known {
		c.orders.metrics.unknown.Inc()
		return nil, errUnknownHost
	}
	return nil, nil
}

// isChallenge reports whether the client is a CA that validates a TLS-ALPN-01 challenge (RFC 8737).
func isChallenge(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol
}

// getCertificate returns the certificate for a name that admit let pass, from memory or else from disk. If the name has
// none, it starts an order, and makes the handshake wait for it for up to pace.visitor.
func (c *Certificates) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if isChallenge(hello) {
		challenge, _ := c.orders.ca.challenges.of(hello.ServerName)
		if challenge.certificate == nil { // it has ended since admit, or is one for HTTP-01
			return nil, errNotYet
		}
		return challenge.certificate, nil
	}
	cert, err := c.orders.magic.ordering.GetCertificate(hello)
	if err == nil {
		return cert, nil
	}
	attempt := c.orders.ensureCertificate(strings.ToLower(hello.ServerName))
	if attempt == nil {
		return nil, errDNSElsewhere
	}
	waiting, cancel := context.WithTimeout(hello.Context(), c.orders.pace.visitor)
	defer cancel()
	select {
	case <-attempt:
		return c.orders.magic.ordering.GetCertificate(hello)
	case <-waiting.Done():
		return nil, errNotYet
	}
}

// HTTPChallenge returns the answer to an HTTP-01 challenge of the CA (RFC 8555). ok is false when the host has no
// challenge at the path.
func (c *Certificates) HTTPChallenge(host, path string) (answer string, ok bool) {
	challenge, ok := c.orders.ca.challenges.of(host)
	if !ok || path != challenge.HTTP01ResourcePath() {
		return "", false
	}
	return challenge.KeyAuthorization, true
}
