package certs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"mtagd/store"
)

// stopTimeout limits how long Stop waits for work that cannot be cancelled.
const stopTimeout = 5 * time.Second

// Certificates orders, stores and renews the certificates of all hosts, for handshakes. It is safe for concurrent use.
type Certificates struct {
	Config
	pace    pace
	metrics *metrics
	magic   *magic
	states  *hostStates
	checks  *turns // of the DNS checks before orders
	ca      issuer

	directory singleflight.Group // reads of the CA's directory

	ctx     context.Context // cancelled by stop
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// New returns Certificates that order nothing before Start.
func New(cfg Config) *Certificates { return newCertificates(cfg, usualPace) }

func newCertificates(cfg Config, p pace) *Certificates {
	c := &Certificates{
		Config: cfg,
		pace:   p,
		states: &hostStates{byName: map[string]*hostState{}},
		checks: newTurns(rate.NewLimiter(rate.Inf, 0), checksAtOnce),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	storage := newStorage(cfg)
	c.ca = newIssuer(cfg, p, storage)
	c.magic = newMagic(cfg, p, storage, c.ca, c.mayRenew, c.onEvent)
	c.metrics = newMetrics(cfg.Metrics, gauges{c.all, c.ownMissing, c.ca.turns.waiting})
	return c
}

// Start loads the certificates that are on disk and orders those that are missing, in the background.
func (c *Certificates) Start() {
	if c.Shared != nil {
		c.running.Go(func() { c.ca.challenges.follow(c.ctx) })
	}
	c.running.Go(func() {
		c.loadAll()
		if c.Shared != nil {
			c.loadNew()
		}
	})
}

// Stop cancels all orders in progress. Call it once, after the last handshake.
func (c *Certificates) Stop() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.cancel()
		c.running.Wait()
		c.magic.cache.Stop() // waits for a renewal in progress, which only its timeout ends
	}()
	select {
	case <-stopped:
	case <-time.After(stopTimeout):
		c.Log.Warn("a certificate renewal was cut off")
	}
}

// loadAll loads or orders every host's certificate, the service's own first. It loads even those that no visitor asks
// for, because certmagic's timer renews only certificates in memory.
func (c *Certificates) loadAll() {
	began := time.Now()
	hosts := c.Hosts.All()
	for _, host := range hosts {
		if c.ctx.Err() != nil {
			return
		}
		if c.magic.expiryOf(host).IsZero() {
			if _, err := c.magic.load(c.ctx, host); err != nil {
				c.ensureCertificate(host) // whether it is missing on disk or unreadable: the order handles both
				continue
			}
		}
		c.states.mu.Lock()
		c.states.get(host) // creates the state: partners and metrics see only hosts that have one
		c.states.mu.Unlock()
	}
	c.Log.Info("certificates loaded", "hosts", len(hosts), "took_ms", time.Since(began).Milliseconds())

	// Some certificates may have expired while the service was down. Do not wait for the timer to renew them.
	if err := c.magic.cache.RenewManagedCertificates(c.ctx); err != nil {
		c.Log.Error("certificates cannot be renewed", "error", err)
	}
}

// loadNew loads the certificates of hosts that other nodes have verified, until stop. So each node has all certificates in
// memory before a visitor comes, and handshakes do not wait for the storage.
func (c *Certificates) loadNew() {
	for store.Sleep(c.ctx, c.pace.loadNew) == nil {
		for _, host := range c.Hosts.All() {
			c.states.mu.Lock()
			h, known := c.states.byName[host]
			elsewhere := known && h.dnsElsewhere && h.attempt == nil
			c.states.mu.Unlock()
			if !known {
				c.ensureCertificate(host)
			} else if elsewhere && c.magic.expiryOf(host).IsZero() {
				// Another node may have seen DNS lead here, and ordered. If there is nothing to load, look again soon.
				_, _ = c.magic.load(c.ctx, host)
			}
		}
	}
}

// DNSFound takes the finding of a recheck of a tag host's DNS. When DNS leads elsewhere, the certificate is no longer
// renewed and an order in progress ends. When DNS leads here again, it is renewed, or ordered if it is missing.
func (c *Certificates) DNSFound(host string, f store.DNSFinding) {
	if wasElsewhere := c.states.noteDNS(host, f); wasElsewhere || c.magic.expiryOf(host).IsZero() {
		c.ensureCertificate(host)
	}
}

// Certificate returns the state of a host's certificate. If its order waits for a turn, Detail says so.
func (c *Certificates) Certificate(host string) store.Certificate {
	cert := c.state(host)
	why, waits := c.whyWaiting(host)
	if cert.Detail != "" {
		why = cert.Detail + "; the next try " + why
	}
	if waits && cert.Status != store.CertificateNone { // none: the order will end, because DNS leads elsewhere
		cert.Detail = why
	}
	return cert
}

// all returns the state of every host's certificate, for the metrics.
func (c *Certificates) all() []store.Certificate {
	var all []store.Certificate
	for _, host := range c.states.names() {
		all = append(all, c.state(host))
	}
	return all
}

// ownMissing returns how many of the service's own hosts have no valid certificate, for the metrics.
func (c *Certificates) ownMissing() (n int) {
	for _, host := range c.Hosts.All() {
		if c.Hosts.IsOwn(host) && c.state(host).Status != store.CertificateValid {
			n++
		}
	}
	return n
}

// whyWaiting says why the order of a host waits for its turn, if it does.
func (c *Certificates) whyWaiting(host string) (why string, waits bool) {
	before, waits := c.ca.turns.before(host)
	if refused := c.ca.turns.refused(); time.Now().Before(refused) {
		return "waits until " + store.FormatTime(refused) + ": the certificate authority accepts no order before", waits
	}
	return fmt.Sprintf("waits for its turn at the certificate authority: %d orders before it", before), waits
}

// state is the state of a host's certificate, as partners see it.
func (c *Certificates) state(host string) store.Certificate {
	notAfter := c.magic.expiryOf(host)
	c.states.mu.Lock()
	defer c.states.mu.Unlock()
	h := c.states.byName[host]
	if h == nil || !c.Hosts.MayHaveCertificate(host) {
		return store.Certificate{Status: store.CertificateNone}
	}
	return h.shown(notAfter)
}
