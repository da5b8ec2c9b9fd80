package edge

import (
	"bytes"
	"strings"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// muidCookie is the cookie with the visitor's muid (spec, Browser installation contract).
const muidCookie = "_muid"

// maxCookieAge is in seconds: 400 days, the longest that browsers keep a cookie.
const maxCookieAge = 400 * 24 * 60 * 60

// maxCookieMUID is in bytes; the loader's own are UUIDs.
const maxCookieMUID = 128

// cookieMUID is the value of the _muid cookie, "" where it has none of use. No other cookie is looked at.
// The result aliases the request.
func cookieMUID(ctx *fasthttp.RequestCtx) string {
	muid := view(ctx.Request.Header.Cookie(muidCookie))
	if !isMUIDCookie(muid) {
		return ""
	}
	return muid
}

// isMUIDCookie reports whether a muid can be a cookie's value: not too long, and of the characters that a
// cookie may have (RFC 6265, cookie-octet).
func isMUIDCookie(muid string) bool {
	if len(muid) == 0 || len(muid) > maxCookieMUID {
		return false
	}
	for i := range len(muid) {
		c := muid[i]
		if c <= ' ' || c > '~' || c == '"' || c == ',' || c == ';' || c == '\\' {
			return false
		}
	}
	return true
}

// renewCookie lets the muid live on where the page that sent an event is of the tag host's own site: some
// browsers keep a cookie that a script wrote for a few days only, and one of a server for as long as it says. The muid
// is the cookie's; only a request without one is read for the muid of its body.
func renewCookie(ctx *fasthttp.RequestCtx, host string) {
	origin := ctx.Request.Header.Peek(fasthttp.HeaderOrigin)
	if len(origin) == 0 || ctx.Response.StatusCode() >= 300 {
		return
	}
	scheme, page, _ := bytes.Cut(origin, []byte("://"))
	domain, ok := cookieDomain(host, store.HostName(view(page)))
	if !ok {
		return
	}
	muid := cookieMUID(ctx)
	if muid == "" {
		if muid = bodyMUID(trim(ctx.PostBody())); muid == "" {
			return
		}
	}
	c := fasthttp.AcquireCookie()
	c.SetKey(muidCookie)
	c.SetValue(muid)
	c.SetDomain(domain)
	c.SetPath("/")
	c.SetMaxAge(maxCookieAge)
	c.SetSameSite(fasthttp.CookieSameSiteLaxMode)
	c.SetSecure(string(scheme) == "https") // of the page: TLS may end in front of this server
	ctx.Response.Header.SetCookie(c)
	fasthttp.ReleaseCookie(c)
}

// cookieDomain is the root domain that a tag host shares with a page, and false where it shares none. It is empty
// where the host alone can have a cookie: an address, or one label.
func cookieDomain(host, page string) (string, bool) {
	common := commonDomain(host, page)
	switch {
	case standsAlone(host):
		return "", page == host
	case !strings.Contains(common, "."):
		return "", false // without a look at the list of public suffixes: most pages use a tag host of another site
	}
	root := store.RootDomain(host)
	return root, len(root) <= len(common)
}

// commonDomain is the longest domain, of whole labels, that two hosts are in; it may be empty.
func commonDomain(a, b string) string {
	start := len(a) // of what is common in whole labels
	for i := 1; i <= len(a) && i <= len(b) && a[len(a)-i] == b[len(b)-i]; i++ {
		if (i == len(a) || a[len(a)-i-1] == '.') && (i == len(b) || b[len(b)-i-1] == '.') {
			start = len(a) - i
		}
	}
	return a[start:]
}

// standsAlone reports whether a host is in no domain: it is one label or an IPv6 address, which have no dot, or an
// IPv4 address; no top-level domain ends in a digit.
func standsAlone(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	last := host[len(host)-1]
	return '0' <= last && last <= '9'
}

// bodyMUID is the muid of an event or of the first of a batch, "" where it has none that can be a cookie.
func bodyMUID(body []byte) string {
	if len(body) > 0 && body[0] == '[' {
		elements, refused := splitBatch(body)
		if refused != nil {
			return ""
		}
		body = elements[0]
	}
	var f fields
	if f.decode(body) != nil {
		return ""
	}
	muid, ok := text(f.MUID)
	if !ok || !isMUIDCookie(muid) {
		return ""
	}
	return muid
}
