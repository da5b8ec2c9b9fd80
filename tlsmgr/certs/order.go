package certs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// An order gets one host's certificate, from disk or from the CA, and retries until it has it. It consists of attempts.

// ensureCertificate starts an order for a host that may have a certificate, unless there is one already or the host's
// DNS leads elsewhere. It returns a channel that is closed when the current attempt ends; nil without an order.
func (c *Certificates) ensureCertificate(host string) <-chan struct{} {
	c.states.mu.Lock()
	defer c.states.mu.Unlock()
	h := c.states.get(host)
	if h.attempt == nil && !h.dnsElsewhere {
		c.startOrder(host, h)
	}
	return h.attempt
}

// Order gets a host's certificate in the background, from disk or from the CA. Call it when there is reason to believe
// that the host's DNS leads here now: the cause of a failure may have been repaired. So an order that waits for its turn
// becomes the next one of its partner, and an order that failed is retried now if the CA allows it.
func (c *Certificates) Order(host string) {
	if !c.Hosts.MayHaveCertificate(host) {
		return
	}
	missing := c.magic.expiryOf(host).IsZero()
	c.states.mu.Lock()
	defer c.states.mu.Unlock()
	h := c.states.get(host)
	wasElsewhere := h.dnsElsewhere
	h.dnsElsewhere = false
	if h.attempt == nil && (wasElsewhere || missing) {
		h.repaired = true
		c.startOrder(host, h)
	} else if !h.nextTry.IsZero() && time.Now().After(c.ca.nextTry(host)) {
		h.urgent, h.repaired = true, true
		h.retryNow()
	}
	c.checks.bringForward(host)
	c.ca.turns.bringForward(host)
}

// startOrder gets a host's certificate in the background, and retries until it has it. states.mu is held, h.attempt nil.
func (c *Certificates) startOrder(host string, h *hostState) {
	if c.ctx.Err() != nil {
		return
	}
	h.attempt, h.retry = make(chan struct{}), make(chan struct{}, 1)
	c.running.Go(func() {
		for failures := 0; ; failures++ {
			err := c.try(host, h)
			wait, retry := c.endAttempt(host, h, err, failures)
			if !retry {
				return
			}
			select {
			case <-c.ctx.Done():
				return
			case <-h.retry:
			case <-time.After(wait):
			}
			c.states.mu.Lock()
			h.attempt, h.nextTry = make(chan struct{}), time.Time{}
			c.states.mu.Unlock()
		}
	})
}

// endAttempt notes the outcome of an attempt, and wakes the handshakes that wait. It returns whether to retry, and when.
func (c *Certificates) endAttempt(host string, h *hostState, err error, failures int) (wait time.Duration, retry bool) {
	c.states.mu.Lock()
	defer c.states.mu.Unlock()
	close(h.attempt)
	old := h.problem
	h.problem, h.nextTry = "", time.Time{}
	if err == nil || c.ctx.Err() != nil || errors.Is(err, errDNSElsewhere) || errors.Is(err, errUnknownHost) {
		h.attempt = nil
		return 0, false
	}
	wait = max(c.pace.backOff(err, failures), time.Until(c.ca.nextTry(host)))
	h.problem = problemOf(err)
	if notTried, ok := errors.AsType[errTooSoon](err); ok {
		h.problem = cmp.Or(old, h.problem)
		wait = max(wait, time.Until(notTried.until))
	}
	h.nextTry = time.Now().Add(wait)
	c.Log.Warn("certificate not issued", "host", host, "error", c.redact(err.Error()), "next_try_in", wait.Round(time.Second).String())
	return wait, true
}

// try is one attempt of an order. It loads the host's certificate from disk. When there is none, or it is due for
// renewal, try gets one from the CA. One on disk is due when the service was down, or DNS led elsewhere, for weeks.
func (c *Certificates) try(host string, h *hostState) error {
	old, err := c.magic.load(c.ctx, host)
	if isUnusable(err) {
		old, err = c.removeUnusable(host)
	}
	switch {
	case err == nil && !old.NeedsRenewal(c.magic.ordering):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := c.waitForTurn(host, h); err != nil {
		return err
	}
	counted := false // by the CA
	defer func() { c.ca.turns.end(counted) }()
	ctx, cancel := context.WithTimeout(c.ctx, c.pace.order)
	defer cancel()
	began := time.Now()
	var tried attempt
	ctx = context.WithValue(ctx, attemptKey{}, &tried)
	if old.Empty() {
		err = c.magic.ordering.ObtainCertSync(ctx, host)
	} else {
		err = c.magic.ordering.RenewCertSync(ctx, host, false)
	}
	if _, counted = errors.AsType[errCounted](err); err != nil {
		return err
	}
	if counted = tried.asked; counted { // else another node has got it meanwhile
		c.Log.Info("certificate issued", "host", host, "took_ms", time.Since(began).Milliseconds())
	}
	issued, err := c.magic.load(c.ctx, host)
	if err == nil && !old.Empty() && old.Hash() != issued.Hash() {
		c.magic.cache.Remove([]string{old.Hash()})
	}
	return err
}

// removeUnusable removes the files of a certificate that cannot be used; the error is fs.ErrNotExist then. It holds
// the lock of the host's orders, and loads the certificate again first: another node may have been writing its files.
func (c *Certificates) removeUnusable(host string) (cert certmagic.Certificate, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.pace.order)
	defer cancel()
	storage := c.magic.ordering.Storage
	if err := storage.Lock(ctx, issueLock(host)); err != nil {
		return certmagic.Certificate{}, err
	}
	defer func() { err = cmp.Or(err, storage.Unlock(context.WithoutCancel(ctx), issueLock(host))) }()
	if cert, err = c.magic.load(ctx, host); !isUnusable(err) {
		return cert, err
	}
	c.Log.Warn("stored certificate cannot be used, so another one is ordered", "host", host, "error", err)
	return certmagic.Certificate{}, cmp.Or(storage.Delete(ctx, certmagic.StorageKeys.CertsSitePrefix(c.ca.IssuerKey(), host)), fs.ErrNotExist)
}

