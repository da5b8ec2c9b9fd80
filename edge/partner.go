package edge

import (
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// partnerKey is the key of the partner among a request's user values. fasthttp removes them after each request.
type partnerKey struct{}

// NotePartner notes the partner that a request has authenticated, for the request's line in the log.
func NotePartner(ctx *fasthttp.RequestCtx, partner store.PartnerID) {
	ctx.SetUserValue(partnerKey{}, partner)
}

// notedPartner returns the partner of a request, "" when none was noted.
func notedPartner(ctx *fasthttp.RequestCtx) store.PartnerID {
	partner, _ := ctx.UserValue(partnerKey{}).(store.PartnerID)
	return partner
}
