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
		if err != nil || !bytes.Equal(body, sdk.Loader()) {
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
