package tag

import (
	"strings"
	"testing"
)

func TestTheCookieIsRenewedForPagesOfTheTagHostsSite(t *testing.T) {
	w := newWorld(t)
	const event = `{"event":"A","muid":"body"}`
	host := w.ServerSide.Host // mtag-xxxx.shop-one.com
	const ofSite = "; max-age=34560000; domain=shop-one.com; path=/"
	for _, tt := range []struct {
		name, host, origin, cookie, body, want string
	}{
		{"its own cookie", host, "https://www.shop-one.com", "x=1; _muid=m1", event, "_muid=m1" + ofSite + "; secure; SameSite=Lax"},
		{"the root domain itself", host, "https://shop-one.com", "_muid=m1", event, "_muid=m1" + ofSite + "; secure; SameSite=Lax"},
		{"capital letters and a port", host, "http://WWW.Shop-One.com:8080", "_muid=m1", event, "_muid=m1" + ofSite + "; SameSite=Lax"},
		{"no cookie: the body's muid", host, "https://shop-one.com", "", event, "_muid=body" + ofSite + "; secure; SameSite=Lax"},
		{"no cookie: the batch's first muid", host, "https://shop-one.com", "", "[" + event + "]", "_muid=body" + ofSite + "; secure; SameSite=Lax"},
		{"no muid that can be a cookie", host, "https://shop-one.com", "", `{"event":"A","muid":"a;b"}`, ""},
		{"no muid at all", host, "https://shop-one.com", "", `{"event":"A","email":"nobody@example.com"}`, ""},
		{"another site", host, "https://www.shop-two.com", "_muid=m1", event, ""},
		{"a site whose name only ends like it", host, "https://evil-shop-one.com", "_muid=m1", event, ""},
		{"a sandbox", host, "null", "_muid=m1", event, ""},
		{"a backend", host, "", "_muid=m1", event, ""},
		{"the shared host", clientHost, "https://shop-one.com", "_muid=m1", event, ""},
		{"a refused event", host, "https://shop-one.com", "_muid=m1", `{"muid":"body"}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			headers := []string{"Cookie", tt.cookie}
			if tt.origin != "" {
				headers = append(headers, "Origin", tt.origin)
			}
			r := w.do("POST", tt.host, "/mark", tt.body, headers...)
			if tt.host == clientHost {
				r = w.do("POST", tt.host, "/mark/"+string(w.Client.ID), tt.body, headers...)
			}
			if got := r.Header.Get("Set-Cookie"); got != tt.want {
				t.Errorf("%d Set-Cookie %q\nwant %q", r.Status, got, tt.want)
			}
		})
	}
	r := w.do("POST", host, "/id", `{"muid":"m2"}`, "Origin", "https://shop-one.com", "Cookie", "_muid=m1")
	if got := r.Header.Get("Set-Cookie"); r.Status != 200 || !strings.HasPrefix(got, "_muid=m1;") {
		t.Errorf("/id: %d, Set-Cookie %q, want that of m1", r.Status, got)
	}
}

func TestCookieDomain(t *testing.T) {
	for _, tt := range []struct {
		host, page, domain string
		shared             bool
	}{
		{"tags.example.co.uk", "www.example.co.uk", "example.co.uk", true},
		{"tags.example.co.uk", "www.other.co.uk", "example.co.uk", false},
		{"tags.shop.localhost", "shop.localhost", "shop.localhost", true},
		{"localhost", "localhost", "", true},
		{"localhost", "127.0.0.1", "", false},
		{"127.0.0.1", "127.0.0.1", "", true},
		{"127.0.0.1", "10.0.0.1", "", false},
		{"::1", "::1", "", true},
		{"tags.example.com", "", "", false},
		{"tags.example.com", "www.badexample.com", "", false},
		{"tags.example.com", "example.com", "example.com", true},
	} {
		domain, shared := cookieDomain(tt.host, tt.page)
		if shared != tt.shared || (shared && domain != tt.domain) {
			t.Errorf("%s with a page of %s: got %q %v, want %q %v", tt.host, tt.page, domain, shared, tt.domain, tt.shared)
		}
	}
}
