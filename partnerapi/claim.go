package partnerapi

import (
	"context"

	"mtagd/store"
)

// checkClaim checks that a merchant's server-side tag can get a root domain. former is the tag that would lose it, or
// empty. The engine checks all of this again when the domain changes hands, except DNS. KindConflict: another merchant's
// tag has the domain.
func (a *api) checkClaim(ctx context.Context, partner store.Partner, domain string, m store.MerchantID) (former store.TagID, err error) {
	c, err := a.Engine.Claim(ctx, domain)
	switch {
	case store.KindOf(err) == store.KindNotFound:
		return "", nil
	case err != nil:
		return "", err
	case c.Merchant == m: // a concurrent request was faster
		return "", nil
	case !c.Free(a.Now()):
		return "", errTaken
	case c.State != store.ClaimElsewhere:
		return c.Tag, nil
	}
	// The claim is free because DNS led elsewhere when it was last checked. That can be long ago: the service may have been
	// down, or without resolvers. So DNS must still lead elsewhere now.
	release, err := a.verifications.acquire(ctx, partner.ID)
	if err != nil {
		return "", err
	}
	defer release()
	found := a.DNS.Verify(ctx, c.Host)
	if _, err := a.Engine.UpdateTag(ctx, c.Tag, func(t store.Tag) store.Tag { return t.AfterRecheck(found) }); err != nil {
		return "", err
	}
	if found.Verdict != store.DNSWrong {
		return "", errTaken
	}
	return c.Tag, nil
}

var errTaken = store.Conflict("domain", "is already registered")

// logNewHolder logs that a domain has changed hands. former may be empty: then nobody had it before.
func (a *api) logNewHolder(t store.Tag, former store.TagID) {
	if former != "" {
		a.Log.Info("domain has changed hands", "domain", t.Domain, "from_tag", former, "to_tag", t.ID)
	}
}

// warnOfLabels warns, once in the life of the process, that many labels are in use.
func (a *api) warnOfLabels() {
	if used := a.Engine.Directory().Labels(); used >= store.ManyLabels {
		a.labelsWarned.Do(func() {
			a.Log.Warn("many mtag-xxxx labels are in use", "used", used, "usable", store.UsableLabels)
		})
	}
}
