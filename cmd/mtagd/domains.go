package main

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// claimable says which domains partners can claim. In development mode names such as shop.test can be, too.
func (c config) claimable() store.Claimable {
	return store.Claimable{
		Reserved:     []string{c.BaseHost, c.ClientTagHost, c.CNAMETarget},
		AllowPrivate: c.DNSPrivate || c.Dev != nil,
	}
}

// watchDomains exports the number of labels in use. In the background, it warns of domains that could not be claimed
// today, because they were claimed in an earlier version or under other flags. They go on as before: only an operator
// can decide to end them.
func (d *daemon) watchDomains(ctx context.Context) error {
	d.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mtagd_labels_used",
		Help: "Labels of the form mtag-xxxx that tags have.",
	}, func() float64 { return float64(d.engine.Directory().Labels()) }))

	ctx, cancel := context.WithCancel(ctx)
	var checks sync.WaitGroup
	checks.Go(func() {
		if err := d.checkDomains(ctx); err != nil && ctx.Err() == nil {
			d.Log.Error("domains not checked", "error", err)
		}
	})
	d.onStop(func() error {
		cancel()
		checks.Wait()
		return nil
	})
	return nil
}

// maxDomainWarnings bounds the warnings at a start.
const maxDomainWarnings = 20

// checkDomains logs the warnings of watchDomains.
func (d *daemon) checkDomains(ctx context.Context) error {
	partners, err := d.engine.Partners(ctx)
	if err != nil {
		return err
	}
	claims, err := d.engine.Claims(ctx, "")
	if err != nil {
		return err
	}
	claimable := d.claimable()
	wrong := 0
	check := func(domain, message string, args ...any) {
		if err := claimable.Check("domain", domain); err != nil {
			if wrong++; wrong <= maxDomainWarnings {
				d.Log.Warn(message, append(args, "domain", domain, "error", err)...)
			}
		}
	}
	for _, p := range partners {
		if p.PreverifiedEnabled() {
			check(p.TrackingDomain, `a tracking domain could not be set today; move it with "mtagd partner preverify"`, "partner", p.ID)
		}
	}
	for _, c := range claims {
		check(c.Domain, `a domain could not be registered today; release it with "mtagd domain release"`, "partner", c.Partner, "tag", c.Tag)
	}
	if wrong > maxDomainWarnings {
		d.Log.Warn("more domains could not be claimed today", "count", wrong-maxDomainWarnings)
	}
	return nil
}