// waitForTurn returns when it is the host's turn at the CA. The caller must end the turn. A host whose DNS leads
// elsewhere, or which the CA would refuse, does not wait: it gets an error. The DNS checks have turns too, so that a
// partner with many hosts on slow name servers does not delay the others.
func (c *Certificates) waitForTurn(host string, h *hostState) error {
	c.states.mu.Lock()
	urgent, repaired := h.urgent, h.repaired
	h.urgent, h.repaired = false, false
	c.states.mu.Unlock()
	partner := c.Hosts.Partner(host)

	if repaired {
		if _, _, err := c.ca.limits.load(c.ctx, host); err != nil {
			c.states.mu.Lock()
			h.repaired = true // for the next attempt
			c.states.mu.Unlock()
			return err
		}
	}
	if next := c.ca.limits.nextTry(host); time.Now().Before(next) {
		return errTooSoon{next}
	}
	if err := c.checks.wait(c.ctx, partner, host, urgent); err != nil {
		return err
	}
	err := c.mayOrder(c.ctx, host)
	c.checks.end(false)
	if err != nil {
		return err
	}
	return c.ca.turns.wait(c.ctx, partner, host, urgent)
}

// onEvent is what certmagic calls during an order or a renewal. An error of it cancels the order.
func (c *Certificates) onEvent(ctx context.Context, event string, data map[string]any) error {
	host, _ := data["identifier"].(string)
	renewal, _ := data["renewal"].(bool)
	switch event {
	case "cert_obtaining":
		if attempts, ok := ctx.Value(certmagic.AttemptsCtxKey).(*int); ok && *attempts > 0 {
			// Certmagic replaces a revoked certificate in the loop that renews all others. While it retries, which
			// it does for up to a month, the others wait. So allow no second attempt.
			return certmagic.ErrNoRetry{Err: errors.New("certs: the next renewal check tries again")}
		}
		if err := c.mayOrder(ctx, host); err != nil {
			return certmagic.ErrNoRetry{Err: err}
		}
	case "cert_obtained":
		c.metrics.issued.Inc()
		if renewal && c.endRenewal(host, nil) {
			c.Log.Info("certificate renewed", "host", host)
		}
	case "cert_failed":
		err, _ := data["error"].(error)
		if _, notTried := errors.AsType[errTooSoon](err); notTried {
			return nil
		}
		if problem, ok := errors.AsType[acme.Problem](err); ok && isRateLimited(problem) {
			c.metrics.limited.Inc()
		} else {
			c.metrics.failed.Inc()
		}
		if renewal && err != nil {
			if !c.endRenewal(host, err) {
				return nil
			}
			if isRefusedOrder(err) {
				c.ensureCertificate(host) // this order does not name the certificate that it replaces
			}
			remaining, _ := data["remaining"].(time.Duration)
			c.Log.Warn("certificate not renewed", "host", host, "error", c.redact(err.Error()), "expires_in", remaining.Round(time.Second).String())
		}
	}
	return nil
}

// endRenewal notes the outcome of a renewal that certmagic's timer started. It returns false when the renewal is part
// of an order: then endAttempt notes the outcome.
func (c *Certificates) endRenewal(host string, err error) bool {
	c.states.mu.Lock()
	defer c.states.mu.Unlock()
	h := c.states.get(host)
	if h.attempt != nil {
		return false
	}
	h.problem = problemOf(err)
	return true
}

// mayOrder is called before an order waits for its turn, and again before each request for a certificate: the wait may
// have been long. It checks the DNS of a tag host: if DNS leads elsewhere, the request would fail, and failures count
// against the CA's limits. Without an answer, the request is made: certificates must not expire when our resolvers fail.
func (c *Certificates) mayOrder(ctx context.Context, host string) error {
	if !c.Hosts.MayHaveCertificate(host) {
		return errUnknownHost
	}
	if c.Hosts.IsOwn(host) {
		return nil
	}
	if c.states.noteDNS(host, c.CheckDNS(ctx, host)); c.states.leadsElsewhere(host) {
		return errDNSElsewhere
	}
	return nil
}

// mayRenew reports whether certmagic's timer should renew a host's certificate now.
func (c *Certificates) mayRenew(host string) bool {
	return c.Hosts.MayHaveCertificate(host) && !c.states.leadsElsewhere(host) && time.Now().After(c.ca.nextTry(host))
}
