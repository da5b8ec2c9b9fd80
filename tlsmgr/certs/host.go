package certs

import (
	"maps"
	"slices"
	"sync"
	"time"

	"mtagd/store"
)

// hostStates holds the state of each host that may have a certificate, and no other names: strangers can send any.
type hostStates struct {
	// mu must not be held while certmagic's cache is called. The locked cache calls leadsElsewhere: a deadlock.
	mu     sync.Mutex
	byName map[string]*hostState
}

// hostState is the state of one host's certificate. The certificate itself is in certmagic's cache.
type hostState struct {
	// attempt is closed when the current attempt to load or order the certificate ends. It stays closed while the
	// order waits for its next attempt. It is nil when there is no order.
	attempt chan struct{}
	retry   chan struct{} // of the order: a value ends the wait before its next attempt
	urgent  bool          // the next attempt goes before the partner's other orders

	// repaired says that what failed may work again: failures of other nodes do not delay the next attempt.
	repaired bool

	problem      string    // why the last order or renewal failed; empty after a success
	nextTry      time.Time // when the wait after a failed attempt ends; zero when there is no such wait
	dnsElsewhere bool      // by the last certain finding
}

// get returns the state of a host that may have a certificate. The caller holds s.mu.
func (s *hostStates) get(host string) *hostState {
	h := s.byName[host]
	if h == nil {
		h = &hostState{}
		s.byName[host] = h
	}
	return h
}

func (s *hostStates) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.byName))
}

func (s *hostStates) leadsElsewhere(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.byName[host]
	return h != nil && h.dnsElsewhere
}

// noteDNS takes note of a certain finding about a host's DNS, and reports whether DNS led elsewhere before.
func (s *hostStates) noteDNS(host string, f store.DNSFinding) (wasElsewhere bool) {
	if !f.Verdict.IsCertain() {
		return s.leadsElsewhere(host)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.get(host)
	wasElsewhere = h.dnsElsewhere
	h.dnsElsewhere = f.Verdict == store.DNSWrong
	if h.dnsElsewhere {
		h.problem, h.nextTry = "", time.Time{} // until DNS is corrected, it does not matter why an order failed
		h.retryNow()                           // the next attempt will find DNS elsewhere, and end the order
	}
	return wasElsewhere
}

// retryNow ends the wait before the next attempt. The caller holds hostStates.mu.
func (h *hostState) retryNow() {
	select {
	case h.retry <- struct{}{}:
	default: // there is no order, or a retry is pending already
	}
}

// shown is what partners see. notAfter is the expiry of the certificate in memory, zero when there is none.
func (h *hostState) shown(notAfter time.Time) store.Certificate {
	c := store.Certificate{Status: store.CertificateNone, NotAfter: notAfter}
	switch {
	case time.Now().Before(notAfter):
		c.Status, c.Detail = store.CertificateValid, h.problem
	case h.dnsElsewhere:
	case h.problem != "":
		c.Status, c.Detail, c.NextTry = store.CertificateFailed, h.problem, h.nextTry
	case h.attempt != nil || !notAfter.IsZero():
		c.Status = store.CertificatePending
	}
	return c
}
