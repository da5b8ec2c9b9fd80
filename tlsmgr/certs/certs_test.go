package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

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
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	w.untilStatus(w.trackingHost, store.CertificateValid)
}

func TestRestartOrdersNothing(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	tag := w.addTag("shop.com", true)
	stop := w.start()
	before := w.mustVisit(tag.Host)
	w.untilStatus(w.ownHost, store.CertificateValid)
	stop()
	ordered := w.ca.Orders()
	w.ca.BreakDown(true)
	w.start()
	if after := w.mustVisit(tag.Host); !after.Equal(before) {
		t.Error("another certificate after the restart")
	}
	w.untilStatus(w.ownHost, store.CertificateValid)
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders after the restart", n-ordered)
	}
}

// A kill in the middle of a renewal leaves the new key beside the old certificate.
func TestUnusableFilesAreReplaced(t *testing.T) {
	for name, c := range map[string]struct{ file, content string }{
		"another key":        {".key", newKey(t)},
		"half a certificate": {".crt", "-----BEGIN CERTIFICATE-----\nMII"},
		"empty metadata":     {".json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCertWorld(t, acmetest.Options{})
			stop := w.start()
			before := w.mustVisit(w.ownHost)
			stop()
			files, err := filepath.Glob(filepath.Join(w.dir, "certificates", "*", w.ownHost, "*"+c.file))
			if err != nil || len(files) != 1 {
				t.Fatalf("files %v, %v", files, err)
			}
			if err := os.WriteFile(files[0], []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			w.start()
			if w.mustVisit(w.ownHost).Equal(before) {
				t.Error("the old certificate is still served")
			}
		})
	}
}

// A file that cannot be read at the moment may be intact, so it is not replaced.
func TestUnreadableFilesAreKept(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	stop := w.start()
	w.mustVisit(w.ownHost)
	stop()
	files, err := filepath.Glob(filepath.Join(w.dir, "certificates", "*", w.ownHost, "*.key"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	aside := files[0] + ".aside"
	if err := os.Rename(files[0], aside); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(files[0], 0o700); err != nil { // not even root can read a directory as a file
		t.Fatal(err)
	}
	ordered := w.ca.Orders()
	w.start()
	w.untilStatus(w.ownHost, store.CertificateFailed)
	if err := errors.Join(os.Remove(files[0]), os.Rename(aside, files[0])); err != nil {
		t.Fatal(err)
	}
	w.untilStatus(w.ownHost, store.CertificateValid)
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders", n-ordered)
	}
}

func newKey(t *testing.T) string {
	t.Helper()
	key, err := certmagic.StandardKeyGenerator{}.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := certmagic.PEMEncodePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The same key is the same account, so a restart registers no other.
func TestAccountOutlivesARestart(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	var accounts []string
	for range 2 {
		stop := w.start()
		w.untilStatus(w.ownHost, store.CertificateValid)
		account, err := w.certs.orders.ca.account.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		accounts = append(accounts, account.Location)
		stop()
		if err := os.RemoveAll(filepath.Join(w.dir, "certificates")); err != nil {
			t.Fatal(err)
		}
	}
	if accounts[0] == "" || accounts[0] != accounts[1] {
		t.Errorf("accounts %q", accounts)
	}
}

// A CA that was set up again does not know the accounts of before.
func TestAccountThatTheCADoesNotKnowIsRegistered(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	account := w.certs.orders.ca.account
	lost := *account.registered
	lost.Location += "0"
	account.registered = &lost
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)
	if account.registered.Location == lost.Location {
		t.Error("the account was not registered")
	}
}

func TestCertificateIsRenewedWithoutVisitors(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{Validity: 24 * time.Second}) // renewed after 16
	w.start()
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	first := w.untilStatus(tag.Host, store.CertificateValid)
	w.until("the certificate is renewed", func() bool {
		cert := w.certs.Certificate(tag.Host)
		if cert.Status != store.CertificateValid {
			t.Fatalf("before the renewal the certificate is %+v, want it valid", cert)
		}
		return cert.NotAfter.After(first.NotAfter)
	})
	w.mustVisit(tag.Host)
}

