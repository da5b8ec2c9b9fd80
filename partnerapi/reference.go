package partnerapi

import (
	"context"
	"fmt"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/partnerapi/openapi"
)

// references are the document that describes the API and the page that shows it, by path. Everybody may read them. They are
// made when they are first asked for.
func (a *api) references() map[string]fasthttp.RequestHandler {
	all := map[string]fasthttp.RequestHandler{
		"/v1/openapi.json": a.serveReference("read_openapi", "application/json", func() ([]byte, error) {
			return openapi.Document(a.BaseURL, a.TagURL(a.ClientTagHost))
		}),
	}
	for path, f := range openapi.PageFiles {
		all[path] = a.serveReference("read_docs", f.ContentType, f.Read)
	}
	return all
}

// serveReference returns the handler of a file. name is for metrics.
func (a *api) serveReference(name, contentType string, read func() ([]byte, error)) fasthttp.RequestHandler {
	made := sync.OnceValues(func() (asset.File, error) {
		body, err := read()
		return asset.New(contentType, body, len(body) < maxBrotli), err
	})
	return func(r *fasthttp.RequestCtx) {
		h := &r.Response.Header
		if !r.IsGet() && !r.IsHead() {
			h.Set(fasthttp.HeaderAllow, "GET, HEAD")
			WriteError(r, fasthttp.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		r.SetUserValue(endpointValue, name)
		file, err := made()
		if err != nil {
			a.fail(context.Background(), r, fmt.Errorf("%s: %w", name, err))
			return
		}
		h.Set(fasthttp.HeaderCacheControl, "no-cache") // a new version of the service may have another one
		h.Set(fasthttp.HeaderContentSecurityPolicy, openapi.Policy)
		h.Set(fasthttp.HeaderReferrerPolicy, "no-referrer")
		file.Send(r)
	}
}

// maxBrotli is the size from which on a file is only compressed by gzip, in bytes: Brotli would take seconds for Swagger UI.
const maxBrotli = 1 << 20
