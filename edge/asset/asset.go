// Package asset serves files that do not change while the service runs. A file is compressed once, and clients that have it
// already get 304.
package asset

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/valyala/fasthttp"
)

// File is one file in every encoding that is served, from the preferred one to the plain one.
type File struct {
	contentType string
	forms       []form
}

type form struct {
	encoding string // as in Accept-Encoding; empty for plain
	etag     string
	body     []byte
}

// New compresses a file, at the highest level because each file is compressed only once. At that level, brotli takes a
// hundred times as long as gzip. The body must not change afterwards.
func New(contentType string, body []byte, withBrotli bool) File {
	sum := sha256.Sum256(body)
	version := hex.EncodeToString(sum[:8])
	f := File{contentType: contentType}
	if withBrotli {
		f.forms = append(f.forms, form{"br", `"` + version + `-br"`, compress(body)})
	}
	f.forms = append(f.forms,
		form{"gzip", `"` + version + `-gzip"`, fasthttp.AppendGzipBytesLevel(nil, body, fasthttp.CompressBestCompression)},
		form{"", `"` + version + `"`, body})
	return f
}

// compress compresses by Brotli. The encoder of fasthttp would make the program larger by 0.7 MB.
func compress(body []byte) []byte {
	var b bytes.Buffer
	w := brotli.NewWriterLevel(&b, brotli.BestCompression)
	_, _ = w.Write(body) // a buffer takes everything
	_ = w.Close()
	return b.Bytes()
}

// Send answers a request with the file. It does not set Cache-Control, and Vary only if the answer has none.
func (f File) Send(ctx *fasthttp.RequestCtx) {
	e := f.choose(string(ctx.Request.Header.Peek(fasthttp.HeaderAcceptEncoding)))
	h := &ctx.Response.Header
	h.Set(fasthttp.HeaderETag, e.etag)
	if len(h.Peek(fasthttp.HeaderVary)) == 0 {
		h.Set(fasthttp.HeaderVary, fasthttp.HeaderAcceptEncoding)
	}
	if matches(string(ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch)), e.etag) {
		ctx.Response.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	h.SetContentType(f.contentType)
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	if e.encoding != "" {
		h.SetContentEncoding(e.encoding)
	}
	ctx.Response.SetBodyRaw(e.body)
}

func (f File) choose(acceptEncoding string) form {
	var offered []string
	for _, e := range f.forms {
		offered = append(offered, e.encoding)
	}
	best := Negotiate(acceptEncoding, offered...)
	return f.forms[slices.IndexFunc(f.forms, func(e form) bool { return e.encoding == best })]
}

// Negotiate returns the encoding that an Accept-Encoding header gives the greatest weight (RFC 9110, 12.5.3), of equal ones
// the first that is offered. It returns "" when the header wants none of them.
func Negotiate(accept string, offered ...string) (best string) {
	greatest := 0.0
	for _, encoding := range offered {
		if weight := weightOf(encoding, accept); encoding != "" && weight > greatest {
			best, greatest = encoding, weight
		}
	}
	return best
}

// weightOf returns the weight that a header gives an encoding, by its name or as one of all others (*).
func weightOf(encoding, accept string) (others float64) {
	for item := range strings.SplitSeq(strings.ToLower(accept), ",") {
		name, parameters, _ := strings.Cut(strings.ReplaceAll(item, " ", ""), ";")
		weight := 1.0
		if value, ok := strings.CutPrefix(parameters, "q="); ok {
			weight, _ = strconv.ParseFloat(value, 64) // what is no number is 0: not wanted
		}
		if strings.TrimPrefix(name, "x-") == encoding {
			return weight
		}
		if name == "*" {
			others = weight
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
