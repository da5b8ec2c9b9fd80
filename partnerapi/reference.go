package partnerapi

import (
	"context"
	"fmt"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/partnerapi/openapi"
)

// references are the pages that describe the API, by path. Everybody may read them.
func (a *api) references() map[string]fasthttp.RequestHandler {
	document := sync.OnceValues(func() ([]byte, error) { return openapi.Document(a.BaseURL, a.TagURL(a.ClientTagHost)) })
	return map[string]fasthttp.RequestHandler{
		"/v1/openapi.json": a.serveFile("read_openapi", func() (asset.File, error) {
			body, err := document()
			return asset.New("application/json", body, true), err
		}),
	}
}

// serveFile returns the handler of a file that is made when it is first asked for.
func (a *api) serveFile(name string, make func() (asset.File, error)) fasthttp.RequestHandler {
	make = sync.OnceValues(make)
	return func(r *fasthttp.RequestCtx) {
		if !r.IsGet() && !r.IsHead() {
			r.Response.Header.Set(fasthttp.HeaderAllow, "GET, HEAD")
			WriteError(r, fasthttp.StatusMethodNotAllowed, "Method not allowed")
			return
		}
		r.SetUserValue(endpointValue, name)
		file, err := make()
		if err != nil {
			a.fail(context.Background(), r, fmt.Errorf("%s: %w", name, err))
			return
		}
		r.Response.Header.Set(fasthttp.HeaderCacheControl, "no-cache") // a new version of the service may have another one
		file.Send(r)
	}
}
