package certs

import (
	"slices"
	"sync"
	"time"

	"github.com/mholt/acmez/v3/acme"
)

// Let's Encrypt's limit on failed validations of one host: five in an hour. It refuses further orders unchecked.
const (
	failuresAllowed = 5
	failuresWithin  = time.Hour
)

// limits remembers what the CA allows each host: how often an attempt may fail, and until when the CA refuses it. It
// also chooses the type of challenge. Both orders and renewals count. A restart forgets everything: then it is the CA
// that refuses, and says until when.
type limits struct {
	mu    sync.Mutex
	hosts map[string]*hostLimits // only hosts with failures
	works string                 // the type of challenge that succeeded last, at any host
}

type hostLimits struct {
	failures     []time.Time // attempts that failed within the hour, the oldest first
	refusedUntil time.Time   // by the CA's Retry-After
	challenge    string      // the type of the next attempt
}

// newLimits begins with TLS-ALPN-01: the port of HTTPS must be reachable anyway.
func newLimits() *limits {
	return &limits{hosts: map[string]*hostLimits{}, works: acme.ChallengeTypeTLSALPN01}
}

// nextTry returns when the host's next attempt may begin; a time in the past when it may begin now.
func (l *limits) nextTry(host string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if h == nil {
		return time.Time{}
	}
	next := h.refusedUntil
	if n := len(h.failures); n >= failuresAllowed {
		if free := h.failures[n-failuresAllowed].Add(failuresWithin); free.After(next) {
			next = free
		}
	}
	return next
}

// challenge returns the type of challenge for a host's next attempt. An attempt uses only one type, so that it cannot
// fail more than once. After a failure the next attempt uses the other type.
func (l *limits) challenge(host string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hosts[host]; h != nil {
		return h.challenge
	}
	return l.works
}

// succeeded notes that a validation succeeded.
func (l *limits) succeeded(host, challenge string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.works = challenge
	h := l.hosts[host]
	if h == nil {
		return
	}
	h.challenge = challenge
	if h.forgetOld(); len(h.failures) == 0 {
		delete(l.hosts, host)
	}
}

// failed notes that an attempt with a type of challenge failed. counts says that it may have counted as a failure at
// the CA. refusedUntil is the time before which the CA refuses the host; zero when it has set none.
func (l *limits) failed(host, challenge string, counts bool, refusedUntil time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if h == nil {
		h = &hostLimits{}
		l.hosts[host] = h
	}
	h.challenge = challenge
	h.forgetOld()
	if counts {
		h.failures = append(h.failures, time.Now())
	}
	if refusedUntil.After(h.refusedUntil) {
		h.refusedUntil = refusedUntil
	}
}

func (h *hostLimits) forgetOld() {
	h.failures = slices.DeleteFunc(h.failures, func(at time.Time) bool { return time.Since(at) > failuresWithin })
}

// otherChallenge returns the type of challenge that is not the given one.
func otherChallenge(challenge string) string {
	if challenge == acme.ChallengeTypeTLSALPN01 {
		return acme.ChallengeTypeHTTP01
	}
	return acme.ChallengeTypeTLSALPN01
}
