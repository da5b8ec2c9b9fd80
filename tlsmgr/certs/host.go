package certs

import (
	"sync"
	"time"

	"mtagd/store"
)

// hostStates holds what is known about the hosts that may have certificates. It holds nothing about other names.
type hostStates struct {
	// mu must not be held while the certmagic cache is called: the cache asks leadsElsewhere while it is locked.
	mu     sync.Mutex
	byName map[string]*hostState
}

// hostState is what is known about one host's certificate, beside the certificate itself.
type hostState struct {
	// attempt is closed when the current attempt to load or order the certificate ends. It is nil when no order is
	// in progress or waiting for a retry.
	attempt chan struct{}
	retry   chan struct{} // of the order in progress: a value ends the wait before the next attempt

	problem      string    // why the last order or renewal failed; empty after a success
	lastTry      time.Time // of an order
	nextTry      time.Time // zero unless an order failed
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
	names := make([]string, 0, len(s.byName))
	for name := range s.byName {
		names = append(names, name)
	}
	return names
}

func (s *hostStates) leadsElsewhere(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.byName[host]
	return h != nil && h.dnsElsewhere
}

// noteDNS keeps a finding about a host's DNS, and reports whether DNS led elsewhere before. An uncertain finding
// changes nothing.
func (s *hostStates) noteDNS(host string, f store.DNSFinding) (wasElsewhere bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Verdict != store.DNSCorrect && f.Verdict != store.DNSWrong {
		h := s.byName[host]
		return h != nil && h.dnsElsewhere
	}
	h := s.get(host)
	wasElsewhere = h.dnsElsewhere
	h.dnsElsewhere = f.Verdict == store.DNSWrong
	if h.dnsElsewhere {
		h.problem, h.nextTry = "", time.Time{} // DNS has to be corrected before the order's failure matters
		h.retryNow()                           // the attempt ends the order
	}
	return wasElsewhere
}

// retryNow ends the wait before the next attempt. The caller holds the states' mu.
func (h *hostState) retryNow() {
	select {
	case h.retry <- struct{}{}:
	default: // there is no order in progress, or it was told before
	}
}

// certificate is what partners see. notAfter is the expiry of the certificate in memory, zero when there is none.
func (h *hostState) certificate(notAfter time.Time) store.Certificate {
	switch {
	case time.Now().Before(notAfter):
		return store.Certificate{Status: store.CertificateValid, Detail: h.problem, NotAfter: notAfter}
	case h.dnsElsewhere:
		return store.Certificate{Status: store.CertificateNone, NotAfter: notAfter}
	case h.problem != "":
		return store.Certificate{Status: store.CertificateFailed, Detail: h.problem, NotAfter: notAfter, NextTry: h.nextTry}
	case h.attempt != nil || !notAfter.IsZero():
		return store.Certificate{Status: store.CertificatePending, NotAfter: notAfter}
	default:
		return store.Certificate{Status: store.CertificateNone}
	}
}
