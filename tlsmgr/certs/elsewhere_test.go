package certs

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"mtagd/store"
	"mtagd/store/testenv"
	"mtagd/tlsmgr/acmetest"
)

func TestHostThatMovedAwayIsNotRenewedUntilItComesBack(t *testing.T) {
	testenv.NotShort(t, "time")
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{Validity: 12 * time.Second}) // would be renewed after 8
	w.start(func(cfg *Config, _ *pace) { cfg.Hosts = store.NewHosts(w.engine.Directory()) })
	tag := w.addTag("shop.com", true)
	w.certs.Order(tag.Host)
	w.untilStatus(tag.Host, store.CertificateValid)

	w.setDNS(tag.Host, store.DNSWrong)
	w.until("the recheck has found that the host moved away", func() bool { return w.certs.states.leadsElsewhere(tag.Host) })
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
	w.until("the tracking domain's DNS was checked", func() bool { return w.certs.states.leadsElsewhere(w.trackingHost) })
	w.untilStatus(w.trackingHost, store.CertificateNone)
	if _, err := w.visit(w.trackingHost); err == nil {
		t.Error("a handshake succeeded")
	}
	if n := w.ca.Orders(); n != 0 {
		t.Errorf("%d orders", n)
	}
}

func TestHostWhoseDNSLeadsElsewhereSpendsNoToken(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	const tokens = 3 // one for each host that has moved
	w.tokens = rate.NewLimiter(rate.Every(24*time.Hour), tokens)
	registry := prometheus.NewRegistry()
	w.start(func(cfg *Config, _ *pace) {
		cfg.Hosts = store.NewHosts(w.engine.Directory())
		cfg.Metrics = registry
	})
	for i := range tokens {
		tag := w.addTag(fmt.Sprintf("moved%d.com", i), true)
		w.setDNS(tag.Host, store.DNSWrong)
		w.certs.Order(tag.Host)
		w.until("DNS was checked", func() bool { return w.certs.states.leadsElsewhere(tag.Host) })
		w.untilStatus(tag.Host, store.CertificateNone)
	}
	first := w.addTag("first.com", true)
	w.certs.Order(first.Host)
	w.untilStatus(first.Host, store.CertificateValid) // on a busy machine the CA may need several orders

	w.certs.ca.turns.learn(0)
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

func TestHostThatMovesAwayWhileItsOrderWaitsIsNotOrdered(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.startWithoutRetries()
	turns := w.certs.ca.turns
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
		w.certs.states.mu.Lock()
		defer w.certs.states.mu.Unlock()
		return w.certs.states.get(tag.Host).attempt == nil
	})
	if n := w.ca.Orders(); n != 0 {
		t.Errorf("%d orders", n)
	}
}
