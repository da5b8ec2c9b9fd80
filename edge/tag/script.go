package tag

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/sdk"
)

// maxWith is the longest list of extras that is read, in bytes, as it was sent.
const maxWith = 256

// scripts has the loader with each combination of extras. Each is made when it is first asked for, and then kept. Anybody
// can ask for all of them at once, so they are made one at a time.
type scripts struct {
	extras []sdk.Extra
	made   []func() script // by combination
	making sync.Mutex
}

// combination has a bit for each extra, and one more for names that are no extra. So however clients write a list,
// there are few combinations.
type combination uint

func newScripts() *scripts {
	s := &scripts{extras: sdk.Extras()}
	s.made = make([]func() script, s.unknown()<<1)
	for i := range s.made {
		s.made[i] = sync.OnceValue(func() script { return s.newScript(combination(i)) })
	}
	return s
}

// bit returns the bit of the extra at an index.
func (s *scripts) bit(index int) combination { return 1 << index }

// unknown is the bit of names that are no extra.
func (s *scripts) unknown() combination { return s.bit(len(s.extras)) }

// find returns the script for a query, as it was sent: ?with= lists extras with commas between them.
func (s *scripts) find(query []byte) script {
	var wanted combination
	for pair := range strings.SplitSeq(view(query), "&") {
		if list, ok := strings.CutPrefix(pair, "with="); ok {
			wanted |= s.parse(list)
		}
	}
	return s.made[wanted]()
}

// parse reads a percent-encoded list. The order of names, repeated names and spaces make no difference.
func (s *scripts) parse(list string) combination {
	unknown := s.unknown()
	if len(list) > maxWith {
		return unknown
	}
	list, err := url.QueryUnescape(list)
	if err != nil {
		return unknown
	}
	var wanted combination
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if i := slices.IndexFunc(s.extras, func(e sdk.Extra) bool { return e.Name == name }); i >= 0 {
			wanted |= s.bit(i)
		} else {
			wanted |= unknown
		}
	}
	return wanted
}

// newScript compresses a script, at the highest level because it runs once. Brotli takes a hundred times as long as gzip
// then, so lists with a mistake go without it.
func (s *scripts) newScript(wanted combination) script {
	s.making.Lock()
	defer s.making.Unlock()
	source := s.source(wanted)
	sum := sha256.Sum256(source)
	version := hex.EncodeToString(sum[:8])
	var made script
	if wanted&s.unknown() == 0 {
		made = append(made, encodedScript{"br", `"` + version + `-br"`, fasthttp.AppendBrotliBytesLevel(nil, source, fasthttp.CompressBrotliBestCompression)})
	}
	return append(made,
		encodedScript{"gzip", `"` + version + `-gzip"`, fasthttp.AppendGzipBytesLevel(nil, source, fasthttp.CompressBestCompression)},
		encodedScript{"", `"` + version + `"`, source})
}

// source returns a combination's source text: the loader and then the extras. With a wrong name the rest still works:
// the script reports the mistake in the console. It finds the name in its own URL, so the answer has no text of the
// request.
func (s *scripts) source(wanted combination) []byte {
	source := slices.Clone(sdk.Loader())
	var names []string
	for i, extra := range s.extras {
		names = append(names, extra.Name)
		if wanted&s.bit(i) != 0 {
			source = append(source, extra.Script...)
		}
	}
	if wanted&s.unknown() != 0 {
		source = fmt.Appendf(source, "console.warn(\"mtag: with= names something unknown; it takes %s\",(document.currentScript||{}).src);\n",
			strings.Join(names, ", "))
	}
	return source
}

// script is one script in every encoding that is served, from the preferred one to the plain one.
type script []encodedScript

type encodedScript struct {
	encoding string // as in Accept-Encoding; empty for plain
	etag     string
	body     []byte
}

// send is GET /script (spec, Script). Browsers use the script for an hour without asking again. For a day after that
// they may use the old one once more while they fetch the new one.
func (s script) send(ctx *fasthttp.RequestCtx) {
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

func (s script) choose(acceptEncoding string) *encodedScript {
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
