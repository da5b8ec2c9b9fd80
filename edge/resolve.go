package edge

import (
	"context"

	"github.com/goccy/go-json/jsontext"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// resolve is POST /id/:tagId (spec, "Resolve a muid"): the muid of the identifiers, null when the
// user is unknown. A muid in the body is echoed, after it was linked to the identifiers beside it.
func (s *Server) resolve(ctx *fasthttp.RequestCtx, tag *store.Tag) {
	var f fields
	if refused := f.decode(trim(ctx.PostBody())); refused != nil {
		refused.send(ctx)
		return
	}
	id, refused := f.identity(cookieMUID(ctx))
	if refused != nil {
		refused.send(ctx)
		return
	}
	muid, err := s.Engine.Resolve(context.Background(), tag.Merchant, id)
	if err != nil {
		s.engineFailed(ctx, "resolve", err)
		return
	}
	b := []byte(`{"success":true,"muid":`)
	if muid == "" {
		b = append(b, "null"...)
	} else if b, err = jsontext.AppendQuote(b, string(muid)); err != nil {
		s.engineFailed(ctx, "resolve", err)
		return
	}
	sendJSON(ctx, fasthttp.StatusOK, append(b, '}'))
}
