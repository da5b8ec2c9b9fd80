package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/tlsmgr/acmetest"
)

func TestCertificateIsOrderedAfterVerifyOverEachChallenge(t *testing.T) {
	for name, validate := range map[string]func(w *certWorld){
		"HTTP-01":     func(w *certWorld) { w.ca.Validate(w.http, "") },
		"TLS-ALPN-01": func(w *certWorld) { w.ca.Validate("", w.https) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCertWorld(t, acmetest.Options{})
			w.start()
			validate(w)
			tag := w.addTag("shop.com", true)
			w.certs.Order(tag.Host)
			w.untilStatus(tag.Host, store.CertificateValid)
			w.mustVisit(tag.Host)
			w.mustVisit(strings.ToUpper(tag.Host))
		})
	}
}

func TestFirstVisitorWaitsForTheOrderInProgress(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.mustVisit(tag.Host)
}

func TestOwnHostsAndTrackingDomainsAreOrderedAtStart(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	if _, err := w.engine.EnablePreverified(t.Context(), w.partner, w.trackingHost); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	w.ca.breakDown(true)
	w.start(func(cfg *Config, _ *pace) { cfg.Metrics = registry })
	if n := gauge(t, registry, "mtagd_own_certificates_missing"); n != 1 {
		t.Errorf("%v own hosts have no certificate, want 1", n)
	}
	w.ca.breakDown(false)
	w.untilStatus(w.ownHost, store.CertificateValid)
	w.untilStatus(w.trackingHost, store.CertificateValid)
	if n := gauge(t, registry, "mtagd_own_certificates_missing"); n != 0 {
		t.Errorf("%v own hosts have no certificate, want 0", n)
	}
}

func TestOrdersWaitInTheQueueOfTheirPartner(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.recheckEvery = time.Hour // it would order a new host's certificate first: Order then brings that order forward
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	turns := w.certs.ca.turns
	turns.refuseUntil(time.Now().Add(time.Hour))
	before := func(host string, want int) {
		t.Helper()
		var n int
		var waits bool
		w.until(fmt.Sprintf("the order of %s waits", host), func() bool { n, waits = turns.before(host); return waits })
		if n != want {
			t.Fatalf("%d orders go before %s, want %d", n, host, want)
		}
	}
	var hosts []string
	for i := range 20 {
		tag := w.addTag(fmt.Sprintf("many%d.com", i), true)
		w.certs.Order(tag.Host)
		before(tag.Host, i)
		hosts = append(hosts, tag.Host)
	}
	neighbour, err := w.engine.AddPartner(t.Context(), "Neighbour")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.engine.EnablePreverified(t.Context(), neighbour.ID, w.trackingHost); err != nil {
		t.Fatal(err)
	}
	w.certs.Order(w.trackingHost)
	before(w.trackingHost, 1)

	w.certs.Order(hosts[19]) // verified again
	before(hosts[19], 0)
	before(hosts[0], 2)
}

// Some CAs have no TLS-ALPN-01.
func TestOtherChallengeIsUsedWhenTheCADoesNotOfferTheFirst(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.firstChallenge = "unknown-01"
	w.startWithoutRetries()
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)
}

// A certificate that has expired stays in the metric, or the alert would end just then. One of a host that has left does not.
func TestExpiredCertificateStaysInTheMetrics(t *testing.T) {
	expired, left := time.Unix(1_000_000, 0), time.Unix(900_000, 0)
	registry := prometheus.NewRegistry()
	newMetrics(registry, gauges{
		all: func() []store.Certificate {
			return []store.Certificate{{Status: store.CertificateFailed, NotAfter: expired}, {Status: store.CertificateNone, NotAfter: left},
				{Status: store.CertificateFailed}, {Status: store.CertificateValid, NotAfter: expired.AddDate(9, 0, 0)}}
		},
		missing: func() int { return 1 },
		waiting: func() (int, time.Time) { return 0, time.Time{} },
	})
	if got := gauge(t, registry, "mtagd_certificate_first_expiry_timestamp_seconds"); got != float64(expired.Unix()) {
		t.Errorf("the first certificate expires at %v", got)
	}
}

