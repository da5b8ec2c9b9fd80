package certs

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"golang.org/x/time/rate"

	"mtagd/store"
)

// orders gets certificates, from disk or from the CA, and retries until they are there.
type orders struct {
	Config
	pace    pace
	metrics *metrics
	magic   *magic
	states  *hostStates

	slots   chan struct{} // one for each order in progress
	limiter *rate.Limiter // of new orders

	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newOrders(cfg Config, p pace) *orders {
	o := &orders{
		Config:  cfg,
		pace:    p,
		metrics: newMetrics(),
		states:  &hostStates{byName: map[string]*hostState{}},
		slots:   make(chan struct{}, ordersAtOnce),
		limiter: newOrderLimiter(cfg.CA),
	}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	o.magic = newMagic(cfg, p, o.mayRenew, o.onEvent)
	return o
}

// stop ends all orders and certmagic's own work.
func (o *orders) stop() {
	o.cancel()
	o.running.Wait()
	o.magic.cache.Stop() // waits for a renewal in progress, which only its timeout ends
}

// ensureCertificate starts an order for a host that may have a certificate, unless one is in progress or the host's DNS
// leads elsewhere. It returns a channel that is closed when the current attempt ends; nil when there is none.
func (o *orders) ensureCertificate(host string) <-chan struct{} {
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	h := o.states.get(host)
	if h.attempt == nil && !h.dnsElsewhere {
		o.startOrder(host, h)
	}
	return h.attempt
}

// startOrder gets a host's certificate in the background, and retries until it is there. The caller holds states.mu,
// and has checked that h.attempt is nil.
func (o *orders) startOrder(host string, h *hostState) {
	if o.ctx.Err() != nil {
		return
	}
	h.attempt, h.retry = make(chan struct{}), make(chan struct{}, 1)
	o.running.Go(func() {
		for failures := 0; ; failures++ {
			err := o.try(host)
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
			h.attempt = make(chan struct{})
			o.states.mu.Unlock()
		}
	})
}

// endAttempt keeps the outcome of an attempt, and wakes the handshakes that wait for it. It reports whether to retry,
// and after how long.
func (o *orders) endAttempt(host string, h *hostState, err error, failures int) (wait time.Duration, retry bool) {
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	close(h.attempt)
	h.problem, h.nextTry = "", time.Time{}
	if err == nil || o.ctx.Err() != nil || errors.Is(err, errDNSElsewhere) || errors.Is(err, errUnknownHost) {
		h.attempt = nil
		return 0, false
	}
	wait = o.pace.retryAfter(err, failures)
	h.problem = problemOf(err)
	h.lastTry = time.Now()
	h.nextTry = h.lastTry.Add(wait)
	o.Log.Warn("certificate not issued", "host", host, "error", o.redact(err.Error()), "next_try_in", wait.Round(time.Second).String())
	return wait, true
}

// try loads a host's certificate into memory. When there is none on disk, or the one on disk is due for renewal, it
// orders one. A certificate on disk can be due when the host comes back, or when the service was down for
// weeks.
func (o *orders) try(host string) error {
	old, err := o.magic.load(o.ctx, host)
	switch {
	case err == nil && !old.NeedsRenewal(o.magic.ordering):
		return nil
	case err != nil && isUnreadable(err):
		return err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		o.Log.Warn("certificate on disk cannot be used, so another one is ordered", "host", host, "error", err)
		files := certmagic.StorageKeys.CertsSitePrefix(o.magic.ordering.Issuers[0].IssuerKey(), host)
		if err := o.magic.ordering.Storage.Delete(o.ctx, files); err != nil {
			return err
		}
	}
	select {
	case o.slots <- struct{}{}:
		defer func() { <-o.slots }()
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
	if err := o.limiter.Wait(o.ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(o.ctx, o.pace.order)
	defer cancel()
	began := time.Now()
	if old.Empty() {
		err = o.magic.ordering.ObtainCertSync(ctx, host)
	} else {
		err = o.magic.ordering.RenewCertSync(ctx, host, false)
	}
	if err != nil {
		return err
	}
	o.Log.Info("certificate issued", "host", host, "took_ms", time.Since(began).Milliseconds())
	issued, err := o.magic.load(o.ctx, host)
	if err == nil && !old.Empty() && old.Hash() != issued.Hash() {
		o.magic.cache.Remove([]string{old.Hash()})
	}
	return err
}

// onEvent follows an order or a renewal. Certmagic waits for it.
func (o *orders) onEvent(ctx context.Context, event string, data map[string]any) error {
	host, _ := data["identifier"].(string)
	renewal, _ := data["renewal"].(bool)
	switch event {
	case "cert_obtaining":
		if attempts, ok := ctx.Value(certmagic.AttemptsCtxKey).(*int); ok && *attempts > 0 {
			// Certmagic replaces a revoked certificate in the same loop that renews all others. If it retried a
			// replacement that keeps failing, the others would wait for up to a month.
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
		o.metrics.failed.Inc()
		if err, _ := data["error"].(error); renewal && err != nil {
			if !o.endRenewal(host, err) {
				return nil
			}
			if isRefusedOrder(err) {
				o.ensureCertificate(host) // with an order that names no certificate to replace
			}
			remaining, _ := data["remaining"].(time.Duration)
			o.Log.Warn("certificate not renewed", "host", host, "error", o.redact(err.Error()), "expires_in", remaining.Round(time.Second).String())
		}
	}
	return nil
}

// endRenewal keeps the outcome of a renewal that certmagic started itself. It returns false when the renewal belongs to
// an order in progress, whose endAttempt keeps the outcome.
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

// mayOrder is called before each order and each renewal. It checks the DNS of a tag host: an order for a host whose DNS
// leads elsewhere would fail, and failures count against the CA's limits. When DNS gives no answer the CA
// decides: an outage of our resolvers must not let certificates expire.
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

// mayRenew reports whether certmagic should renew a host's certificate by itself.
func (o *orders) mayRenew(host string) bool {
	return o.Hosts.MayHaveCertificate(host) && !o.states.leadsElsewhere(host)
}

// certificate is what partners see of a host's certificate.
func (o *orders) certificate(host string) store.Certificate {
	notAfter := o.magic.expiryOf(host)
	o.states.mu.Lock()
	defer o.states.mu.Unlock()
	h := o.states.byName[host]
	if h == nil || !o.Hosts.MayHaveCertificate(host) {
		return store.Certificate{Status: store.CertificateNone}
	}
	return h.certificate(notAfter)
}
