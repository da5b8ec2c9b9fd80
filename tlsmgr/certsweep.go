package tlsmgr

import (
	"context"
	"slices"
	"time"
)

// loadAll gets every host's certificate: the service's own first, then those of tags. They all stay
// in memory, because certmagic renews what it has there, with visitors or without.
func (c *Certificates) loadAll() {
	began := time.Now()
	hosts := append(slices.Clone(c.Hosts), c.directory.TLSHosts()...)
	for _, host := range hosts {
		if c.ctx.Err() != nil {
			return
		}
		if c.expiryOf(host).IsZero() {
			if _, err := c.load(host); err != nil {
				c.want(host) // not on disk, or not readable: the way with all the rest
				continue
			}
		}
		c.mu.Lock()
		c.host(host)
		c.mu.Unlock()
	}
	c.Log.Info("certificates loaded", "hosts", len(hosts), "took", time.Since(began).Round(time.Millisecond))

	// Some may have expired while the service was down; they need not wait for the timer.
	if err := c.cache.RenewManagedCertificates(c.ctx); err != nil {
		c.Log.Error("certificates cannot be renewed", "error", err)
	}
}

// want makes sure that a host's certificate is on its way, unless its DNS leads elsewhere. It returns what
// is closed when the try under way has come to an end, nil when there is none.
func (c *Certificates) want(host string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.host(host)
	if h.onItsWay == nil && !h.movedAway {
		c.bring(host, h)
	}
	return h.onItsWay
}

// recheck looks at the DNS of every host once in a while, evenly spread, so that what partners read of a
// host's connection is true, and a host that came back is served again.
func (c *Certificates) recheck() {
	lookUps := make(chan struct{}, lookUpsAtOnce)
	for {
		hosts := c.directory.TLSHosts()
		if len(hosts) == 0 && !c.pause(c.pace.recheck) {
			return
		}
		for _, host := range hosts {
			if !c.pause(c.pace.recheck / time.Duration(len(hosts))) {
				return
			}
			select {
			case <-c.ctx.Done():
				return
			case lookUps <- struct{}{}:
			}
			c.running.Go(func() {
				defer func() { <-lookUps }()
				c.lookAgain(c.ctx, host)
			})
		}
	}
}

// pause reports false when Stop was called meanwhile.
func (c *Certificates) pause(d time.Duration) bool {
	select {
	case <-c.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// lookAgain looks at a host's DNS. The certificate of a host that came back may have expired meanwhile, or
// never have been ordered.
func (c *Certificates) lookAgain(ctx context.Context, host string) {
	wasAway := c.hasMovedAway(host)
	c.look(ctx, host)
	if wasAway || c.expiryOf(host).IsZero() {
		c.want(host)
	}
}
