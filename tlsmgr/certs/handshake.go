package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"slices"
	"strings"

	"github.com/mholt/acmez/v3"
)

// TLSConfig is for the HTTPS listener. It offers HTTP/1.1 over TLS 1.2 and 1.3, and only cipher suites that authenticate
// the ciphertext (AEAD). The standard library rotates the session ticket keys daily.
//
// It refuses unknown names before any cryptography, and without I/O: a flood of made-up names must cost next to nothing.
func (c *Certificates) TLSConfig() *tls.Config {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		CipherSuites:       cipherSuites,
		NextProtos:         []string{"http/1.1", acmez.ACMETLS1Protocol},
		GetConfigForClient: c.admit,
		GetCertificate:     c.getCertificate,
	}
	resumeOnlyAtOwnHost(config)
	return config
}

// cipherSuites are those of TLS 1.2. In TLS 1.3 all suites are AEAD. The standard library decides the order.
var cipherSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// resumeOnlyAtOwnHost makes a session ticket good only for the host at which it was issued. A resumed session is as
// trusted as the certificate of its first handshake, which was the certificate of that host. Without this, a ticket
// would be good at every host, because all share the ticket keys. Else the handshake is a full one.
func resumeOnlyAtOwnHost(config *tls.Config) {
	const prefix = "mtagd host "
	config.WrapSession = func(state tls.ConnectionState, session *tls.SessionState) ([]byte, error) {
		session.Extra = append(session.Extra, []byte(prefix+strings.ToLower(state.ServerName)))
		return config.EncryptTicket(state, session)
	}
	config.UnwrapSession = func(ticket []byte, state tls.ConnectionState) (*tls.SessionState, error) {
		session, err := config.DecryptTicket(ticket, state)
		if err != nil || session == nil {
			return nil, err
		}
		host := []byte(prefix + strings.ToLower(state.ServerName))
		if !slices.ContainsFunc(session.Extra, func(extra []byte) bool { return bytes.Equal(extra, host) }) {
			return nil, nil
		}
		return session, nil
	}
}

// admit refuses an unknown name. For a known one it returns no config, so the handshake goes on with TLSConfig's.
func (c *Certificates) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	known := c.Hosts.MayHaveCertificate(strings.ToLower(hello.ServerName))
	if isChallenge(hello) && known {
		_, known = c.ca.challenges.await(hello.Context(), hello.ServerName)
	}
	if !known {
		c.metrics.unknown.Inc()
		// The client reads the first alert; the one that the standard library sends next is internal_error. An error of
		// the write does not matter: the handshake has failed.
		_, _ = hello.Conn.Write(unrecognizedName)
		return nil, errUnknownHost
	}
	return nil, nil
}

// unrecognizedName is a record with the fatal alert for an unknown server name (RFC 6066, section 3; RFC 8446, section
// 6.2). The standard library sends it too, but in TLS 1.3 only after the key exchange.
var unrecognizedName = []byte{
	21,   // alert
	3, 3, // the version that all records have
	0, 2, // length
	2,   // fatal
	112, // unrecognized_name
}

// isChallenge reports whether the client is a CA that validates a TLS-ALPN-01 challenge (RFC 8737).
func isChallenge(hello *tls.ClientHelloInfo) bool {
	return len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol
}

// getCertificate returns the certificate for a name that admit let pass, from memory or else from disk. If the name has
// none, it starts an order, and makes the handshake wait for it for up to pace.visitor.
func (c *Certificates) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if isChallenge(hello) {
		challenge, _ := c.ca.challenges.of(hello.ServerName)
		if challenge.certificate == nil { // it has ended since admit, or is one for HTTP-01
			return nil, errNotYet
		}
		return challenge.certificate, nil
	}
	cert, err := c.magic.ordering.GetCertificate(hello)
	if err == nil {
		return cert, nil
	}
	attempt := c.ensureCertificate(strings.ToLower(hello.ServerName))
	if attempt == nil {
		return nil, errDNSElsewhere
	}
	waiting, cancel := context.WithTimeout(hello.Context(), c.pace.visitor)
	defer cancel()
	select {
	case <-attempt:
		return c.magic.ordering.GetCertificate(hello)
	case <-waiting.Done():
		return nil, errNotYet
	}
}

// HTTPChallenge returns the answer to an HTTP-01 challenge of the CA (RFC 8555). ok is false when the host has no
// challenge at the path. With other nodes, it may wait for one until ctx ends.
func (c *Certificates) HTTPChallenge(ctx context.Context, host, path string) (answer string, ok bool) {
	challenge, ok := c.ca.challenges.await(ctx, host)
	if !ok || path != challenge.HTTP01ResourcePath() {
		return "", false
	}
	return challenge.KeyAuthorization, true
}
