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

// maxCookieMUID is in bytes. The browser tag makes UUIDs, which have 36.
const maxCookieMUID = 128

// cookieMUID returns the value of the request's _muid cookie, "" when there is none or it cannot be a muid. The result
// aliases the request.
func cookieMUID(ctx *fasthttp.RequestCtx) string {
	muid := view(ctx.Request.Header.Cookie(muidCookie))
	if !fitsCookie(muid) {
		return ""
	}
	return muid
}

// fitsCookie reports whether a muid can be a cookie's value: it is not empty or too long, and has only the characters
// that RFC 6265 allows (cookie-octet).
func fitsCookie(muid string) bool {
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

// renewCookie sets the muid's cookie again when the page and the tag host are of the same site. Some browsers keep a
// cookie for only a few days when a script has set it, but as long as the server says when a server has. The muid is
// the one in the cookie, or else the one in the body.
func renewCookie(ctx *fasthttp.RequestCtx, host string) {
	origin := ctx.Request.Header.PeekCanonical(originKey)
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
	c.SetSecure(string(scheme) == "https") // the page's scheme: a proxy in front of this server may end TLS
	ctx.Response.Header.SetCookie(c)
	fasthttp.ReleaseCookie(c)
}

// cookieDomain returns the root domain that a tag host shares with a page, and false when they share none. The domain
// is empty for an IP address or a single label: such a host shares its cookies with no other host.
func cookieDomain(host, page string) (string, bool) {
	common := commonDomain(host, page)
	switch {
	case standsAlone(host):
		return "", page == host
	case !strings.Contains(common, "."):
		return "", false // the common case, the tag host is of another site: decided without the public suffix list
	}
	root := store.RootDomain(host)
	return root, len(root) <= len(common)
}

// commonDomain returns the longest domain, in whole labels, that two hosts have in common. It may be empty.
func commonDomain(a, b string) string {
	start := len(a) // where the common labels begin
	for i := 1; i <= len(a) && i <= len(b) && a[len(a)-i] == b[len(b)-i]; i++ {
		if (i == len(a) || a[len(a)-i-1] == '.') && (i == len(b) || b[len(b)-i-1] == '.') {
			start = len(a) - i
		}
	}
	return a[start:]
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

// bodyMUID returns the muid of an event, or of the first event of a batch. It is "" when there is none or it cannot be
// a cookie's value.
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
	if !ok || !fitsCookie(muid) {
		return ""
	}
	return muid
}
