package tag

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/valyala/fasthttp"
)

// script is the loader in every encoding that is served, from the preferred one to the plain one.
type script [3]encodedScript

type encodedScript struct {
	encoding string // as in Accept-Encoding; empty for plain
	etag     string
	body     []byte
}

// newScript compresses the loader, at the highest level because it runs once.
func newScript(loader []byte) script {
	sum := sha256.Sum256(loader)
	version := hex.EncodeToString(sum[:8])
	return script{
		{"br", `"` + version + `-br"`, fasthttp.AppendBrotliBytesLevel(nil, loader, fasthttp.CompressBrotliBestCompression)},
		{"gzip", `"` + version + `-gzip"`, fasthttp.AppendGzipBytesLevel(nil, loader, fasthttp.CompressBestCompression)},
		{"", `"` + version + `"`, loader},
	}
}

// send is GET /script (spec, Script). Browsers use the script for an hour without asking again. For a day after that
// they may use the old one once more while they fetch the new one.
func (s *script) send(ctx *fasthttp.RequestCtx) {
	e := s.choose(view(ctx.Request.Header.Peek(fasthttp.HeaderAcceptEncoding)))
	h := &ctx.Response.Header
	h.Set(fasthttp.HeaderCacheControl, "public, max-age=3600, stale-while-revalidate=86400")
	h.Set(fasthttp.HeaderETag, e.etag)
	h.Set(resourcePolicyKey, resourcePolicy) // also without an Origin, which browsers do not send for a script
	// Vary names Origin even when the request has none: the answer then has no CORS headers, so a cache must not return
	// it to a page.
	h.Set(fasthttp.HeaderVary, "Accept-Encoding, Origin")
	if matches(view(ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch)), e.etag) {
		ctx.Response.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	h.SetContentType("text/javascript; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	if e.encoding != "" {
		h.SetContentEncoding(e.encoding)
	}
	ctx.Response.SetBodyRaw(e.body)
}

func (s *script) choose(acceptEncoding string) *encodedScript {
	plain := len(s) - 1
	for i := range plain {
		if accepts(acceptEncoding, s[i].encoding) {
			return &s[i]
		}
	}
	return &s[plain]
}

// accepts reports whether an Accept-Encoding header names an encoding, or *, with a weight above 0.
func accepts(header, encoding string) bool {
	others := false
	for item := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(item, ";")
		name = strings.TrimSpace(name)
		weight := strings.ToLower(strings.ReplaceAll(params, " ", ""))
		wanted := !strings.HasPrefix(weight, "q=0") || strings.ContainsAny(weight, "123456789")
		if strings.EqualFold(name, encoding) {
			return wanted
		}
		if name == "*" {
			others = wanted
		}
	}
	return others
}

// matches reports whether an If-None-Match header names an entity tag.
func matches(header, etag string) bool {
	for item := range strings.SplitSeq(header, ",") {
		item = strings.TrimSpace(item)
		if item == "*" || strings.TrimPrefix(item, "W/") == etag {
			return true
		}
	}
	return false
}
