package openapi

import (
	"embed"
	"strings"

	"github.com/swaggest/swgui/v5/static"
	"github.com/valyala/fasthttp"
)

// Policy is the Content-Security-Policy of the reference page. The page loads only its own files and the document.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// PageFile is a file of the reference page.
type PageFile struct {
	ContentType string
	from        string // what Read reads: a file of page/ or of Swagger UI
}

// The types of the files. Package mime would also use the machine's own table.
const html, script, css = "text/html; charset=utf-8", "text/javascript; charset=utf-8", "text/css; charset=utf-8"

// PageFiles are the reference page and the files that it loads, by their paths. The page expects the document beside it, as openapi.json.
var PageFiles = map[string]PageFile{
	"/v1/docs":                {html, "index.html"},
	"/v1/docs/start.js":       {script, "start.js"},
	"/v1/docs/page.css":       {css, "page.css"},
	"/v1/docs/swagger-ui.js":  {script, "swagger-ui-bundle.js.gz"},
	"/v1/docs/swagger-ui.css": {css, "swagger-ui.css.gz"},
}

//go:embed page
var page embed.FS

// Read returns the content of a file, uncompressed.
func (f PageFile) Read() ([]byte, error) {
	if !strings.HasSuffix(f.from, ".gz") {
		return page.ReadFile("page/" + f.from)
	}
	packed, err := static.FS.ReadFile(f.from)
	if err != nil {
		return nil, err
	}
	return fasthttp.AppendGunzipBytes(nil, packed)
}
