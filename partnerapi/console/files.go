package console

import (
	"embed"
	"path"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
)

// What a page imports on demand, and what several scripts need, have their own files. It needs npm ci in app.
//go:generate go tool esbuild app/index.html app/src/main.tsx --outdir=dist --entry-names=[name] --chunk-names=[name] --bundle --splitting --format=esm --target=es2022 --jsx=automatic --jsx-import-source=preact --minify --charset=utf8 --legal-comments=none --loader:.html=copy --log-level=warning

//go:embed dist
var dist embed.FS

// contentTypes are the types of the files in dist by extension. Package mime would also use the machine's own table.
var contentTypes = map[string]string{".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8"}

// pageFiles returns the files in dist by name. Each is compressed when it is first asked for.
func pageFiles() map[string]func() asset.File {
	files := map[string]func() asset.File{}
	names, _ := dist.ReadDir("dist") // cannot fail: it is embedded
	for _, name := range names {
		files[name.Name()] = sync.OnceValue(func() asset.File {
			body, _ := dist.ReadFile("dist/" + name.Name()) // cannot fail
			return asset.New(contentTypes[path.Ext(name.Name())], body, true)
		})
	}
	return files
}

// servePage answers with the page, whatever the path: the program in it shows what the path says.
func (c *Console) servePage(r *fasthttp.RequestCtx) error { return c.serveFile(r, "index.html") }

// serveAsset answers with a file of the page.
func (c *Console) serveAsset(r *fasthttp.RequestCtx) error {
	return c.serveFile(r, strings.TrimPrefix(string(r.Path()), assetPrefix))
}

// serveFile answers with a file. Browsers ask each time whether it has changed: a new version of the service may have
// another one.
func (c *Console) serveFile(r *fasthttp.RequestCtx, name string) error {
	file, ok := c.files[name]
	if !ok {
		return refusal{fasthttp.StatusNotFound, "Resource not found"}
	}
	r.Response.Header.Set(fasthttp.HeaderCacheControl, "no-cache")
	file().Send(r)
	return nil
}
