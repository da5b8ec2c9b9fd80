package edge

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"mtagd/edge/sdk"
)

func TestScriptComesInTheEncodingTheClientTakes(t *testing.T) {
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
		if got := r.header.Get("Content-Encoding"); r.status != 200 || got != tt.want {
			t.Errorf("Accept-Encoding %q: %d %q, want %q", tt.accept, r.status, got, tt.want)
		}
		body := []byte(r.body)
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
		etags[r.header.Get("ETag")] = tt.want
	}
	if len(etags) != 3 {
		t.Errorf("entity tags %v, want one for each encoding", etags)
	}
}

func TestScriptHeaders(t *testing.T) {
	w := newWorld(t)
	r := w.do("GET", w.serverSide.Host, "/script", "")
	h := r.header
	if h.Get("Content-Type") != "text/javascript; charset=utf-8" || !strings.Contains(h.Get("Cache-Control"), "max-age=") ||
		h.Get("ETag") == "" || !strings.Contains(h.Get("Vary"), "Accept-Encoding") {
		t.Errorf("headers %v", h)
	}
	head := w.do("HEAD", w.serverSide.Host, "/script", "")
	if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != h.Get("Content-Length") {
		t.Errorf("HEAD: %d %v", head.status, head.header)
	}
	for _, known := range []string{h.Get("ETag"), "W/" + h.Get("ETag"), `"x", ` + h.Get("ETag"), "*"} {
		r := w.do("GET", clientHost, "/script", "", "If-None-Match", known)
		if r.status != 304 || r.body != "" || r.header.Get("ETag") != h.Get("ETag") {
			t.Errorf("If-None-Match %s: %d %v", known, r.status, r.header)
		}
	}
	w.do("GET", clientHost, "/script", "", "If-None-Match", h.Get("ETag"), "Accept-Encoding", "br").want(t, 200, "")
}
