package partnerapi

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// generateTag answers with the merchant's tag of a type, and creates it when there is none yet (spec, Generate
// tag). An existing tag is returned unchanged, whatever domain the request has.
func (a *api) generateTag(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	var in struct {
		MerchantID string `json:"merchantId"`
		Type       string `json:"type"`
		Domain     string `json:"domain"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	switch {
	case in.MerchantID == "":
		return store.Invalid("merchantId", "is required")
	case !store.IsUUID(in.MerchantID):
		return store.Invalid("merchantId", "must be a UUID")
	case in.Type == "":
		return store.Invalid("type", "is required")
	}
	tagType, err := store.ParseTagType(in.Type)
	if err != nil {
		return err
	}
	var domain string
	var wrongDomain error
	if tagType == store.ServerSide {
		if domain, wrongDomain = store.CheckRootDomain("domain", in.Domain); wrongDomain == nil {
			wrongDomain = a.Claimable.Check("domain", domain)
		}
	}

	m, err := a.activeMerchant(ctx, partner, in.MerchantID)
	if err == nil {
		if t, exists := m.Tag(tagType); exists {
			return a.replyTag(r, t, "Existing tag retrieved")
		}
	}
	// A wrong parameter is answered before an unknown merchant or another partner's, so err waits.
	if wrongDomain != nil {
		return wrongDomain
	}
	if err != nil {
		return err
	}
	var former store.TagID
	if tagType == store.ServerSide {
		if former, err = a.checkClaim(ctx, partner, domain, m.ID); err != nil {
			return err
		}
	}
	t, created, err := a.Engine.GenerateTag(ctx, m.ID, tagType, domain)
	if err != nil {
		return err
	}
	if !created { // a concurrent request has created it
		return a.replyTag(r, t, "Existing tag retrieved")
	}
	a.logNewHolder(t, former)
	if used := a.Engine.Directory().Labels(); used >= store.ManyLabels {
		a.labelsWarned.Do(func() {
			a.Log.Warn("many mtag-xxxx labels are in use", "used", used, "usable", store.UsableLabels)
		})
	}
	return a.replyTag(r, t, "New tag created successfully")
}

// replyTag answers with a tag and what generate did.
func (a *api) replyTag(r *fasthttp.RequestCtx, t store.Tag, message string) error {
	shown := a.showTag(t)
	shown.Message = message
	return Reply(r, fasthttp.StatusOK, shown)
}

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
