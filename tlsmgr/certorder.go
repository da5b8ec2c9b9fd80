package tlsmgr

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// bring starts to get a host's certificate, and does not give up before it is there. The caller
// holds c.mu and has seen that nobody else does so.
func (c *Certificates) bring(host string, h *hostCert) {
	if c.ctx.Err() != nil {
		return
	}
	h.onItsWay, h.hurry = make(chan struct{}), make(chan struct{}, 1)
	c.running.Go(func() {
		for failures := 0; ; failures++ {
			err := c.try(host)
			wait, more := c.settle(host, h, err, failures)
			if !more {
				return
			}
			select {
			case <-c.ctx.Done():
				return
			case <-h.hurry:
			case <-time.After(wait):
			}
			c.mu.Lock()
			h.onItsWay = make(chan struct{})
			c.mu.Unlock()
		}
	})
}

// settle keeps the outcome of a try and lets those go that wait for it. It reports whether to try
// again, and when.
func (c *Certificates) settle(host string, h *hostCert, err error, failures int) (wait time.Duration, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(h.onItsWay)
	h.problem, h.nextTry = "", time.Time{}
	if err == nil || c.ctx.Err() != nil || errors.Is(err, errMovedAway) || errors.Is(err, errUnknownHost) {
		h.onItsWay = nil
		return 0, false
	}
	wait = c.waitAfter(err, failures)
	h.problem = problemOf(err)
	h.lastTry = time.Now()
	h.nextTry = h.lastTry.Add(wait)
	c.Log.Warn("certificate not issued", "host", host, "error", c.withoutContact(err.Error()), "next_try_in", wait.Round(time.Second))
	return wait, true
}

// try loads a host's certificate into memory, and orders one where there is none on disk, or one that is
// due for renewal: that of a host which comes back, or of a service that was down for weeks.
func (c *Certificates) try(host string) error {
	old, err := c.load(host)
	switch {
	case err == nil && !old.NeedsRenewal(c.ordering):
		return nil
	case err != nil && isUnreadable(err):
		return err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		c.Log.Warn("certificate on disk cannot be used, so another one is ordered", "host", host, "error", err)
		files := certmagic.StorageKeys.CertsSitePrefix(c.ordering.Issuers[0].IssuerKey(), host)
		if err := c.ordering.Storage.Delete(c.ctx, files); err != nil {
			return err
		}
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	if err := c.bucket.Wait(c.ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.pace.order)
	defer cancel()
	began := time.Now()
	if old.Empty() {
		err = c.ordering.ObtainCertSync(ctx, host)
	} else {
		err = c.ordering.RenewCertSync(ctx, host, false)
	}
	if err != nil {
		return err
	}
	c.Log.Info("certificate issued", "host", host, "took", time.Since(began).Round(time.Millisecond))
	issued, err := c.load(host)
	if err == nil && !old.Empty() && old.Hash() != issued.Hash() {
		c.cache.Remove([]string{old.Hash()})
	}
	return err
}

// load puts the certificate on disk into memory. The error is fs.ErrNotExist where there is none.
func (c *Certificates) load(host string) (certmagic.Certificate, error) {
	return c.ordering.CacheManagedCertificate(c.ctx, host)
}

// isUnreadable tells files that may be whole, but cannot be read at the moment, from those that do not
// fit together: certmagic writes the key before its certificate, and a kill may come in between.
func isUnreadable(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok && !errors.Is(err, fs.ErrNotExist)
}

// onEvent is called by certmagic at the turns of an order or a renewal, and waited for.
func (c *Certificates) onEvent(ctx context.Context, event string, data map[string]any) error {
	host, _ := data["identifier"].(string)
	renewal, _ := data["renewal"].(bool)
	switch event {
	case "cert_obtaining":
		if attempts, ok := ctx.Value(certmagic.AttemptsCtxKey).(*int); ok && *attempts > 0 {
			// A revoked certificate is replaced within the round that looks after all: a replacement that keeps
			// failing would hold up the others for a month.
			return certmagic.ErrNoRetry{Err: errors.New("tlsmgr: left to the next round")}
		}
		if err := c.mayOrder(ctx, host); err != nil {
			return certmagic.ErrNoRetry{Err: err}
		}
	case "cert_obtained":
		c.metrics.issued.Inc()
		if renewal && c.renewed(host, nil) {
			c.Log.Info("certificate renewed", "host", host)
		}
	case "cert_failed":
		c.metrics.failed.Inc()
		if err, _ := data["error"].(error); renewal && err != nil {
			if !c.renewed(host, err) {
				return nil
			}
			if isRefusedOrder(err) {
				c.want(host) // as an order of its own
			}
			c.Log.Warn("certificate not renewed", "host", host, "error", c.withoutContact(err.Error()), "expires_in", data["remaining"])
		}
	}
	return nil
}

// renewed keeps the outcome of a renewal that certmagic makes by itself. It reports false where a try is under way:
// the renewal is part of that, and settle has the last word.
func (c *Certificates) renewed(host string, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.host(host)
	if h.onItsWay != nil {
		return false
	}
	h.problem = problemOf(err)
	return true
}

// waitAfter is how long to wait after so many failures before this one, give or take a fifth, so that a
// thousand hosts do not come back to the CA at once.
func (c *Certificates) waitAfter(err error, failures int) time.Duration {
	first := c.pace.caFailed
	if problem, ok := errors.AsType[acme.Problem](err); ok {
		switch {
		case problem.Type == acme.ProblemTypeRateLimited || problem.Status == http.StatusTooManyRequests:
			first = c.pace.caLimited
		case problem.Status < http.StatusInternalServerError:
			first = c.pace.hostRefused
		}
	}
	wait := min(first<<min(failures, 20), c.pace.most)
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// problemOf is what a merchant is told of an error: the CA's own words, and nothing of this machine's.
func problemOf(err error) string {
	if err == nil {
		return ""
	}
	if problem, ok := errors.AsType[acme.Problem](err); ok {
		detail := problem.Detail
		for _, sub := range problem.Subproblems {
			detail += "; " + sub.Detail
		}
		return fmt.Sprintf("the certificate authority refused: %s", detail)
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return "the certificate authority cannot be reached"
	}
	return "the certificate could not be ordered"
}

// isRefusedOrder reports whether a CA refused an order before it challenged anybody. That of a renewal says which
// certificate it replaces, which the CA holds against it when that is another account's, because the contact
// was changed, say, or trips over when it does not know it. Certmagic would say the same every time.
func isRefusedOrder(err error) bool {
	problem, ok := errors.AsType[acme.Problem](err)
	return ok && problem.Type != acme.ProblemTypeRateLimited && strings.Contains(err.Error(), "creating new order")
}

func isLetsEncrypt(ca string) bool {
	u, err := url.Parse(ca)
	return err == nil && strings.HasSuffix(u.Hostname(), ".letsencrypt.org")
}