func gauge(t *testing.T, registry prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func TestUnknownNamesCostNothing(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start(func(_ *Config, p *pace) { p.renewCheck = time.Hour }) // a renewal check would write files too
	w.untilStatus(w.ownHost, store.CertificateValid)
	inactive := w.addTag("later.com", false)
	ordered, files := w.ca.Orders(), countFiles(t, w.dir)

	names := []string{inactive.Host, "nobody.test", "sub." + w.ownHost, "*." + w.ownHost, "127.0.0.1", "xn--", "a..b",
		strings.Repeat("a", 63) + ".test", "../../etc"}
	for _, name := range names {
		if canHandshake(t, w.https, name) {
			t.Errorf("a handshake for %q succeeded", name)
		}
	}
	for range 300 {
		if canHandshake(t, w.https, "nobody.test") {
			t.Fatal("a handshake for nobody.test succeeded")
		}
	}
	if canHandshake(t, w.https, "") {
		t.Error("a handshake without a name succeeded")
	}
	if canHandshake(t, w.https, "nobody.test", "acme-tls/1") || canHandshake(t, w.https, w.ownHost, "acme-tls/1") {
		t.Error("a handshake for a challenge that does not exist succeeded")
	}
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders", n-ordered)
	}
	if n := countFiles(t, w.dir); n != files {
		t.Errorf("%d files more", n-files)
	}
	if names := w.certs.states.names(); len(names) != 1 {
		t.Errorf("states of %d hosts", len(names))
	}
}

// canHandshake reports whether a handshake succeeds. It accepts any certificate.
func canHandshake(t *testing.T, address, name string, protocols ...string) bool {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: protocols}).Handshake() == nil
}

func countFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLogHasNoContact(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{EAB: [2]string{"kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}})
	var log bytes.Buffer
	stop := w.start(func(cfg *Config, _ *pace) {
		cfg.Email = "Ops@example.com"
		cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	w.untilStatus(w.ownHost, store.CertificateFailed) // without the binding, the CA registers no account
	stop()
	if !strings.Contains(log.String(), "registering account") || strings.Contains(strings.ToLower(log.String()), "ops@") {
		t.Errorf("log: %s", log.String())
	}
}

func TestOldVersionsOfTLSAreRefused(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	w.mustVisit(w.ownHost)
	for version, accepted := range map[uint16]bool{
		tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true,
	} {
		c, err := tls.Dial("tcp", w.https, &tls.Config{
			ServerName: w.ownHost, RootCAs: w.ca.Issuers, MinVersion: version, MaxVersion: version,
		})
		if (err == nil) != accepted {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			c.Close()
		}
	}
}

func TestStorageLocks(t *testing.T) {
	s := newStorage(Config{Dir: t.TempDir()}).(*fileStorage)
	if err := s.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.TryLock(t.Context(), "b"); !ok || err != nil {
		t.Errorf("another name cannot be locked: %v", err)
	}
	if ok, _ := s.TryLock(t.Context(), "a"); ok {
		t.Error("locked twice")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Lock(cancelled, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait ends with %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- s.Lock(t.Context(), "a") }()
	for _, name := range []string{"a", "b"} {
		if err := s.Unlock(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if err := s.Unlock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

// Some CAs accept a binding in one request only.
func TestExternalAccountBindingIsUsedOnce(t *testing.T) {
	t.Parallel()
	eab := [2]string{"kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}
	var used atomic.Int64
	once := func(rw http.ResponseWriter, r *http.Request) bool {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return false // the client has disconnected
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var signed struct{ Payload string }
		if json.Unmarshal(body, &signed) != nil {
			return false // it has no body
		}
		payload, err := base64.RawURLEncoding.DecodeString(signed.Payload)
		if err != nil || !bytes.Contains(payload, []byte(`"externalAccountBinding"`)) || used.Add(1) == 1 {
			return false
		}
		rw.Header().Set("Content-Type", "application/problem+json")
		rw.WriteHeader(http.StatusForbidden)
		fmt.Fprint(rw, `{"type":"urn:ietf:params:acme:error:unauthorized","detail":"the binding was used before","status":403}`)
		return true
	}
	w := newCertWorld(t, acmetest.Options{EAB: eab, Wrap: func(ca http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !once(rw, r) {
				ca.ServeHTTP(rw, r)
			}
		})
	}})
	bind := func(cfg *Config, _ *pace) { cfg.EABKeyID, cfg.EABHMACKey = eab[0], eab[1] }
	stop := w.start(bind)
	w.untilStatus(w.ownHost, store.CertificateValid)
	stop()

	w.start(bind)
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	var got store.Certificate
	w.until("the first order after the restart has ended", func() bool {
		got = w.certs.Certificate(tag.Host)
		return got.Status == store.CertificateValid || got.Status == store.CertificateFailed
	})
	if got.Status != store.CertificateValid || used.Load() != 1 {
		t.Errorf("after the restart: %+v; the binding was sent %d times", got, used.Load())
	}
}
