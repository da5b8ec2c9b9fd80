package certs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
	"mtagd/store/testenv"
	"mtagd/tlsmgr/acmetest"
)

func TestCertificateIsRenewedWithoutVisitors(t *testing.T) {
	testenv.NotShort(t, "time")
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
	w.ca.wantRenewal(t, before)
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

func TestRevokedCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	w := newCertWorld(t, acmetest.Options{})
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	revoked := w.mustVisit(w.ownHost)
	w.ca.revoke(t, revoked)
	w.until("another certificate is served", func() bool { return !w.mustVisit(w.ownHost).Equal(revoked) })
}
