// Package acmetest runs Pebble, a real ACME CA that validates challenges, inside a test. A test can take the CA down,
// make it refuse orders or issue certificates that expire in seconds, and count the orders.
package acmetest

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/core"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// Options configure a CA.
type Options struct {
	Resolver string        // host:port of the resolver that validation asks, over TCP
	Validity time.Duration // of certificates; 0: 90 days
	EAB      [2]string     // the external account binding that a new account needs: key id and base64url HMAC key; empty: none

	// Before, if not nil, sees each request before the CA. It answers the request itself if it returns true.
	Before func(w http.ResponseWriter, r *http.Request) (answered bool)
}

// CA is a running CA. Its methods are safe for concurrent use.
type CA struct {
	URL       string         // of the ACME directory
	Roots     *x509.CertPool // verify the server at URL
	Issuers   *x509.CertPool // verify the certificates that the CA issues
	RootsFile string         // Roots in PEM

	db         *db.MemoryStore
	http, alpn *forward

	mu          sync.Mutex
	down        bool
	refusal     *Refusal
	orders      int
	validations int
}

// Refusal is the answer to a refused order.
type Refusal struct {
	Status     int
	RetryAfter string // header; empty: none
	Detail     string // in the CA's words
}

// Pebble's paths, for which it exports no names.
const (
	newOrderPath    = "/order-plz"
	challengePath   = "/chalZ/"
	renewalInfoPath = "/draft-ietf-acme-ari-03/renewalInfo/"
)

// Start runs a CA until the test ends.
func Start(t testing.TB, opt Options) *CA {
	t.Helper()
	// Pebble is made to test ACME clients: by default it sleeps, rejects good nonces, and sometimes reuses an
	// authorization instead of validating again. Here the first two would only cost time, and each order must validate.
	for name, value := range map[string]string{
		"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", "PEBBLE_AUTHZREUSE": "0",
	} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	quiet := log.New(io.Discard, "", 0)
	c := &CA{db: db.NewMemoryStore(), http: newForward(t), alpn: newForward(t)}
	if opt.EAB != [2]string{} {
		if err := c.db.AddExternalAccountKeyByID(opt.EAB[0], opt.EAB[1]); err != nil {
			t.Fatal(err)
		}
	}
	profiles := map[string]ca.Profile{"default": {ValidityPeriod: uint64(opt.Validity / time.Second)}}
	authority := ca.New(quiet, c.db, "", "ecdsa", 0, 1, profiles)
	validator := va.New(quiet, c.http.port(), c.alpn.port(), false, opt.Resolver, c.db)
	front := wfe.New(quiet, c.db, validator, authority, []string{"pebble.letsencrypt.org"}, false, opt.EAB != [2]string{}, 0, 0)
	server := httptest.NewUnstartedServer(c.faulty(front.Handler(), opt.Before))
	server.Config.ErrorLog = quiet
	server.StartTLS()
	t.Cleanup(server.Close)

	c.URL = server.URL + wfe.DirectoryPath
	c.Roots = x509.NewCertPool()
	c.Roots.AddCert(server.Certificate())
	c.Issuers = x509.NewCertPool()
	c.Issuers.AddCert(authority.GetRootCert(0).Cert)
	c.RootsFile = t.TempDir() + "/roots.pem"
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(c.RootsFile, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// Validate sets the addresses that the CA connects to: http for HTTP-01 challenges, https for TLS-ALPN-01. With an
// empty address those challenges fail.
func (c *CA) Validate(http, https string) {
	c.http.set(http)
	c.alpn.set(https)
}

// BreakDown(true) makes every request fail as if the CA were down, until BreakDown(false).
func (c *CA) BreakDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

// Refuse makes the CA refuse every new order because of a rate limit, until Refuse(nil).
func (c *CA) Refuse(r *Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = r
}

// Revoke revokes a certificate on the CA's side. Its renewal information (ARI) then says that it should have been
// renewed an hour ago.
func (c *CA) Revoke(t testing.TB, cert *x509.Certificate) {
	t.Helper()
	c.db.RevokeCertificate(&core.RevokedCertificate{
		Certificate: &core.Certificate{ID: fmt.Sprintf("%x", cert.SerialNumber), Cert: cert, DER: cert.Raw},
		RevokedAt:   time.Now(),
	})
	c.WantRenewal(t, cert) // Pebble's own renewal window would be one second long, which clients reject as malformed
}

// WantRenewal sets a certificate's renewal information (ARI): it should have been renewed an hour ago.
func (c *CA) WantRenewal(t testing.TB, cert *x509.Certificate) {
	t.Helper()
	window := fmt.Sprintf(`{"suggestedWindow":{"start":%q,"end":%q}}`,
		time.Now().Add(-2*time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339))
	if err := c.db.SetARIResponse(cert.SerialNumber, window); err != nil {
		t.Fatal(err)
	}
}

// Orders is the number of orders so far, including refused ones.
func (c *CA) Orders() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.orders
}

// Validations is the number of validations so far: challenges that a client has asked the CA to validate.
func (c *CA) Validations() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.validations
}

// faulty wraps the CA's handler with the faults that the test has set.
func (c *CA) faulty(next http.Handler, before func(http.ResponseWriter, *http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isOrder := r.URL.Path == newOrderPath
		c.mu.Lock()
		down, refusal := c.down, c.refusal
		if isOrder && !down {
			c.orders++
		}
		if strings.HasPrefix(r.URL.Path, challengePath) && !down {
			c.validations++
		}
		c.mu.Unlock()
		switch {
		case down:
			panic(http.ErrAbortHandler) // the connection breaks
		case before != nil && before(w, r):
		case isOrder && refusal != nil:
			w.Header().Set("Content-Type", "application/problem+json")
			if refusal.RetryAfter != "" {
				w.Header().Set("Retry-After", refusal.RetryAfter)
			}
			w.WriteHeader(refusal.Status)
			fmt.Fprintf(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":%q,"status":%d}`, refusal.Detail, refusal.Status)
		case strings.HasPrefix(r.URL.Path, renewalInfoPath):
			answer := httptest.NewRecorder()
			next.ServeHTTP(answer, r)
			maps.Copy(w.Header(), answer.Header())
			w.Header().Set("Retry-After", "1") // clients ask again after a second, not after hours
			w.WriteHeader(answer.Code)
			w.Write(answer.Body.Bytes()) // fails when the client has disconnected
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// forward is a TCP proxy. Pebble needs its validation ports when it starts; a test sets the address behind them later.
type forward struct {
	listener net.Listener

	mu sync.Mutex
	to string
}

func newForward(t testing.TB) *forward {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forward{listener: l}
	t.Cleanup(func() { l.Close() })
	go f.serve()
	return f
}

func (f *forward) port() int { return f.listener.Addr().(*net.TCPAddr).Port }

func (f *forward) set(to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
}

func (f *forward) serve() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		to := f.to
		f.mu.Unlock()
		go pass(client, to)
	}
}

// pass copies in both directions until one side closes its connection.
func pass(client net.Conn, to string) {
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan error, 2)
	go func() { _, err := io.Copy(server, client); done <- err }()
	go func() { _, err := io.Copy(client, server); done <- err }()
	<-done
}
