package partnerapi

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// readTag shows all that is known of a tag: how far its installation has come, what the last
// verification saw, and what a page has to install (spec, Get tag by identifier). As with a merchant, that
// another partner has it is not told.
func (a *api) readTag(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	type finding struct {
		Verdict   store.DNSVerdict `json:"verdict"`
		Code      string           `json:"code"`
		Detail    string           `json:"detail"`
		CheckedAt string           `json:"checkedAt"`
	}
	t, err := a.Engine.Tag(ctx, store.TagID(pathParam(r, "tagId")))
	if err != nil {
		return err
	}
	if t.Partner != partner.ID {
		return store.NotFound("tag")
	}
	lastEvent, err := a.Engine.LastEventAt(ctx, t.Merchant, t.ID)
	if err != nil {
		return err
	}
	shown := struct {
		tagJSON
		MerchantID  store.MerchantID `json:"merchantId"`
		Host        string           `json:"host"`
		CreatedAt   string           `json:"createdAt"`
		IsConnected bool             `json:"isConnected"`
		IsVerified  bool             `json:"isVerified"`
		Lifecycle   store.Lifecycle  `json:"lifecycle"`
		LastEventAt *string          `json:"lastEventAt"`
		Snippet     string           `json:"snippet"`
		DNS         *finding         `json:"dns"`
	}{
		tagJSON:     a.showTag(t),
		MerchantID:  t.Merchant,
		Host:        a.host(t),
		CreatedAt:   timestamp(t.CreatedAt),
		IsConnected: t.Connected,
		IsVerified:  t.Verified,
		Lifecycle:   t.Lifecycle(lastEvent),
		Snippet:     snippet(a.TagURL(a.host(t)), t.ID),
	}
	if !lastEvent.IsZero() {
		shown.LastEventAt = new(timestamp(lastEvent))
	}
	if t.DNS != nil {
		shown.DNS = &finding{t.DNS.Verdict, t.DNS.Code, t.DNS.Detail, timestamp(t.DNS.CheckedAt)}
	}
	return reply(r, fasthttp.StatusOK, shown)
}
