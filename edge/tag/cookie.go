package tag

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// muidCookie is the name of the cookie that holds the visitor's muid (spec, Browser installation contract).
const muidCookie = "_muid"

// maxCookieAge is in seconds: 400 days, the longest that browsers keep a cookie.
const maxCookieAge = 400 * 24 * 60 * 60

// cookieMUID returns the muid of the request's _muid cookie, "" when there is none. A request may have several cookies of
// that name, for paths, a host and its domain. Browsers send those of longer paths first, so the last one that can be a muid
// counts. only is false when another one has another muid. The result aliases the request.
func cookieMUID(ctx *fasthttp.RequestCtx) (muid string, only bool) {
	only = true
	for name, value := range ctx.Request.Header.Cookies() {
		if string(name) == muidCookie && canBeMUID(view(value)) {
			only = only && (muid == "" || muid == view(value))
			muid = view(value)
		}
	}
	return muid, only
}

// canBeMUID reports whether a cookie's value can be a muid: it is not empty or too long, and has only the characters that
// RFC 6265 allows (cookie-octet). Scripts write undefined or null for an absent value: their visitors must not all be one.
func canBeMUID(value string) bool {
	if len(value) == 0 || len(value) > store.MaxMUIDLength || value == "undefined" || value == "null" {
		return false
	}
	for i := range len(value) {
		c := value[i]
		if c <= ' ' || c > '~' || c == '"' || c == ',' || c == ';' || c == '\\' {
			return false
		}
	}
	return true
}

// renewCookie sets the cookie of a request again, when the request asks for it (?renew=1). Some browsers keep a cookie for
// only a few days when a script has set it, but as long as the server says when a server has.
//
// The answer never brings a new cookie, only the one that the request had. The browser tag asks only in requests that it
// can abort: when a visitor withdraws consent, no late answer brings the cookie back.
func renewCookie(ctx *fasthttp.RequestCtx, route *Route, muid string) {
	if muid == "" || !route.asksForCookie() || ctx.Response.StatusCode() >= 300 {
		return
	}
	scheme, page, _ := bytes.Cut(ctx.Request.Header.PeekCanonical(originKey), []byte("://"))
	domain, ok := cookieDomain(route.host, store.HostName(view(page)))
	if !ok {
		return
	}
	c := fasthttp.AcquireCookie()
	c.SetKey(muidCookie)
	c.SetValue(muid)
	c.SetDomain(domain)
	c.SetPath("/")
	c.SetMaxAge(maxCookieAge)
	c.SetSameSite(fasthttp.CookieSameSiteLaxMode)
	c.SetSecure(string(scheme) == "https") // the page's scheme: a proxy in front of this server may end TLS
	ctx.Response.Header.SetCookie(c)
	fasthttp.ReleaseCookie(c)
}

// cookieDomain returns the domain of a cookie for a page: the page's root domain. It does not have to be that of the tag
// host, because the page's own host may be a proxy for the tag host. Nobody can set a foreign cookie that way: the browser
// writes the Origin, and refuses the cookie unless the host that it has asked is in the cookie's domain.
//
// The domain is empty for an IP address or a single label: such a host shares its cookies with no other host. A cookie
// without a domain is for the host that the browser has asked, so that must be the page's.
func cookieDomain(host, page string) (string, bool) {
	if standsAlone(page) {
		return "", page == host
	}
	root := store.RootDomain(page)
	return root, isHostName(root)
}

// isHostName reports whether a name has only characters of host names. Others in a cookie's domain could end it.
func isHostName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && c != '.' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	})
}

// standsAlone reports whether a host has no domain above it. A single label and an IPv6 address have no dot. An IPv4
// address ends in a digit, and no top-level domain does.
func standsAlone(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	last := host[len(host)-1]
	return '0' <= last && last <= '9'
}
