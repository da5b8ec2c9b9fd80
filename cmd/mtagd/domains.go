package main

import (
	"context"
	"log/slog"

	"mtagd/store"
)

// maxDomainWarnings bounds the warnings of one check.
const maxDomainWarnings = 20

// checkDomains warns of domains that could not be claimed today, because they were claimed in an earlier version or under
// other flags. They go on as before: only an operator can decide to end them.
func checkDomains(ctx context.Context, control store.Control, claimable store.Claimable, log *slog.Logger) error {
	partners, err := control.Partners(ctx)
	if err != nil {
		return err
	}
	claims, err := control.Claims(ctx, "")
	if err != nil {
		return err
	}
	wrong := 0
	check := func(domain, message string, args ...any) {
		if err := claimable.Check("domain", domain); err != nil {
			if wrong++; wrong <= maxDomainWarnings {
				log.Warn(message, append(args, "domain", domain, "error", err)...)
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
		log.Warn("more domains could not be claimed today", "count", wrong-maxDomainWarnings)
	}
	return nil
}
