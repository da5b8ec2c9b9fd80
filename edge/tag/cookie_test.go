package tag

import (
	"strings"
	"testing"

	"mtagd/store"
)

func TestTheCookieIsRenewedWhenTheTagAsks(t *testing.T) {
	w := newWorld(t)
	const event = `{"event":"A","muid":"body"}`
	host := w.ServerSide.Host // mtag-xxxx.shop-one.com
	const renewed = "_muid=m1; max-age=34560000; domain=shop-one.com; path=/"
	for _, tt := range []struct {
		name, host, query, origin, cookie, body, want string
	}{
		{"its own cookie", host, "?renew=1", "https://www.shop-one.com", "x=1; _muid=m1", event, renewed + "; secure; SameSite=Lax"},
		{"the root domain itself", host, "?renew=1", "https://shop-one.com", "_muid=m1", event, renewed + "; secure; SameSite=Lax"},
		{"capital letters and a port", host, "?renew=1", "http://WWW.Shop-One.com:8080", "_muid=m1", event, renewed + "; SameSite=Lax"},
		{"another parameter before", host, "?x=1&renew=1", "https://shop-one.com", "_muid=m1", event, renewed + "; secure; SameSite=Lax"},
		{"a batch", host, "?renew=1", "https://shop-one.com", "_muid=m1", "[" + event + "]", renewed + "; secure; SameSite=Lax"},
		{"a proxy on the page's host, for a tag host of another site", clientHost, "?renew=1", "https://www.shop-one.com", "_muid=m1", event,
			renewed + "; secure; SameSite=Lax"},
		{"a page of another site: its browser refuses this domain", host, "?renew=1", "https://evil.example", "_muid=m1", event,
			"_muid=m1; max-age=34560000; domain=evil.example; path=/; secure; SameSite=Lax"},
		{"the tag does not ask", host, "", "https://shop-one.com", "_muid=m1", event, ""},
		{"another value", host, "?renew=10", "https://shop-one.com", "_muid=m1", event, ""},
		{"another parameter", host, "?xrenew=1", "https://shop-one.com", "_muid=m1", event, ""},
		{"two cookies with the same muid", host, "?renew=1", "https://shop-one.com", "_muid=m1; _muid=m1", event, renewed + "; secure; SameSite=Lax"},
		{"two cookies with different muids", host, "?renew=1", "https://shop-one.com", "_muid=m2; _muid=m1", event, ""},
		{"no cookie", host, "?renew=1", "https://shop-one.com", "", event, ""},
		{"a sandbox", host, "?renew=1", "null", "_muid=m1", event, ""},
		{"a backend", host, "?renew=1", "", "_muid=m1", event, ""},
		{"an address, which may be of any machine", host, "?renew=1", "http://192.0.2.1", "_muid=m1", event, ""},
		{"an origin that would end the domain", host, "?renew=1", "https://shop-one.com;path=x", "_muid=m1", event, ""},
		{"an origin with a user", host, "?renew=1", "https://a@shop-one.com/", "_muid=m1", event, ""},
		{"a refused event", host, "?renew=1", "https://shop-one.com", "_muid=m1", `{"muid":"body"}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			headers := []string{"Cookie", tt.cookie}
			if tt.origin != "" {
				headers = append(headers, "Origin", tt.origin)
			}
			path := "/mark"
			if tt.host == clientHost {
				path += "/" + string(w.Client.ID)
			}
			r := w.do("POST", tt.host, path+tt.query, tt.body, headers...)
			if got := r.Header.Get("Set-Cookie"); got != tt.want {
				t.Errorf("%d Set-Cookie %q\nwant %q", r.Status, got, tt.want)
			}
		})
	}
	r := w.do("POST", host, "/id?renew=1", `{"muid":"m2"}`, "Origin", "https://shop-one.com", "Cookie", "_muid=m1")
	if got := r.Header.Get("Set-Cookie"); r.Status != 200 || !strings.HasPrefix(got, "_muid=m1;") {
		t.Errorf("/id: %d, Set-Cookie %q, want that of m1", r.Status, got)
	}
}

func TestTheLastCookieThatCanBeAMUIDCounts(t *testing.T) {
	w := newWorld(t)
	longest := strings.Repeat("x", store.MaxMUIDLength)
	for _, tt := range []struct{ name, cookie, want string }{
		{"one", "a=1; _muid=m1; b=2", "m1"},
		{"two", "_muid=m1; _muid=m2", "m2"},
		{"undefined after it", "_muid=m1; _muid=undefined", "m1"},
		{"null after it", "_muid=m1; a=1; _muid=null", "m1"},
		{"an empty one after it", "_muid=m1; _muid=", "m1"},
		{"one over the limit after it", "_muid=m1; _muid=" + longest + "x", "m1"},
		{"one with a comma after it", "_muid=m1; _muid=a,b", "m1"},
		{"one with a space after it", "_muid=m1; _muid=[object Object]", "m1"},
		{"the longest", "_muid=" + longest, longest},
		{"only one that is too long", "_muid=" + longest + "x", ""},
		{"only undefined", "_muid=undefined", ""},
		{"only null", "_muid=null", ""},
		{"another name", "muid=m1; x_muid=m2", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := w.do("POST", w.ServerSide.Host, "/id", `{}`, "Cookie", tt.cookie)
			if tt.want == "" {
				r.Want(t, 400, "muid, email, or deviceId is required.")
				return
			}
			r.Want(t, 200, `{"success":true,"muid":"`+tt.want+`"}`)
		})
	}
}

func TestCookieDomain(t *testing.T) {
	for _, tt := range []struct {
		host, page, domain string
		ok                 bool
	}{
		{"tags.example.co.uk", "www.example.co.uk", "example.co.uk", true},
		{"tags.example.co.uk", "www.other.co.uk", "other.co.uk", true},
		{"tags.shop.localhost", "shop.localhost", "shop.localhost", true},
		{"localhost", "localhost", "", true},
		{"localhost", "127.0.0.1", "", false},
		{"127.0.0.1", "127.0.0.1", "", true},
		{"127.0.0.1", "10.0.0.1", "", false},
		{"::1", "::1", "", true},
		{"tags.example.com", "", "", false},
		{"tags.example.com", "intranet", "", false},
	} {
		domain, ok := cookieDomain(tt.host, tt.page)
		if ok != tt.ok || ok && domain != tt.domain {
			t.Errorf("%s with a page of %s: got %q %v, want %q %v", tt.host, tt.page, domain, ok, tt.domain, tt.ok)
		}
	}
}
