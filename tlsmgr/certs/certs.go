package certs

import (
	"fmt"
	"time"

	"mtagd/store"
)

// stopTimeout limits how long Stop waits for work that cannot be cancelled.
const stopTimeout = 5 * time.Second

// Certificates orders, stores and renews the certificates of all hosts, and answers handshakes with them. Its methods
// are safe for concurrent use.
type Certificates struct{ orders *orders }

// New returns Certificates that order nothing before Start. It returns an error when the metrics are registered already.
func New(cfg Config) (*Certificates, error) { return newCertificates(cfg, usualPace) }

func newCertificates(cfg Config, p pace) (*Certificates, error) {
	c := &Certificates{newOrders(cfg, p)}
	if cfg.Metrics != nil {
		if err := c.orders.metrics.register(cfg.Metrics, c.all, c.orders.ca.turns.waiting); err != nil {
			c.orders.stop()
			return nil, err
		}
	}
	return c, nil
}

// Start loads the certificates that are on disk and orders those that are missing, in the background.
func (c *Certificates) Start() {
	c.orders.running.Go(func() {
		c.loadAll()
		if c.orders.Shared != nil {
			c.loadNew()
		}
	})
}

// Stop cancels all orders in progress. Call it once, after the last handshake.
func (c *Certificates) Stop() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.orders.stop()
	}()
	select {
	case <-stopped:
	case <-time.After(stopTimeout):
		c.orders.Log.Warn("a certificate renewal was cut off")
	}
}

// loadAll loads or orders every host's certificate, the service's own first. It loads even those that no visitor asks
// for, because certmagic's timer renews only certificates in memory.
func (c *Certificates) loadAll() {
	o := c.orders
	began := time.Now()
	hosts := o.Hosts.All()
	for _, host := range hosts {
		if o.ctx.Err() != nil {
			return
		}
		if o.magic.expiryOf(host).IsZero() {
			if _, err := o.magic.load(o.ctx, host); err != nil {
				o.ensureCertificate(host) // whether it is missing on disk or unreadable: the order handles both
				continue
			}
		}
		o.states.mu.Lock()
		o.states.get(host) // creates the state: partners and metrics see only hosts that have one
		o.states.mu.Unlock()
	}
	o.Log.Info("certificates loaded", "hosts", len(hosts), "took_ms", time.Since(began).Milliseconds())

	// Some certificates may have expired while the service was down. Do not wait for the timer to renew them.
	if err := o.magic.cache.RenewManagedCertificates(o.ctx); err != nil {
		o.Log.Error("certificates cannot be renewed", "error", err)
	}
}

// loadNew loads the certificates of hosts that were verified by other nodes, until stop. So each node has all certificates in memory,
// before a visitor asks for one and if the store is away.
func (c *Certificates) loadNew() {
	o := c.orders
	for pause(o.ctx, o.pace.loadNew) == nil {
		for _, host := range o.Hosts.All() {
			o.states.mu.Lock()
			h, known := o.states.byName[host]
			elsewhere := known && h.dnsElsewhere && h.attempt == nil
			o.states.mu.Unlock()
			if !known {
				o.ensureCertificate(host)
			} else if elsewhere && o.magic.expiryOf(host).IsZero() {
				// Another node may have found that DNS leads here, and have ordered. If there is nothing to load, look again soon.
				_, _ = o.magic.load(o.ctx, host)
			}
		}
	}
}

// Order gets a host's certificate in the background, from disk or from the CA. Call it when there is reason to believe
// that the host's DNS leads here now: the cause of a failure may have been repaired. So an order that waits for its turn
// becomes the next one of its partner, and an order that failed is retried now if the CA allows it.
func (c *Certificates) Order(host string) { c.orders.orderOrRetry(host) }

// DNSFound takes the finding of a recheck of a tag host's DNS. When DNS leads elsewhere, the certificate is no longer
// renewed and an order in progress ends. When DNS leads here again, the certificate is renewed again; if it is
// missing or has expired, it is ordered.
func (c *Certificates) DNSFound(host string, f store.DNSFinding) {
	wasElsewhere := c.orders.states.noteDNS(host, f)
	if wasElsewhere || c.orders.magic.expiryOf(host).IsZero() {
		c.orders.ensureCertificate(host)
	}
}

// Certificate returns the state of a host's certificate. If its order waits for a turn, Detail says so.
func (c *Certificates) Certificate(host string) store.Certificate {
	cert := c.state(host)
	why := c.whyWaiting(host)
	switch {
	case why == "" || cert.Status == store.CertificateNone: // none: the order will end, because DNS leads elsewhere
	case cert.Detail == "":
		cert.Detail = why
	default:
		cert.Detail += "; the next try " + why
	}
	return cert
}

// all returns the state of every host's certificate, for the metrics.
func (c *Certificates) all() []store.Certificate {
	var all []store.Certificate
	for _, host := range c.orders.states.names() {
		all = append(all, c.state(host))
	}
	return all
}

// whyWaiting says why the order of a host waits for its turn. It is empty when the order does not wait.
func (c *Certificates) whyWaiting(host string) string {
	turns := c.orders.ca.turns
	before, waits := turns.before(host)
	if !waits {
		return ""
	}
	if refused := turns.refused(); time.Now().Before(refused) {
		return "waits until " + store.FormatTime(refused) + ": the certificate authority accepts no order before"
	}
	return fmt.Sprintf("waits for its turn at the certificate authority: %d orders before it", before)
}

// state is the state of a host's certificate, as partners see it.
func (c *Certificates) state(host string) store.Certificate {
	notAfter := c.orders.magic.expiryOf(host)
	c.orders.states.mu.Lock()
	defer c.orders.states.mu.Unlock()
	h := c.orders.states.byName[host]
	if h == nil || !c.orders.Hosts.MayHaveCertificate(host) {
		return store.Certificate{Status: store.CertificateNone}
	}
	return h.shown(notAfter)
}
