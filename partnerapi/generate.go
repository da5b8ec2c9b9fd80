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
	a.warnOfLabels()
	return a.replyTag(r, t, "New tag created successfully")
}

// replyTag answers with a tag and what generate did.
func (a *api) replyTag(r *fasthttp.RequestCtx, t store.Tag, message string) error {
	shown := a.showTag(t)
	shown.Message = message
	return reply(r, fasthttp.StatusOK, shown)
}
