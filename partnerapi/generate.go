package partnerapi

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// generateTag returns the merchant's tag of a type, a new one where there is none yet (spec,
// Generate tag). A tag that exists is returned as it is, whatever valid domain is sent.
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
	if tagType == store.ServerSide {
		if domain, err = store.CheckRootDomain("domain", in.Domain); err != nil {
			return err
		}
	}
	m, err := a.ownMerchant(ctx, partner, in.MerchantID)
	if err != nil {
		return err
	}
	t, created, err := a.Engine.GenerateTag(ctx, m.ID, tagType, domain)
	if err != nil {
		return err
	}
	shown := a.showTag(t)
	shown.Message = "Existing tag retrieved"
	if created {
		shown.Message = "New tag created successfully"
	}
	return reply(r, fasthttp.StatusOK, shown)
}
