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
)

//go:embed dist
var dist embed.FS

// servedFile returns a file. It is compressed when it is first asked for.
type servedFile func() asset.File

// contentTypes are the types of the page's files by extension. Package mime would also use the machine's own table.
var contentTypes = map[string]string{
	".css":   "text/css; charset=utf-8",
	".html":  "text/html; charset=utf-8",
	".js":    "text/javascript; charset=utf-8",
	".woff2": "font/woff2",
}

// embedded returns the page in dist, and its other files by name.
func embedded(from fs.FS) (page servedFile, assets map[string]servedFile, err error) {
	if page, err = load(from, "dist/index.html"); err != nil {
		return nil, nil, err
	}
	assets = map[string]servedFile{}
	files, err := fs.Glob(from, "dist/*/*")
	if err != nil {
		return nil, nil, err
	}
	for _, name := range files {
		if path.Dir(name) != "dist/assets" {
			return nil, nil, fmt.Errorf("console: dist has %s, which is not served", name)
		}
		if assets[path.Base(name)], err = load(from, name); err != nil {
			return nil, nil, err
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
func (c *Console) servePage(r *fasthttp.RequestCtx) error {
	r.Response.Header.Set(fasthttp.HeaderCacheControl, "no-cache")
	c.page().Send(r)
	return nil
}

// serveAsset answers with a file of the page. Its name has a hash of what is in it, so it never changes.
func (c *Console) serveAsset(r *fasthttp.RequestCtx) error {
	file, ok := c.assets[strings.TrimPrefix(string(r.Path()), assetPrefix)]
	if !ok {
		return refusal{fasthttp.StatusNotFound, "Resource not found"}
	}
	r.Response.Header.Set(fasthttp.HeaderCacheControl, "public, max-age=31536000, immutable")
	file().Send(r)
	return nil
}
