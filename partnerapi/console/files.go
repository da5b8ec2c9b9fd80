package console

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/partnerapi"
)

//go:embed dist
var dist embed.FS

// servedFile returns a file. It is compressed when it is first asked for.
type servedFile func() asset.File

// contentTypes are the types of the page's files by extension. Package mime would also use the machine's own table.
var contentTypes = map[string]string{
	".css":   "text/css; charset=utf-8",
	".html":  "text/html; charset=utf-8",
	".ico":   "image/x-icon",
	".js":    "text/javascript; charset=utf-8",
	".json":  "application/json",
	".map":   "application/json",
	".png":   "image/png",
	".svg":   "image/svg+xml",
	".woff2": "font/woff2",
}

// embedded returns the page in dist, and its other files by name.
func embedded(from fs.FS) (page servedFile, assets map[string]servedFile, err error) {
	if page, err = load(from, "dist/index.html"); err != nil {
		return nil, nil, err
	}
	assets = map[string]servedFile{}
	entries, err := fs.ReadDir(from, "dist")
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		if entry.Name() != "assets" {
			return nil, nil, fmt.Errorf("console: dist has the directory %s, which is not served", entry.Name())
		}
		files, err := fs.ReadDir(from, "dist/assets")
		if err != nil {
			return nil, nil, err
		}
		for _, f := range files {
			if assets[f.Name()], err = load(from, "dist/assets/"+f.Name()); err != nil {
				return nil, nil, err
			}
		}
	}
	return page, assets, nil
}

func load(from fs.FS, name string) (servedFile, error) {
	body, err := fs.ReadFile(from, name)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	contentType, known := contentTypes[path.Ext(name)]
	if !known {
		return nil, fmt.Errorf("console: the type of %s is unknown", name)
	}
	return sync.OnceValue(func() asset.File { return asset.New(contentType, body, true) }), nil
}

// servePage answers with the page, whatever the path: the program in it shows what the path says. Browsers ask each time
// whether it has changed, as a new version of the service may have another one.
func (c *Console) servePage(r *fasthttp.RequestCtx) {
	r.Response.Header.Set(fasthttp.HeaderCacheControl, "no-cache")
	c.page().Send(r)
}

// serveAsset answers with a file of the page. Its name has a hash of what is in it, so it never changes.
func (c *Console) serveAsset(r *fasthttp.RequestCtx) {
	file, ok := c.assets[strings.TrimPrefix(string(r.Path()), assetPrefix)]
	if !ok {
		partnerapi.WriteError(r, fasthttp.StatusNotFound, "Resource not found")
		return
	}
	r.Response.Header.Set(fasthttp.HeaderCacheControl, "public, max-age=31536000, immutable")
	file().Send(r)
}
