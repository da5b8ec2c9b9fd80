package tlsmgr

import (
	"context"
	"errors"
	"slices"
	"time"

	"mtagd/store"
)

// hostCert is what is known of one host's certificate, beyond the certificate itself.
type hostCert struct {
	// onItsWay is closed when a try to load or order the certificate has come to an end; nil when
	// none is under way or waiting.
	onItsWay chan struct{}
	hurry    chan struct{} // of the tries under way: receives when the wait for the next one is to end

	problem   string    // why the last order or renewal failed; "" after a success
	lastTry   time.Time // of an order
	nextTry   time.Time // zero unless an order failed
	movedAway bool      // DNS was last found to lead elsewhere
}

var (
	errUnknownHost = errors.New("tlsmgr: not a host of this service")
	errMovedAway   = errors.New("tlsmgr: the host's DNS leads elsewhere")
	errNotYet      = errors.New("tlsmgr: there is no certificate yet")
)

// host is the record of a host that the service serves: nothing is kept of other names. The caller
// holds c.mu.
func (c *Certificates) host(name string) *hostCert {
	h := c.hosts[name]
	if h == nil {
		h = &hostCert{}
		c.hosts[name] = h
	}
	return h
}

// Order gets a host's certificate in the background, from disk or else from the CA; it is called
// when there is reason to believe that the host's DNS leads here. An order that failed before is not
// tried before its time, unless its last try is a while ago: whoever calls has just repaired something.
func (c *Certificates) Order(host string) {
	if !c.serves(host) {
		return
	}
	missing := c.expiryOf(host).IsZero()
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.host(host)
	wasAway := h.movedAway
	h.movedAway = false
	if h.onItsWay == nil && (wasAway || missing) {
		c.bring(host, h)
	} else if !h.nextTry.IsZero() && time.Since(h.lastTry) > c.pace.repair {
		h.wake()
	}
}

// wake brings the next try forward. The caller holds c.mu.
func (h *hostCert) wake() {
	select {
	case h.hurry <- struct{}{}:
	default: // it was told before, or there is none
	}
}

// Certificate tells how far a host's certificate has come.
func (c *Certificates) Certificate(host string) store.Certificate {
	notAfter := c.expiryOf(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[host]
	switch {
	case h == nil || !c.serves(host):
		return store.Certificate{Status: store.CertificateNone}
	case time.Now().Before(notAfter):
		return store.Certificate{Status: store.CertificateValid, Detail: h.problem, NotAfter: notAfter}
	case h.movedAway:
		return store.Certificate{Status: store.CertificateNone, NotAfter: notAfter}
	case h.problem != "":
		return store.Certificate{Status: store.CertificateFailed, Detail: h.problem, NotAfter: notAfter, NextTry: h.nextTry}
	case h.onItsWay != nil || !notAfter.IsZero():
		return store.Certificate{Status: store.CertificatePending, NotAfter: notAfter}
	default:
		return store.Certificate{Status: store.CertificateNone}
	}
}

// expiryOf is when the certificate in memory expires, zero where there is none. The caller does
// not hold c.mu: see there.
func (c *Certificates) expiryOf(host string) time.Time {
	var latest time.Time
	for _, cert := range c.cache.AllMatchingCertificates(host) {
		if cert.Leaf != nil && cert.Leaf.NotAfter.After(latest) {
			latest = cert.Leaf.NotAfter
		}
	}
	return latest
}

func (c *Certificates) hasMovedAway(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[host]
	return h != nil && h.movedAway
}

// mayOrder decides before each order and each renewal: it looks at the host's DNS, unless verify found
// that correct a moment ago. Only a record that leads elsewhere is in the way. Where DNS gives no answer
// the CA has the last word: an outage of our resolvers must not let certificates expire.
func (c *Certificates) mayOrder(ctx context.Context, host string) error {
	if !c.serves(host) {
		return errUnknownHost
	}
	if c.own[host] {
		return nil
	}
	verified := slices.ContainsFunc(c.directory.TagsOn(host), func(t store.Tag) bool {
		return t.Connected && t.DNS != nil && t.DNS.Verdict == store.DNSCorrect && time.Since(t.DNS.CheckedAt) < freshFinding
	})
	if !verified {
		c.look(ctx, host)
	}
	if c.hasMovedAway(host) {
		return errMovedAway
	}
	return nil
}

// look looks at a host's DNS and keeps what changes by it.
func (c *Certificates) look(ctx context.Context, host string) {
	found := c.LookUp(ctx, host)
	var transition func(store.Tag, store.DNSFinding) store.Tag
	switch found.Verdict {
	case store.DNSCorrect:
		transition = store.Tag.VerifiedBy
	case store.DNSWrong:
		transition = store.Tag.MovedAwayBy
	default:
		return // nothing is certain
	}
	connected := found.Verdict == store.DNSCorrect
	c.mu.Lock()
	h := c.host(host)
	changed := h.movedAway == connected
	h.movedAway = !connected
	if h.movedAway {
		h.problem, h.nextTry = "", time.Time{} // whatever it was, the host's DNS comes first
		h.wake()                               // and is the end of all tries
	}
	c.mu.Unlock()
	if changed {
		c.Log.Info("host has moved", "host", host, "here", connected, "code", found.Code, "detail", found.Detail)
	}

	for _, tag := range c.directory.TagsOn(host) {
		if tag.Connected == connected {
			continue
		}
		_, err := c.Engine.UpdateTag(ctx, tag.ID, func(t store.Tag) store.Tag { return transition(t, found) })
		if err != nil {
			c.Log.Error("a tag host's connection cannot be kept", "tag", tag.ID, "host", host, "error", err)
		}
	}
}
