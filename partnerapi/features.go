package partnerapi

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// readConfig answers with what is enabled for the partner (spec, Partner configuration).
func (a *api) readConfig(_ context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	type features struct {
		Preverified bool `json:"preverified"`
		ClientSide  bool `json:"clientSide"`
		ServerSide  bool `json:"serverSide"`
	}
	enabled := partner.PreverifiedEnabled()
	return reply(r, fasthttp.StatusOK, struct {
		PartnerID          store.PartnerID `json:"partnerId"`
		PreverifiedEnabled bool            `json:"preverifiedEnabled"`
		PreverifiedDomain  string          `json:"preverifiedDomain"`
		Features           features        `json:"features"`
	}{partner.ID, enabled, partner.TrackingDomain, features{enabled, true, true}})
}
