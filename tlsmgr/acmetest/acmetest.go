// Package acmetest runs Pebble, a real ACME CA that validates challenges, inside a test. A test can change what the CA
// answers, make it issue certificates that expire in seconds, and count the orders.
package acmetest

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// Options configure a CA.
type Options struct {
	Resolver string        // host:port of the resolver that validation asks, over TCP
	Validity time.Duration // of certificates; 0: 90 days
	EAB      [2]string     // the external account binding that a new account needs: key id and base64url HMAC key; empty: none

	// Wrap, if not nil, returns what answers requests instead of the CA.
	Wrap func(ca http.Handler) http.Handler
}

// CA is a running CA. Its methods are safe for concurrent use.
type CA struct {
	URL       string         // of the ACME directory
	Roots     *x509.CertPool // verify the server at URL
	Issuers   *x509.CertPool // verify the certificates that the CA issues
	RootsFile string         // Roots in PEM
	DB        *db.MemoryStore

	http, alpn *forward
	orders     atomic.Int64
}

// NewOrderPath is Pebble's path of new orders, for which it exports no name.
const NewOrderPath = "/order-plz"

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
	c := &CA{DB: db.NewMemoryStore(), http: newForward(t), alpn: newForward(t)}
	if opt.EAB != [2]string{} {
		if err := c.DB.AddExternalAccountKeyByID(opt.EAB[0], opt.EAB[1]); err != nil {
			t.Fatal(err)
		}
	}
	profiles := map[string]ca.Profile{"default": {ValidityPeriod: uint64(opt.Validity / time.Second)}}
	authority := ca.New(quiet, c.DB, "", "ecdsa", 0, 1, profiles)
	validator := va.New(quiet, c.http.port(), c.alpn.port(), false, opt.Resolver, c.DB)
	front := wfe.New(quiet, c.DB, validator, authority, []string{"pebble.letsencrypt.org"}, false, opt.EAB != [2]string{}, 0, 0)
	handler := c.counted(front.Handler())
	if opt.Wrap != nil {
		handler = opt.Wrap(handler)
	}
	server := httptest.NewUnstartedServer(handler)
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

// Validate sets the addresses to which the CA connects, for HTTP-01 and TLS-ALPN-01. With an empty one challenges fail.
func (c *CA) Validate(http, https string) {
	c.http.set(http)
	c.alpn.set(https)
}

// Orders is the number of orders so far that have reached the CA.
func (c *CA) Orders() int { return int(c.orders.Load()) }

func (c *CA) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == NewOrderPath {
			c.orders.Add(1)
		}
		next.ServeHTTP(w, r)
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
