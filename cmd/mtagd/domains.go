package main

import (
	"context"
	"log/slog"

	"mtagd/store"
)

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
	check := func(domain, message string, args ...any) {
		if err := claimable.Check("domain", domain); err != nil {
			log.Warn(message, append(args, "domain", domain, "error", err)...)
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
	return nil
}
