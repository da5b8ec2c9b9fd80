package partnerapi

import (
	"context"
	"fmt"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/partnerapi/openapi"
)

// references are the pages that describe the API, by path. Everybody may read them. They are made when they are first asked
// for.
func (a *api) references() map[string]fasthttp.RequestHandler {
	document := sync.OnceValues(func() ([]byte, error) { return openapi.Document(a.BaseURL, a.TagURL(a.ClientTagHost)) })
	return map[string]fasthttp.RequestHandler{
		"/v1/openapi.json": a.serveReference("read_openapi", func() (reference, error) {
			body, err := document()
			return reference{file: asset.New("application/json", body, true)}, err
		}),
		"/v1/docs": a.serveReference("read_docs", func() (reference, error) {
			text, err := document()
			if err != nil {
				return reference{}, err
			}
			page, policy, err := openapi.Page(text)
			return reference{asset.New("text/html; charset=utf-8", page, true), policy}, err
		}),
	}
}

// reference is a file that describes the API.
type reference struct {
	file   asset.File
	policy string // its Content-Security-Policy; may be empty
}

// serveReference returns the handler of a file. name is for metrics.
func (a *api) serveReference(name string, make func() (reference, error)) fasthttp.RequestHandler {
	made := sync.OnceValues(make)
	return func(r *fasthttp.RequestCtx) {
		h := &r.Response.Header
		if !r.IsGet() && !r.IsHead() {
			h.Set(fasthttp.HeaderAllow, "GET, HEAD")
			WriteError(r, fasthttp.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		r.SetUserValue(endpointValue, name)
		ref, err := made()
		if err != nil {
			a.fail(context.Background(), r, fmt.Errorf("%s: %w", name, err))
			return
		}
		h.Set(fasthttp.HeaderCacheControl, "no-cache") // a new version of the service may have another one
		if ref.policy != "" {
			h.Set(fasthttp.HeaderContentSecurityPolicy, ref.policy)
			h.Set(fasthttp.HeaderReferrerPolicy, "no-referrer")
		}
		ref.file.Send(r)
	}
}