// A CA does not let one account replace the certificate of another.
func TestCertificateIsRenewedByAnotherAccount(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	stop := w.start()
	before := w.mustVisit(w.ownHost)
	stop()
	w.ca.WantRenewal(t, before)
	var log bytes.Buffer
	stop = w.start(func(cfg *Config, _ *pace) {
		cfg.Email = "ops@example.com"
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	w.until("the certificate is renewed", func() bool { return !w.mustVisit(w.ownHost).Equal(before) })
	stop()
	logged := regexp.MustCompile(`certificate (issued|renewed)`).FindAllString(log.String(), -1)
	if len(logged) != 1 {
		t.Errorf("one renewal is logged as %q, want one line", logged)
	}
}

// A CA may refuse a renewal because of the certificate that its order names. Then another order names none.
func TestRefusedOrders(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("creating new order: %w", acme.Problem{Status: 403, Type: acme.ProblemTypeUnauthorized}), true},
		{fmt.Errorf("creating new order: %w", acme.Problem{Status: 500, Type: acme.ProblemTypeServerInternal}), true},
		{fmt.Errorf("creating new order: %w", acme.Problem{Status: 429, Type: acme.ProblemTypeRateLimited}), false},
		{fmt.Errorf("solving challenges: %w", acme.Problem{Status: 403, Type: acme.ProblemTypeUnauthorized}), false},
		{errors.New("creating new order: connection refused"), false},
	} {
		if got := isRefusedOrder(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

func TestHostThatMovedAwayIsNotRenewedUntilItComesBack(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{Validity: 12 * time.Second}) // would be renewed after 8
	w.start(func(cfg *Config, _ *pace) { cfg.Hosts = store.NewHosts(w.engine.Directory()) })
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)

	w.setDNS(tag.Host, store.DNSWrong)
	w.until("the recheck has found that the host moved away", func() bool { return w.certs.orders.states.leadsElsewhere(tag.Host) })
	ordered := w.ca.Orders()
	w.untilStatus(tag.Host, store.CertificateNone) // the certificate has expired
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders for a host that moved away", n-ordered)
	}

	w.setDNS(tag.Host, store.DNSCorrect)
	w.untilStatus(tag.Host, store.CertificateValid)
	w.mustVisit(tag.Host)
}

// The CA may see earlier than this service that a host has moved.
func TestFailuresOfAHostThatMovedAwayAreForgotten(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.startWithoutRetries()
	w.ca.Validate("", "")
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateFailed)
	w.setDNS(tag.Host, store.DNSWrong)
	if got := w.untilStatus(tag.Host, store.CertificateNone); got.Detail != "" || !got.NextTry.IsZero() {
		t.Errorf("state %+v", got)
	}
	w.ca.Validate(w.http, w.https)
	w.setDNS(tag.Host, store.DNSCorrect)
	w.untilStatus(tag.Host, store.CertificateValid)
}

func TestDNSWithoutAnAnswerDoesNotStopAnOrder(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	if _, err := w.engine.EnablePreverified(t.Context(), w.partner, w.trackingHost); err != nil {
		t.Fatal(err)
	}
	w.setDNS(w.trackingHost, store.DNSUnreachable)
	w.start()
	w.untilStatus(w.trackingHost, store.CertificateValid)
}

func TestNoCertificateIsOrderedForATrackingDomainThatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	if _, err := w.engine.EnablePreverified(t.Context(), w.partner, w.trackingHost); err != nil {
		t.Fatal(err)
	}
	w.setDNS(w.trackingHost, store.DNSWrong)
	w.start(func(cfg *Config, _ *pace) { cfg.Hosts = store.NewHosts(w.engine.Directory()) })
	w.until("the tracking domain's DNS was checked", func() bool { return w.certs.orders.states.leadsElsewhere(w.trackingHost) })
	w.untilStatus(w.trackingHost, store.CertificateNone)
	if _, err := w.visit(w.trackingHost); err == nil {
		t.Error("a handshake succeeded")
	}
	if n := w.ca.Orders(); n != 0 {
		t.Errorf("%d orders", n)
	}
}

