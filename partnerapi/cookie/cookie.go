// Package cookie carries the sessions of the web console in a cookie, and decides which requests may use it.
//
// A browser sends the cookie with every request to the base host, also with requests that another site makes. So the cookie
// alone proves nothing. A request may use it if
//
//   - it has the header X-Console: 1. A page of another site cannot send that: the browser first sends a preflight, which
//     the base host never allows. Or it is a GET or HEAD whose Sec-Fetch-Site says that it comes from the base host itself.
//     Downloads and EventSource need this, because they cannot have headers of their own;
//   - and Sec-Fetch-Site and Origin, where they are sent, name no other site.
//
// SameSite=Strict already keeps the cookie away from most requests of other sites. These checks are for hosts that the
// browser takes for the same site, such as other hosts of the operator's domain.
package cookie

import (
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// Cookie is the cookie of one service.
type Cookie struct{ scheme string }

// New returns the cookie of the service at a base URL. With https it has the prefix __Host-: browsers take it only from the
// base host itself, over HTTPS. In development, over plain HTTP, it has another name.
func New(baseURL string) Cookie {
	scheme, _, _ := strings.Cut(baseURL, "://")
	return Cookie{scheme}
}

// isSecure reports whether the service is reached over HTTPS.
func (c Cookie) isSecure() bool { return c.scheme == "https" }

func (c Cookie) name() string {
	if c.isSecure() {
		return "__Host-mtagd_session"
	}
	return "mtagd_session"
}

// Set gives the client a session that ends after some time.
func (c Cookie) Set(r *fasthttp.RequestCtx, text store.SessionText, life time.Duration) {
	c.set(r, string(text), max(int(life/time.Second), 1))
}

// Clear takes the session away from the client.
func (c Cookie) Clear(r *fasthttp.RequestCtx) { c.set(r, "", 0) }

func (c Cookie) set(r *fasthttp.RequestCtx, value string, seconds int) {
	var k fasthttp.Cookie
	k.SetKey(c.name())
	k.SetValue(value)
	k.SetPath("/")
	k.SetHTTPOnly(true)
	k.SetSecure(c.isSecure())
	k.SetSameSite(fasthttp.CookieSameSiteStrictMode)
	if seconds > 0 {
		k.SetMaxAge(seconds)
	} else {
		k.SetExpire(fasthttp.CookieExpireDelete)
	}
	r.Response.Header.SetCookie(&k)
}

// Session returns the valid session of a request, and its key as Directory.Session does. It does not check where the request
// comes from. A request with two cookies of this name has no session: nobody knows which of them the console has set.
func (c Cookie) Session(r *fasthttp.RequestCtx, directory *store.Directory, now time.Time) (store.Session, store.Key, bool) {
	text, found := store.SessionText(""), 0
	for name, value := range r.Request.Header.Cookies() {
		if string(name) == c.name() {
			text = store.SessionText(value)
			found++
		}
	}
	if found != 1 {
		return store.Session{}, store.Key{}, false
	}
	return directory.AuthenticateSession(text, now)
}

// MayUse reports whether a request may use the cookie.
func (c Cookie) MayUse(r *fasthttp.RequestCtx) bool {
	if string(r.Request.Header.Peek("X-Console")) == "1" {
		return c.IsSameOrigin(r)
	}
	return (r.IsGet() || r.IsHead()) && string(r.Request.Header.Peek(fetchSite)) == sameOrigin && c.IsSameOrigin(r)
}

const (
	fetchSite  = "Sec-Fetch-Site"
	sameOrigin = "same-origin"
)

// IsSameOrigin reports whether the headers that browsers add name no other site as the origin of a request.
func (c Cookie) IsSameOrigin(r *fasthttp.RequestCtx) bool {
	site := string(r.Request.Header.Peek(fetchSite))
	if site != "" && site != sameOrigin {
		return false
	}
	switch origin := string(r.Request.Header.Peek(fasthttp.HeaderOrigin)); origin {
	case "":
		return true
	case "null": // sent with some requests of a page whose referrer policy is no-referrer, such as the console's
		return site == sameOrigin
	default:
		return strings.EqualFold(origin, c.scheme+"://"+string(r.Host()))
	}
}
