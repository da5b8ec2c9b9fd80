package tag

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"mtagd/edge/sdk"
)

var present = sdk.Versions()[0]

// A version is the same for ever, so caches keep it.
func TestAVersionOfTheScript(t *testing.T) {
	w := newWorld(t)
	now := w.do("GET", clientHost, "/script?with=scroll", "")
	name := now.Header.Get("Script-Version")
	r := w.do("GET", clientHost, "/script/"+name+"?with=scroll", "")
	if r.Status != 200 || r.Body != now.Body || !strings.Contains(r.Header.Get("Cache-Control"), "immutable") || name != present.Name {
		t.Errorf("version %q: %d %v", name, r.Status, r.Header)
	}
	for _, version := range sdk.Versions() {
		w.do("GET", clientHost, "/script/"+version.Name, "").Want(t, 200, "")
	}
	for _, unknown := range []string{"0123456789abcdef", "x", ""} {
		if r := w.do("GET", clientHost, "/script/"+unknown, ""); r.Status != 404 {
			t.Errorf("/script/%s: %d, want 404", unknown, r.Status)
		}
	}
}

func TestScriptIsServedInAnEncodingThatTheClientAccepts(t *testing.T) {
	w := newWorld(t)
	etags := map[string]string{}
	for _, tt := range []struct{ accept, want string }{
		{"", ""},
		{"gzip, deflate, br", "br"},
		{"gzip", "gzip"},
		{"GZIP;q=0.5", "gzip"},
		{"br;q=0, gzip", "gzip"},
		{"br; q=0.0, gzip;q=0", ""},
		{"*", "br"},
		{"*;q=0", ""},
		{"br;q=0, *", "gzip"},
		{"deflate, zstd", ""},
		{"brotli", ""},
	} {
		r := w.do("GET", clientHost, "/script", "", "Accept-Encoding", tt.accept)
		if got := r.Header.Get("Content-Encoding"); r.Status != 200 || got != tt.want {
			t.Errorf("Accept-Encoding %q: %d %q, want %q", tt.accept, r.Status, got, tt.want)
		}
		body := []byte(r.Body)
		var err error
		switch tt.want {
		case "br":
			body, err = fasthttp.AppendUnbrotliBytes(nil, body)
		case "gzip":
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
				body, err = io.ReadAll(z)
			}
		}
		if err != nil || !bytes.Equal(body, present.Loader) {
			t.Errorf("Accept-Encoding %q: not the loader (%v)", tt.accept, err)
		}
		etags[r.Header.Get("ETag")] = tt.want
	}
	if len(etags) != 3 {
		t.Errorf("entity tags %v, want one for each encoding", etags)
	}
}

func TestScriptHeaders(t *testing.T) {
	w := newWorld(t)
	r := w.do("GET", w.ServerSide.Host, "/script", "")
	h := r.Header
	if h.Get("Content-Type") != "text/javascript; charset=utf-8" || !strings.Contains(h.Get("Cache-Control"), "max-age=") ||
		h.Get("Cross-Origin-Resource-Policy") != "cross-origin" || h.Get("ETag") == "" || !strings.Contains(h.Get("Vary"), "Accept-Encoding") {
		t.Errorf("headers %v", h)
	}
	for _, known := range []string{h.Get("ETag"), "W/" + h.Get("ETag"), `"x", ` + h.Get("ETag"), "*"} {
		r := w.do("GET", clientHost, "/script", "", "If-None-Match", known)
		if r.Status != 304 || r.Body != "" || r.Header.Get("ETag") != h.Get("ETag") ||
			r.Header.Get("Cross-Origin-Resource-Policy") != "cross-origin" {
			t.Errorf("If-None-Match %s: %d %v", known, r.Status, r.Header)
		}
	}
	w.do("GET", clientHost, "/script", "", "If-None-Match", h.Get("ETag"), "Accept-Encoding", "br").Want(t, 200, "")
}

func TestScriptHasTheExtrasThatTheQueryNames(t *testing.T) {
	w := newWorld(t)
	all := present.Extras
	names := map[string]string{}
	for _, extra := range all {
		names[extra.Name] = string(extra.Script)
	}
	const warning = "console.warn(\"mtag: with= names something unknown"
	for _, tt := range []struct {
		query string
		want  string // names, with ? for the warning
	}{
		{"", ""},
		{"?with=", ""},
		{"?other=outbound", ""},
		{"?with=outbound", "outbound"},
		{"?with=scroll,outbound", "outbound scroll"},
		{"?with=outbound,scroll,outbound,", "outbound scroll"},
		{"?tagId=x&with=outbound&with=scroll", "outbound scroll"},
		{"?with=%6Futbound%2C%20scroll", "outbound scroll"},
		{"?with=outbound,+scroll", "outbound scroll"},
		{"?with=Outbound", "?"},
		{"?with=outbond,scroll", "scroll ?"},
		{"?with=scroll%", "?"},
		{"?with=</script>", "?"},
		{"?with=" + strings.Repeat("outbound,", 1000), "?"},
	} {
		r := w.do("GET", clientHost, "/script"+tt.query, "")
		want := ""
		extras, warns := strings.CutSuffix(tt.want, "?")
		for name := range strings.FieldsSeq(extras) {
			want += names[name]
		}
		rest, ok := strings.CutPrefix(r.Body, want+string(present.Loader))
		if r.Status != 200 || !ok || strings.HasPrefix(rest, warning) != warns || !warns && rest != "" {
			t.Errorf("%s: %d, or not %q and the loader", tt.query, r.Status, tt.want)
		}
	}
}

// However a list is written, caches see the same script.
func TestTheSameExtrasHaveTheSameEntityTag(t *testing.T) {
	w := newWorld(t)
	etag := func(query string) string { return w.do("GET", clientHost, "/script"+query, "").Header.Get("ETag") }
	if a, b := etag("?with=outbound,scroll"), etag("?with=scroll&with=outbound,outbound"); a == "" || a != b {
		t.Errorf("entity tags %s and %s", a, b)
	}
	if etag("") == etag("?with=outbound") {
		t.Error("the loader and the loader with an extra have the same entity tag")
	}
	w.do("GET", clientHost, "/script?with=scroll", "", "If-None-Match", etag("?with=scroll")).Want(t, 304, "")
	w.do("GET", clientHost, "/script?with=scroll", "", "If-None-Match", etag("")).Want(t, 200, "")
}

// The text of a request never comes back in the script.
func TestAMadeUpExtraCostsNothing(t *testing.T) {
	w := newWorld(t)
	first := w.do("GET", clientHost, "/script?with=made-up-0", "")
	query := []byte("tagId=x&with=made-up-1,alert(1)")
	allocs := testing.AllocsPerRun(100, func() { w.server.scripts[""].find(query) })
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	for accept, want := range map[string]string{"gzip, br": "gzip", "br": ""} { // brotli takes a long time at first
		r := w.do("GET", clientHost, "/script?with=made-up-0", "", "Accept-Encoding", accept)
		if got := r.Header.Get("Content-Encoding"); got != want {
			t.Errorf("Accept-Encoding %q: %q, want %q", accept, got, want)
		}
	}
	if r := w.do("GET", clientHost, "/script?with=alert(1)", ""); r.Body != first.Body || strings.Contains(r.Body, "alert") {
		t.Error("two made-up names have different scripts")
	}
}
