package certs

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/tlsmgr/acmetest"
)

func TestCertificatesOutliveAFailingCA(t *testing.T) {
	for name, c := range map[string]struct {
		fail   func(ca *testCA, on bool)
		detail string
	}{
		"CA is down":         {(*testCA).breakDown, "cannot be reached"},
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
			w.until("the host waits for its next try", func() bool { // during a try there is none
				got := w.certs.Certificate(after.Host)
				return got.Status == store.CertificateFailed && strings.Contains(got.Detail, c.detail) && !got.NextTry.IsZero()
			})
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

func limitRate(ca *testCA, on bool) {
	ca.refuse(nil)
	if on {
		ca.refuse(&refusedOrder{status: http.StatusTooManyRequests, detail: "refused on purpose"})
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
	if n := w.ca.countValidations(); n != 5 {
		t.Errorf("%d validations, want 5", n)
	}
	if w.certs.mayRenew(tag.Host) {
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
	limits := w.certs.ca.limits
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
		refusal  refusedOrder
		allHosts bool
	}{
		"limit of a host": {refusedOrder{status: 429, retryAfter: "7200",
			detail: "too many certificates (5) already issued for this exact set of identifiers in the last 168h0m0s"}, false},
		"limit of the account": {refusedOrder{status: 429, retryAfter: time.Now().Add(2 * time.Hour).UTC().Format(http.TimeFormat),
			detail: "too many new orders (300) from this account in the last 3h0m0s"}, true},
		"overload": {refusedOrder{status: 503, retryAfter: "7200", detail: "maintenance"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newCertWorld(t, acmetest.Options{})
			w.startWithoutRetries()
			w.ca.refuse(&c.refusal)
			refused := w.addTag("refused.com", true)
			w.certs.Order(refused.Host)
			got := w.untilStatus(refused.Host, store.CertificateFailed)
			if wait := time.Until(got.NextTry); wait < 115*time.Minute || wait > 121*time.Minute {
				t.Errorf("the next try is in %s, want 2 hours", wait)
			}
			w.ca.refuse(nil)
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
