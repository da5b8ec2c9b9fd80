package certs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"golang.org/x/time/rate"
)

// orders gets certificates, from disk or from the CA, and retries until it has them. An order is the whole of this for
// one host; it consists of attempts.
type orders struct {
	Config
	pace    pace
	metrics *metrics
	magic   *magic
	states  *hostStates
	checks  *turns // of the DNS checks before orders
	ca      issuer

	ctx     context.Context // cancelled by stop
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newOrders(cfg Config, p pace) *orders {
	o := &orders{
		Config:  cfg,
		pace:    p,
		metrics: newMetrics(),
		states:  &hostStates{byName: map[string]*hostState{}},
		checks:  newTurns(rate.NewLimiter(rate.Inf, 0), checksAtOnce),
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	storage := newStorage(cfg)
	o.ca = newIssuer(cfg, p, storage)
	o.magic = newMagic(cfg, p, storage, o.ca, o.mayRenew, o.onEvent)
	return o
}

// stop ends all orders and certmagic's own work.
func (o *orders) stop() {
	o.cancel()
	o.running.Wait()
	o.ca.turns.stop()
	o.magic.cache.Stop() // waits for a renewal in progress, which only its timeout ends
}

// ensureCertificate starts an order for a host that may have a certificate, unless there is one already or the host's
// DNS leads elsewhere. It returns a channel that is closed when the current attempt ends; nil without an order.
func (o *orders) ensureCertificate(host string) <-chan struct{} {
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	h := o.states.get(host)
	if h.attempt == nil && !h.dnsElsewhere {
		o.startOrder(host, h)
	}
	return h.attempt
}

// orderOrRetry starts an order for a host unless it has a certificate. An order that waits for its turn becomes the next
// one of its partner. So does an order that waits for its next attempt, if the CA allows that now.
func (o *orders) orderOrRetry(host string) {
	if !o.Hosts.MayHaveCertificate(host) {
		return
	}
	missing := o.magic.expiryOf(host).IsZero()
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	h := o.states.get(host)
	wasElsewhere := h.dnsElsewhere
	h.dnsElsewhere = false
	if h.attempt == nil && (wasElsewhere || missing) {
		h.repaired = true
		o.startOrder(host, h)
	} else if !h.nextTry.IsZero() && time.Now().After(o.ca.nextTry(host)) {
		h.urgent, h.repaired = true, true
		h.retryNow()
	}
	o.checks.bringForward(host)
	o.ca.turns.bringForward(host)
}

// startOrder gets a host's certificate in the background, and retries until it has it. The caller holds states.mu, and
// has checked that h.attempt is nil.
func (o *orders) startOrder(host string, h *hostState) {
	if o.ctx.Err() != nil {
		return
	}
	h.attempt, h.retry = make(chan struct{}), make(chan struct{}, 1)
	o.running.Go(func() {
		for failures := 0; ; failures++ {
			err := o.try(host, h)
			wait, retry := o.endAttempt(host, h, err, failures)
			if !retry {
				return
			}
			select {
			case <-o.ctx.Done():
				return
			case <-h.retry:
			case <-time.After(wait):
			}
			o.states.mu.Lock()
			h.attempt, h.nextTry = make(chan struct{}), time.Time{}
			o.states.mu.Unlock()
		}
	})
}

// endAttempt notes the outcome of an attempt, and wakes the handshakes that wait for it. It reports whether to retry,
// and after how long.
func (o *orders) endAttempt(host string, h *hostState, err error, failures int) (wait time.Duration, retry bool) {
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	close(h.attempt)
	old := h.problem
	h.problem, h.nextTry = "", time.Time{}
	if err == nil || o.ctx.Err() != nil || errors.Is(err, errDNSElsewhere) || errors.Is(err, errUnknownHost) {
		h.attempt = nil
		return 0, false
	}
	wait = max(o.pace.backOff(err, failures), time.Until(o.ca.nextTry(host)))
	h.problem = problemOf(err)
	if notTried, ok := errors.AsType[errTooSoon](err); ok {
		h.problem = cmp.Or(old, h.problem)
		wait = max(wait, time.Until(notTried.until))
	}
	h.nextTry = time.Now().Add(wait)
	o.Log.Warn("certificate not issued", "host", host, "error", o.redact(err.Error()), "next_try_in", wait.Round(time.Second).String())
	return wait, true
}

// try is one attempt of an order. It loads the host's certificate from disk. When there is none, or it is due for
// renewal, try gets one from the CA. A certificate on disk is due when the service was down for weeks, or when the
// host's DNS led elsewhere for weeks.
func (o *orders) try(host string, h *hostState) error {
	old, err := o.magic.load(o.ctx, host)
	if isUnusable(err) {
		old, err = o.removeUnusable(host)
	}
	switch {
	case err == nil && !old.NeedsRenewal(o.magic.ordering):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := o.waitForTurn(host, h); err != nil {
		return err
	}
	counted := false // by the CA
	defer func() { o.ca.turns.end(counted) }()
	ctx, cancel := context.WithTimeout(o.ctx, o.pace.order)
	defer cancel()
	began := time.Now()
	var asked bool
	ctx = withAsked(ctx, &asked)
	if old.Empty() {
		err = o.magic.ordering.ObtainCertSync(ctx, host)
	} else {
		err = o.magic.ordering.RenewCertSync(ctx, host, false)
	}
	if _, counted = errors.AsType[errCounted](err); err != nil {
		return err
	}
	if counted = asked; asked { // else another node has got it meanwhile
		o.Log.Info("certificate issued", "host", host, "took_ms", time.Since(began).Milliseconds())
	}
	issued, err := o.magic.load(o.ctx, host)
	if err == nil && !old.Empty() && old.Hash() != issued.Hash() {
		o.magic.cache.Remove([]string{old.Hash()})
	}
	return err
}

// removeUnusable removes the files of a certificate that cannot be used; the error is fs.ErrNotExist then. It has the lock of the
// host's orders meanwhile, and loads the certificate again first: another node may have been writing the files one by one.
func (o *orders) removeUnusable(host string) (cert certmagic.Certificate, err error) {
	ctx, cancel := context.WithTimeout(o.ctx, o.pace.order)
	defer cancel()
	storage := o.magic.ordering.Storage
	if err := storage.Lock(ctx, issueLock(host)); err != nil {
		return certmagic.Certificate{}, err
	}
	defer func() { err = cmp.Or(err, storage.Unlock(context.WithoutCancel(ctx), issueLock(host))) }()
	if cert, err = o.magic.load(ctx, host); !isUnusable(err) {
		return cert, err
	}
	o.Log.Warn("stored certificate cannot be used, so another one is ordered", "host", host, "error", err)
	return certmagic.Certificate{}, cmp.Or(storage.Delete(ctx, certmagic.StorageKeys.CertsSitePrefix(o.ca.IssuerKey(), host)), fs.ErrNotExist)
}

// waitForTurn returns when it is the host's turn at the CA. The caller must end the turn. A host whose DNS leads
// elsewhere, or which the CA would refuse, does not wait: it gets an error. The DNS checks have turns too, so that a
// partner with many hosts on slow name servers does not delay the others.
func (o *orders) waitForTurn(host string, h *hostState) error {
	o.states.mu.Lock()
	urgent, repaired := h.urgent, h.repaired
	h.urgent, h.repaired = false, false
	o.states.mu.Unlock()
	partner := o.Hosts.Partner(host)

	if repaired {
		if _, _, err := o.ca.limits.load(o.ctx, host); err != nil {
			return err
		}
	}
	if next := o.ca.limits.nextTry(host); time.Now().Before(next) {
		return errTooSoon{next}
	}
	if err := o.checks.wait(o.ctx, partner, host, urgent); err != nil {
		return err
	}
	err := o.mayOrder(o.ctx, host)
	o.checks.end(false)
	if err != nil {
		return err
	}
	return o.ca.turns.wait(o.ctx, partner, host, urgent)
}

// onEvent is what certmagic calls during an order or a renewal. An error of it cancels the order.
func (o *orders) onEvent(ctx context.Context, event string, data map[string]any) error {
	host, _ := data["identifier"].(string)
	renewal, _ := data["renewal"].(bool)
	switch event {
	case "cert_obtaining":
		if attempts, ok := ctx.Value(certmagic.AttemptsCtxKey).(*int); ok && *attempts > 0 {
			// Certmagic replaces a revoked certificate in the loop that renews all others. While it retries, which
			// it does for up to a month, the others wait. So allow no second attempt.
			return certmagic.ErrNoRetry{Err: errors.New("certs: left to the next renewal check")}
		}
		if err := o.mayOrder(ctx, host); err != nil {
			return certmagic.ErrNoRetry{Err: err}
		}
	case "cert_obtained":
		o.metrics.issued.Inc()
		if renewal && o.endRenewal(host, nil) {
			o.Log.Info("certificate renewed", "host", host)
		}
	case "cert_failed":
		err, _ := data["error"].(error)
		if _, notTried := errors.AsType[errTooSoon](err); notTried {
			return nil
		}
		if problem, ok := errors.AsType[acme.Problem](err); ok && isRateLimited(problem) {
			o.metrics.limited.Inc()
		} else {
			o.metrics.failed.Inc()
		}
		if renewal && err != nil {
			if !o.endRenewal(host, err) {
				return nil
			}
			if isRefusedOrder(err) {
				o.ensureCertificate(host) // this order does not name the certificate that it replaces
			}
			remaining, _ := data["remaining"].(time.Duration)
			o.Log.Warn("certificate not renewed", "host", host, "error", o.redact(err.Error()), "expires_in", remaining.Round(time.Second).String())
		}
	}
	return nil
}

// endRenewal notes the outcome of a renewal that certmagic's timer started. It returns false when the renewal is part
// of an order: then endAttempt notes the outcome.
func (o *orders) endRenewal(host string, err error) bool {
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	h := o.states.get(host)
	if h.attempt != nil {
		return false
	}
	h.problem = problemOf(err)
	return true
}

// mayOrder is called before an order waits for its turn, and again before each request for a certificate: the wait may
// have been long. It checks the DNS of a tag host: if DNS leads elsewhere, the request would fail, and failures count
// against the CA's limits. When the check gets no answer, the request is made anyway: an outage of our resolvers must
// not let certificates expire.
func (o *orders) mayOrder(ctx context.Context, host string) error {
	if !o.Hosts.MayHaveCertificate(host) {
		return errUnknownHost
	}
	if o.Hosts.IsOwn(host) {
		return nil
	}
	o.states.noteDNS(host, o.CheckDNS(ctx, host))
	if o.states.leadsElsewhere(host) {
		return errDNSElsewhere
	}
	return nil
}

// mayRenew reports whether certmagic's timer should renew a host's certificate now.
func (o *orders) mayRenew(host string) bool {
	return o.Hosts.MayHaveCertificate(host) && !o.states.leadsElsewhere(host) && time.Now().After(o.ca.nextTry(host))
}