func TestCertificatesOutliveAFailingCA(t *testing.T) {
	for name, c := range map[string]struct {
		fail   func(ca *acmetest.CA, on bool)
		detail string
	}{
		"CA is down":         {(*acmetest.CA).BreakDown, "cannot be reached"},
		"CA limits the rate": {limitRate, "refused on purpose"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCertWorld(t, acmetest.Options{})
			w.start()
			before := w.addTag("before.com", true)
			w.certs.Order(before.Host)
			w.untilStatus(before.Host, store.CertificateValid)

			c.fail(w.ca, true)
			after := w.addTag("after.com", true)
			w.certs.Order(after.Host)
			got := w.untilStatus(after.Host, store.CertificateFailed)
			if !strings.Contains(got.Detail, c.detail) || got.NextTry.IsZero() {
				t.Errorf("state %+v", got)
			}
			w.mustVisit(before.Host)
			if _, err := w.visit(after.Host); err == nil {
				t.Error("a handshake succeeded without a certificate")
			}

			c.fail(w.ca, false)
			w.untilStatus(after.Host, store.CertificateValid)
			w.mustVisit(after.Host)
		})
	}
}

func limitRate(ca *acmetest.CA, on bool) {
	ca.Refuse(nil)
	if on {
		ca.Refuse(&acmetest.Refusal{Status: http.StatusTooManyRequests, Detail: "refused on purpose"})
	}
}

func TestFailedOrdersBackOff(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.startWithoutRetries()
	w.ca.Validate("", "") // challenges fail
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateFailed)
	ordered := w.ca.Orders()
	for range 20 {
		if _, err := w.visit(tag.Host); err == nil {
			t.Fatal("a handshake succeeded")
		}
	}
	if n := w.ca.Orders(); n != ordered {
		t.Errorf("%d orders while it should wait", n-ordered)
	}
}

// Let's Encrypt allows five failed validations of a host in an hour.
func TestOnlyFiveValidationsFailInAnHour(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.startWithoutRetries()
	w.ca.Validate("", "")
	tag := w.addTag("shop.com", true)
	w.until("five orders have failed", func() bool {
		w.certs.Order(tag.Host) // as verify does: it ends the wait
		return w.ca.Orders() == 5 && !w.certs.Certificate(tag.Host).NextTry.IsZero()
	})
	for range 20 {
		w.certs.Order(tag.Host)
	}
	if wait := time.Until(w.certs.Certificate(tag.Host).NextTry); wait < 50*time.Minute {
		t.Errorf("the next try is in %s", wait)
	}
	if n := w.ca.Validations(); n != 5 {
		t.Errorf("%d validations, want 5", n)
	}
	if w.certs.orders.mayRenew(tag.Host) {
		t.Error("a renewal may begin, which could fail a sixth time")
	}
}

func TestFailedRenewalsCountAsFailures(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{Validity: 9 * time.Second}) // renewed after 6
	w.startWithoutRetries()
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)
	w.ca.Validate("", "")
	limits := w.certs.orders.ca.limits
	w.until("the failure is counted", func() bool {
		limits.mu.Lock()
		defer limits.mu.Unlock()
		h := limits.hosts[tag.Host]
		return h != nil && len(h.Failures) > 0
	})
}

// Whoever verifies a tag has often just repaired what made the order fail.
func TestVerifyRetriesAFailedOrder(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.startWithoutRetries()
	w.ca.Validate("", "")
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateFailed)
	w.ca.Validate(w.http, w.https)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)
}

func TestRetryAfterOfTheCAIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		refusal  acmetest.Refusal
		allHosts bool
	}{
		"limit of a host": {acmetest.Refusal{Status: 429, RetryAfter: "7200",
			Detail: "too many certificates (5) already issued for this exact set of identifiers in the last 168h0m0s"}, false},
		"limit of the account": {acmetest.Refusal{Status: 429, RetryAfter: time.Now().Add(2 * time.Hour).UTC().Format(http.TimeFormat),
			Detail: "too many new orders (300) from this account in the last 3h0m0s"}, true},
		"overload": {acmetest.Refusal{Status: 503, RetryAfter: "7200", Detail: "maintenance"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCertWorld(t, acmetest.Options{})
			w.startWithoutRetries()
			w.ca.Refuse(&c.refusal)
			refused := w.addTag("refused.com", true)
			w.certs.Order(refused.Host)
			got := w.untilStatus(refused.Host, store.CertificateFailed)
			if wait := time.Until(got.NextTry); wait < 115*time.Minute || wait > 121*time.Minute {
				t.Errorf("the next try is in %s, want 2 hours", wait)
			}
			w.ca.Refuse(nil)
			ordered := w.ca.Orders()
			w.certs.Order(refused.Host) // does not end the wait
			other := w.addTag("other.com", true)
			w.certs.Order(other.Host)
			if !c.allHosts {
				w.untilStatus(other.Host, store.CertificateValid)
				ordered++
			} else {
				w.until("the other order waits", func() bool {
					return strings.Contains(w.certs.Certificate(other.Host).Detail, "certificate authority accepts no order before")
				})
			}
			if n := w.ca.Orders(); n != ordered {
				t.Errorf("%d orders more", n-ordered)
			}
			if got := w.certs.Certificate(refused.Host); got.Status != store.CertificateFailed {
				t.Errorf("the refused host: %+v", got)
			}
		})
	}
}

func TestHostWhoseDNSLeadsElsewhereSpendsNoToken(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.tokens = rate.NewLimiter(rate.Every(24*time.Hour), 1)
	registry := prometheus.NewRegistry()
	w.start(func(cfg *Config, _ *pace) {
		cfg.Hosts = store.NewHosts(w.engine.Directory())
		cfg.Metrics = registry
	})
	for i := range 3 {
		tag := w.addTag(fmt.Sprintf("moved%d.com", i), true)
		w.setDNS(tag.Host, store.DNSWrong)
		w.certs.Order(tag.Host)
		w.until("DNS was checked", func() bool { return w.certs.orders.states.leadsElsewhere(tag.Host) })
		w.untilStatus(tag.Host, store.CertificateNone)
	}
	first := w.addTag("first.com", true)
	w.certs.Order(first.Host)
	w.untilStatus(first.Host, store.CertificateValid) // with the one token

	second := w.addTag("second.com", true)
	w.certs.Order(second.Host)
	w.until("the second order waits", func() bool {
		return w.certs.Certificate(second.Host).Detail == "waits for its turn at the certificate authority: 0 orders before it"
	})
	if n := gauge(t, registry, "mtagd_certificate_orders_waiting"); n != 1 {
		t.Errorf("%v orders wait, want 1", n)
	}
	if wait := gauge(t, registry, "mtagd_certificate_orders_oldest_wait_seconds"); wait <= 0 {
		t.Errorf("the oldest order has waited %v s", wait)
	}
}

func TestOrdersWaitInTheQueueOfTheirPartner(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	turns := w.certs.orders.ca.turns
	turns.refuseUntil(time.Now().Add(time.Hour))
	before := func(host string, want int) {
		t.Helper()
		w.until(fmt.Sprintf("%d orders go before %s", want, host), func() bool {
			n, waits := turns.before(host)
			return waits && n == want
		})
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

func TestHostThatMovesAwayWhileItsOrderWaitsIsNotOrdered(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.startWithoutRetries()
	turns := w.certs.orders.ca.turns
	turns.refuseUntil(time.Now().Add(time.Hour))
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.until("the order waits", func() bool {
		_, waits := turns.before(tag.Host)
		return waits
	})
	w.setDNS(tag.Host, store.DNSWrong)
	turns.mu.Lock()
	turns.refusedUntil = time.Time{}
	turns.serve()
	turns.mu.Unlock()
	w.until("the order has ended", func() bool {
		w.certs.orders.states.mu.Lock()
		defer w.certs.orders.states.mu.Unlock()
		return w.certs.orders.states.get(tag.Host).attempt == nil
	})
	if n := w.ca.Orders(); n != 0 {
		t.Errorf("%d orders", n)
	}
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
	if names := w.certs.orders.states.names(); len(names) != 1 {
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

func TestRevokedCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	revoked := w.mustVisit(w.ownHost)
	w.ca.Revoke(t, revoked)
	w.until("another certificate is served", func() bool { return !w.mustVisit(w.ownHost).Equal(revoked) })
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
	w := newCertWorld(t, acmetest.Options{EAB: eab})
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
	if got.Status != store.CertificateValid {
		t.Errorf("after the restart: %+v", got)
	}
}
