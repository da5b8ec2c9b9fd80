package partnerapi

import (
	"context"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// readTag shows all that is known of a tag: how far its installation has come, what the last
// verification saw, how far its host's certificate has come, and what a page has to install (spec, Get tag by identifier). As with a merchant, that
// another partner has it is not told.
func (a *api) readTag(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	type finding struct {
		Verdict   store.DNSVerdict `json:"verdict"`
		Code      string           `json:"code"`
		Detail    string           `json:"detail"`
		CheckedAt string           `json:"checkedAt"`
	}
	type certificate struct {
		Status   store.CertificateStatus `json:"status"`
		Detail   string                  `json:"detail"`
		NotAfter *string                 `json:"notAfter"`
		NextTry  *string                 `json:"nextTry"`
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
		Certificate *certificate     `json:"certificate"`
	}{
		tagJSON:     a.showTag(t),
		MerchantID:  t.Merchant,
		Host:        a.host(t),
		CreatedAt:   timestamp(t.CreatedAt),
		IsConnected: t.Connected,
		IsVerified:  t.Verified,
		Lifecycle:   t.Lifecycle(lastEvent),
		LastEventAt: optional(lastEvent),
		Snippet:     snippet(a.TagURL(a.host(t)), t.ID),
	}
	if t.DNS != nil {
		shown.DNS = &finding{t.DNS.Verdict, t.DNS.Code, t.DNS.Detail, timestamp(t.DNS.CheckedAt)}
	}
	if a.Certificates != nil {
		cert := a.Certificates.Certificate(a.host(t))
		shown.Certificate = &certificate{cert.Status, cert.Detail, optional(cert.NotAfter), optional(cert.NextTry)}
	}
	return reply(r, fasthttp.StatusOK, shown)
}

// optional is null in place of a time that is not known.
func optional(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(timestamp(t))
}
