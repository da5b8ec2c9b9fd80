package tag

import (
	"context"

	"github.com/goccy/go-json/jsontext"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// resolve is POST /id/:tagId (spec, "Resolve a muid"). It answers with the muid that the identifiers are linked to,
// null when there is none. A muid in the request is linked to the identifiers beside it if the sender may, and returned.
func (s *Server) resolve(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender) {
	if !s.limits.admit(ctx, from, 1, len(ctx.PostBody())) {
		return
	}
	var f fields
	if refused := f.decode(trim(ctx.PostBody())); refused != nil {
		refusalOf(ctx, refused).send(ctx)
		return
	}
	id, refused := f.identity(from)
	if refused != nil {
		refused.send(ctx)
		return
	}
	muid, err := s.cfg.Engine.Resolve(context.Background(), tag.Merchant, id)
	if err != nil {
		s.engineFailed(ctx, tag.Merchant, "resolve", err)
		return
	}
	if id.MUID != "" && len(id.Keys()) > 0 {
		from.stored = len(ctx.PostBody()) + besidesRaw // the links
	}
	b := []byte(`{"success":true,"muid":`)
	if muid == "" {
		b = append(b, "null"...)
	} else if b, err = jsontext.AppendQuote(b, string(muid)); err != nil {
		s.engineFailed(ctx, tag.Merchant, "resolve", err)
		return
	}
	sendJSON(ctx, fasthttp.StatusOK, append(b, '}'))
}
