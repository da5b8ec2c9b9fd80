package tag

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/edge/asset"
	"mtagd/edge/sdk"
)

// scriptVersionHeader has the name of the version that is served.
const scriptVersionHeader = "Script-Version"

// maxWith is the longest list of extras that is read, in bytes, as it was sent.
const maxWith = 256

// versions has the scripts by the name of their version; "" is the present one.
type versions map[string]*scripts

func newVersions() versions {
	all := versions{}
	making := &sync.Mutex{}
	for _, v := range sdk.Versions() {
		all[v.Name] = newScripts(v, making)
		if all[""] == nil {
			all[""] = all[v.Name]
		}
	}
	return all
}

// scripts has the loader with each combination of extras. Each is made when it is first asked for, and then kept. Anybody
// can ask for all of them at once, so they are made one at a time.
type scripts struct {
	sdk.Version
	made   []func() asset.File // by combination
	making *sync.Mutex
}

// combination has a bit for each extra, and one for all other names. So however clients write a list, there are few.
type combination uint

func newScripts(v sdk.Version, making *sync.Mutex) *scripts {
	s := &scripts{Version: v, making: making}
	s.made = make([]func() asset.File, s.unknown()<<1)
	for i := range s.made {
		s.made[i] = sync.OnceValue(func() asset.File { return s.newScript(combination(i)) })
	}
	return s
}

// unknown is the bit of names that are no extra.
func (s *scripts) unknown() combination { return 1 << len(s.Extras) }

// find returns the script for a query, as it was sent: ?with= lists extras with commas between them.
func (s *scripts) find(query []byte) asset.File {
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
		if i := slices.IndexFunc(s.Extras, func(e sdk.Extra) bool { return e.Name == name }); i >= 0 {
			wanted |= 1 << i
		} else {
			wanted |= unknown
		}
	}
	return wanted
}

// newScript compresses a script. Brotli takes long, so lists with a mistake go without it.
func (s *scripts) newScript(wanted combination) asset.File {
	s.making.Lock()
	defer s.making.Unlock()
	return asset.New("text/javascript; charset=utf-8", s.source(wanted), wanted&s.unknown() == 0)
}

// source returns a combination's source text: the extras and then the loader, whose first call needs them. With a wrong name
// the rest still works: the script reports the mistake in the console. It knows the name from its URL.
func (s *scripts) source(wanted combination) []byte {
	var source []byte
	var names []string
	for i, extra := range s.Extras {
		names = append(names, extra.Name)
		if wanted&(1<<i) != 0 {
			source = append(source, extra.Script...)
		}
	}
	source = append(source, s.Loader...)
	if wanted&s.unknown() != 0 {
		source = fmt.Appendf(source, "console.warn(\"mtag: with= names something unknown; it takes %s\",(document.currentScript||{}).src);\n",
			strings.Join(names, ", "))
	}
	return source
}

// sendScript is GET /script (spec, Script), and GET /script/VERSION. Browsers use the first for an hour without asking
// again. For a day after that they may use the old one once more while they fetch the new one. A version never changes, so
// that pages can name its hash in integrity.
func (s *Server) sendScript(ctx *fasthttp.RequestCtx, route Route) {
	of, ok := s.scripts[string(route.id)]
	if !ok {
		notFound.send(ctx)
		return
	}
	h := &ctx.Response.Header
	cache := "public, max-age=3600, stale-while-revalidate=86400"
	if len(route.id) > 0 {
		cache = "public, max-age=31536000, immutable"
	}
	h.Set(fasthttp.HeaderCacheControl, cache)
	h.Set(scriptVersionHeader, of.Name)
	h.Set(resourcePolicyKey, resourcePolicy) // also without an Origin, which browsers do not send for a script
	// Vary names Origin even when the request has none: the answer then has no CORS headers, which pages need.
	h.Set(fasthttp.HeaderVary, "Accept-Encoding, Origin")
	of.find(route.query).Send(ctx)
}
