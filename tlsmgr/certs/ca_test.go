package certs

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/core"

	"mtagd/tlsmgr/acmetest"
)

// testCA is a CA that fails when a test wants it. Its methods are safe for concurrent use.
type testCA struct {
	*acmetest.CA

	mu          sync.Mutex
	down        bool
	refusal     *refusedOrder
	refused     int // orders
	validations int
	finalized   int // orders
}

// refusedOrder is the answer to a refused order.
type refusedOrder struct {
	status     int
	retryAfter string // header; empty: none
	detail     string // in the CA's words
}

// Pebble's paths, for which it exports no names.
const (
	challengePath   = "/chalZ/"
	finalizePath    = "/finalize-order/"
	renewalInfoPath = "/draft-ietf-acme-ari-03/renewalInfo/"
)

// startCA starts a CA. A test that wants it to answer otherwise sets opt.Wrap.
func startCA(t *testing.T, opt acmetest.Options) *testCA {
	t.Helper()
	c := new(testCA)
	wrap := opt.Wrap
	opt.Wrap = func(next http.Handler) http.Handler {
		if wrap != nil {
			next = wrap(next)
		}
		return c.faulty(next)
	}
	c.CA = acmetest.Start(t, opt)
	return c
}

// breakDown(true) makes every request fail as if the CA were down, until breakDown(false).
func (c *testCA) breakDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

// refuse makes the CA refuse every new order because of a rate limit, until refuse(nil).
func (c *testCA) refuse(r *refusedOrder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = r
}

// revoke revokes a certificate on the CA's side. Its renewal information (ARI) then says that it should have been
// renewed an hour ago.
func (c *testCA) revoke(t testing.TB, cert *x509.Certificate) {
	t.Helper()
	c.DB.RevokeCertificate(&core.RevokedCertificate{
		Certificate: &core.Certificate{ID: fmt.Sprintf("%x", cert.SerialNumber), Cert: cert, DER: cert.Raw},
		RevokedAt:   time.Now(),
	})
	c.wantRenewal(t, cert) // Pebble's own renewal window would be one second long, which clients reject as malformed
}

// wantRenewal sets a certificate's renewal information (ARI): it should have been renewed an hour ago.
func (c *testCA) wantRenewal(t testing.TB, cert *x509.Certificate) {
	t.Helper()
	window := fmt.Sprintf(`{"suggestedWindow":{"start":%q,"end":%q}}`,
		time.Now().Add(-2*time.Hour).Format(time.RFC3339), time.Now().Add(-time.Hour).Format(time.RFC3339))
	if err := c.DB.SetARIResponse(cert.SerialNumber, window); err != nil {
		t.Fatal(err)
	}
}

// Orders is the number of orders so far, including refused ones.
func (c *testCA) Orders() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused + c.CA.Orders()
}

// countValidations is the number of validations so far: challenges that a client has asked the CA to validate.
func (c *testCA) countValidations() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.validations
}

// countFinalized is the number of orders so far that had a certificate as their result. Others failed before.
func (c *testCA) countFinalized() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.finalized
}

// faulty wraps the CA's handler with the faults that the test has set.
func (c *testCA) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		down, refusal := c.down, c.refusal
		if r.URL.Path != acmetest.NewOrderPath {
			refusal = nil
		}
		if refusal != nil && !down {
			c.refused++
		}
		if strings.HasPrefix(r.URL.Path, challengePath) && !down {
			c.validations++
		}
		if strings.HasPrefix(r.URL.Path, finalizePath) && !down {
			c.finalized++
		}
		c.mu.Unlock()
		switch {
		case down:
			panic(http.ErrAbortHandler) // the connection breaks
		case refusal != nil:
			w.Header().Set("Content-Type", "application/problem+json")
			if refusal.retryAfter != "" {
				w.Header().Set("Retry-After", refusal.retryAfter)
			}
			w.WriteHeader(refusal.status)
			fmt.Fprintf(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":%q,"status":%d}`, refusal.detail, refusal.status)
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
