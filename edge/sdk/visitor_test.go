package sdk_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
)

var uuidV4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// madeID is an event_id that the tag has made: a UUID of the page, and a number.
var madeID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\d+$`)

// cookies returns all cookies of the profile.
func (w *world) cookies() []*network.Cookie {
	w.Helper()
	jar, err := w.visitor.cookies()
	if err != nil {
		w.Fatal(err)
	}
	return jar
}

// cookie returns a cookie of the profile.
func (w *world) cookie(name string) *network.Cookie {
	w.Helper()
	jar := w.cookies()
	i := slices.IndexFunc(jar, func(c *network.Cookie) bool { return c.Name == name })
	if i < 0 {
		w.Fatalf("cookies: %v, want %s", jar, name)
	}
	return jar[i]
}

// muidCookie returns the visitor's cookie. The test fails when there is another cookie than the tag's.
func (w *world) muidCookie() *network.Cookie {
	w.Helper()
	for _, c := range w.cookies() {
		if c.Name != "_muid" && c.Name != "_mtag.visit" {
			w.Fatalf("there is a cookie %s", c.Name)
		}
	}
	return w.cookie("_muid")
}

func TestTheMUIDIsACookieOfTheRootDomain(t *testing.T) {
	w := newWorld(t)
	tab := w.tab()
	for i, tt := range []struct {
		name, shop, tag string
		domain          string
		secure          bool
	}{
		{"with TLS", "tls " + shopHost, "tls " + tagHost, ".shop.localhost", true},
		{"with TLS, and a tag host of another site", "tls " + otherHost, "tls " + tagHost, ".other.test", true},
		{"without TLS", shopHost, tagHost, ".shop.localhost", false},
		{"a tag host of another site", otherHost, tagHost, ".other.test", false},
		{"under a public suffix", "www.shop.co.uk", tagHost, ".shop.co.uk", false},
		{"an address", "127.0.0.1", tagHost, "127.0.0.1", false},
		{"one label", "localhost", tagHost, "localhost", false},
		{"one label of an intranet", "intranet", tagHost, "intranet", false},
		{"a public suffix", "co.uk", tagHost, "co.uk", false},
	} {
		w.page("/", strings.ReplaceAll(w.snippet(true), w.gate.url(tagHost), w.gate.url(tt.tag)))
		tab.goTo(w.gate.url(tt.shop) + "/")
		muid := w.last(i + 1).MUID
		c := w.muidCookie()
		if !uuidV4.MatchString(muid) || c.Value != muid || c.Domain != tt.domain || c.Path != "/" || c.Secure != tt.secure ||
			c.SameSite != network.CookieSameSiteLax || c.HTTPOnly {
			t.Errorf("%s: muid %q, cookie %+v", tt.name, muid, c)
		}
		left := time.Until(time.Unix(int64(c.Expires), 0))
		if left < 399*24*time.Hour || left > 400*24*time.Hour+time.Second { // Firefox rounds up
			t.Errorf("%s: the cookie expires in %v, want 400 days", tt.name, left)
		}
		tab.wantNothingStored()
		tab.do(`mtag('consent', false)`) // the next site has another visitor
		tab.wantNoTrace()
	}
}

func TestTheMUIDIsTheSameOnAllHostsOfASite(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	w.want("PageView")
	tab.goTo(w.gate.url("blog.shop.localhost") + "/")
	events := w.want("PageView", "PageView")
	if events[0].MUID != events[1].MUID {
		t.Errorf("muids %s and %s, want the same one", events[0].MUID, events[1].MUID)
	}
	w.muidCookie()
}

// Some browsers keep a cookie that a script has set for only a week. The tag host sets it again, for 400 days.
func TestTheTagHostRenewsTheCookie(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	w.want("PageView")
	tab.wantNothingStored() // otherwise the answer to the page view might renew the cookie that is set here
	before := w.muidCookie()
	// Chromium may still be storing the cookie of that answer, which would replace the one that is set here.
	w.wait("a cookie for ten minutes", func() bool {
		tab.do(`document.cookie = '_muid=%s;path=/;domain=shop.localhost;max-age=600'`, before.Value)
		return time.Until(time.Unix(int64(w.muidCookie().Expires), 0)) < time.Hour
	})
	tab.do(`mtag('event', 'SamePage')`)
	w.want("PageView", "SamePage")
	tab.wantNothingStored()
	if left := time.Until(time.Unix(int64(w.muidCookie().Expires), 0)); left > time.Hour {
		t.Errorf("the cookie expires in %v: it was renewed twice by one page", left)
	}
	tab.goTo(w.gate.url(shopHost) + "/")
	w.want("PageView", "SamePage", "PageView")
	tab.wantNothingStored()
	after := w.muidCookie()
	if left := time.Until(time.Unix(int64(after.Expires), 0)); after.Value != before.Value || left < 399*24*time.Hour {
		t.Errorf("the cookie expires in %v, want 400 days: %+v", left, after)
	}
	// After a reset the new cookie is a script's, so the tag host sets it at once.
	requests := len(w.gate.seen())
	tab.do(`mtag('reset'); mtag('event', 'Next')`)
	w.want("PageView", "SamePage", "PageView", "Next")
	if r := w.gate.seen()[requests]; !strings.Contains(r.query, "renew=1") {
		t.Errorf("after a reset: %s", r.query)
	}
}

// Cookies that no visitor can have are replaced. A cookie of the host alone moves to the root domain.
func TestCookiesThatThePageHasAlready(t *testing.T) {
	const domain = ";domain=shop.localhost"
	w := newWorld(t)
	tab := w.tab()
	for i, tt := range []struct{ name, script, want string }{
		{"undefined", `set('undefined', '` + domain + `')`, ""},
		{"too long", `set('x'.repeat(257), '` + domain + `')`, ""},
		{"with quotes", `set('"ann"', '` + domain + `')`, ""},
		{"with a comma", `set('ann,smith', '` + domain + `')`, ""},
		{"with a backslash", `set('ann\\\\smith', '` + domain + `')`, ""},
		{"of the root domain", `set('ann-smith', '` + domain + `')`, "ann-smith"},
		{"of the host alone", `set('ann-smith', '')`, "ann-smith"},
		{"both", `set('of-the-host', ''); set('of-the-site', '` + domain + `')`, "of-the-site"},
	} {
		path := fmt.Sprint("/cookie", i)
		w.page(path, `<script>const set = (value, more) => (document.cookie = '_muid=' + value + ';path=/' + more); `+
			tt.script+`</script>`+w.snippet(true))
		tab.goTo(w.gate.url(shopHost) + path)
		w.wait(tt.name, func() bool { return len(w.at(path, true)) == 1 })
		muid := w.at(path, true)[0].MUID
		tab.wantNothingStored()
		c := w.muidCookie()
		if c.Domain != ".shop.localhost" || c.Value != muid || muid != tt.want && !(tt.want == "" && uuidV4.MatchString(muid)) {
			t.Errorf("%s: the visitor is %q, cookie %+v; want %q, or a UUID when that is empty", tt.name, muid, c, tt.want)
		}
		tab.do(`mtag('consent', false)`)
		tab.wantNoTrace()
	}
}

// A cookie that the page's script can neither read nor replace is no withdrawal: the events are recorded, of a visitor for each
// page load.
func TestACookieThatAScriptMayNotReplace(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(true), "Set-Cookie", "_muid=theirs; HttpOnly; Path=/; Domain=shop.localhost; Max-Age=1000")
	w.visit("/").do(`mtag('event', 'First'); setTimeout(() => mtag('event', 'Second'))`)
	w.want("First", "PageView", "Second")
	w.page("/", w.snippet(true))
	tab := w.tab()
	tab.goTo(w.gate.url("tls "+otherHost) + "/")
	w.want("First", "PageView", "PageView", "Second")
	tab.goTo(w.gate.url(otherHost) + "/") // without TLS, the cookie of the page with TLS cannot be replaced
	tab.do(`mtag('event', 'First'); setTimeout(() => mtag('event', 'Second'))`)
	w.want("First", "First", "PageView", "PageView", "PageView", "Second", "Second")
}

// The visitor's own muid takes the place of one that the tag host would refuse.
func TestAMUIDThatThePageSets(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	tab.do(`
		mtag('event', 'Own', { muid: 'ann-smith' });
		for (const muid of ['', ' ', 7, null, undefined, {}]) mtag('event', 'Wrong', { muid });
	`)
	events := w.want(append(repeat(6, "Wrong"), "PageView", "Own")...)
	for _, r := range w.gate.seen() {
		for _, e := range r.events() {
			if _, isText := e["muid"].(string); !isText {
				t.Errorf("a tag host of another site, which gets no cookie, would refuse %v", e)
			}
		}
	}
	own := w.muidCookie().Value
	for _, e := range events {
		if want := map[bool]string{true: "ann-smith", false: own}[e.EventName == "Own"]; e.MUID != want {
			t.Errorf("%s is of %s, want %s", e.EventName, e.MUID, want)
		}
	}
}

// Old versions of Prototype.js change how arrays are rendered and made.
func TestAPageWithPrototypeJS(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		Array.prototype.toJSON = function () { return '[' + this.join(', ') + ']' };
		Array.from = (iterable) => iterable ? [].slice.call(iterable) : [];
	</script>`+w.snippet(true))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Purchase', { products: [{ id: 'a' }, { id: 'b' }] }); mtag('event', 'Search')`)
	for _, e := range w.want("PageView", "Purchase", "Search") {
		if id := e.RawData["event_id"].(string); !uuidV4.MatchString(e.MUID) || !madeID.MatchString(id) {
			t.Errorf("%s has muid %q and event_id %q, want a UUID and a made id", e.EventName, e.MUID, id)
		}
		if e.EventName == "Purchase" && fmt.Sprint(e.RawData["products"]) != "[map[id:a] map[id:b]]" {
			t.Errorf("products: %v", e.RawData["products"])
		}
	}
	if got := tab.get(`typeof [].toJSON`); got != "function" {
		t.Errorf("the page's own toJSON is now %s", got)
	}
}

func TestAClockThatIsWrong(t *testing.T) {
	for _, offset := range []string{"-3 * 864e5", "3600e3"} {
		t.Run(offset, func(t *testing.T) {
			w := newWorld(t)
			w.page("/", `<script>
				const Right = Date, now = () => Right.now() + `+offset+`;
				window.Date = class extends Right { constructor(...when) { super(...(when.length ? when : [now()])) } static now() { return now() } };
			</script>`+w.snippet(true))
			begun := time.Now()
			w.visit("/")
			at, err := time.Parse(time.RFC3339, w.want("PageView")[0].EventTime)
			if err != nil || at.Before(begun.Add(-time.Minute)) || at.After(time.Now().Add(time.Minute)) {
				t.Errorf("the event is listed at %v, want about %v (%v)", at, begun, err)
			}
		})
	}
}

// noteStorage is a script that notes in window.kept what the page tries to store.
const noteStorage = `<script>
	window.kept = [];
	for (const [type, name] of [[Storage, 'setItem'], [IDBFactory, 'open'], [CacheStorage, 'open']]) {
		type.prototype[name] = function (...all) { kept.push([name, ...all]) };
	}
	for (const name of ['localStorage', 'sessionStorage']) {
		const storage = new Proxy(window[name], { set(_, ...all) { kept.push(all); return true } });
		Object.defineProperty(window, name, { value: storage });
	}
	Object.defineProperty(document, 'cookie', { set(cookie) { kept.push(cookie) }, get() { return '' } });
</script>`

// wantNoTrace fails the test when anything is stored in the browser.
func (t *tab) wantNoTrace() {
	t.Helper()
	t.get(`document.cookie`) // Chromium sets cookies later; reading waits for it
	for _, c := range t.cookies() {
		t.Errorf("the cookie %s of %s", c.Name, c.Domain)
	}
	if got := t.get(`JSON.stringify([localStorage, sessionStorage])`); got != "[{},{}]" {
		t.Errorf("stored: %s", got)
	}
	if got := t.get(`indexedDB.databases().then((list) => list.length)`); got != "0" {
		t.Errorf("%s databases, want none", got)
	}
	if got := t.get(`window.caches ? caches.keys().then((list) => list.length) : 0`); got != "0" {
		t.Errorf("%s caches, want none", got)
	}
}

// Consent that is no boolean is none, and is reported.
func TestWithoutConsentThereIsNoTrace(t *testing.T) {
	w := newWorld(t)
	tab := w.tab()
	for i, options := range []string{"{ consent: false }", "{ consent: 'false' }", "{ consent: 'true' }", "{ consent: 1 }", "{}", "undefined"} {
		if i > 0 && browserOf(t) == inFirefox {
			break // the others differ in the options alone
		}
		path := fmt.Sprint("/options", i)
		w.page(path, noteStorage+strings.ReplaceAll(w.snippet(false), "{ consent: false }", options))
		tab.goTo(w.gate.url(shopHost) + path)
		w.wait("a warning about "+options, func() bool { return strings.Count(fmt.Sprint(tab.lines()), "mtag: wrong:") == i })
		tab.do(`
			mtag('event', 'Purchase', { email: 'ann@example.com' });
			mtag('identify', { email: 'ann@example.com' });
			history.pushState({}, '', '/next');
		`)
		if i == 0 {
			tab.do(`for (let i = 0; i < 50; i++) mtag('event', 'Big', { text: 'x'.repeat(60000) })`)
			w.wait("a warning about the full queue", func() bool { return tab.warned("not sent: Big") })
		}
		tab.wantNoTrace()
		if kept := tab.get(`kept`); kept != "" {
			t.Errorf("%s: the page has tried to store %s", options, kept)
		}
	}
	// What is stored is seen without noteStorage too, also after the page is left.
	w.page("/", w.snippet(false))
	for range 2 {
		tab.goTo(w.gate.url(shopHost) + "/")
		tab.do(`mtag('event', 'Purchase', { email: 'ann@example.com' })`)
		tab.wantNoTrace()
	}
	if seen := w.gate.seen(); len(seen) > 0 {
		t.Errorf("requests: %v", seen)
	}
}

// An old polyfill of Temporal costs the timezone and a line in the console, and nothing that has waited.
func TestAPolyfillOfTemporal(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>Object.defineProperty(window, 'Temporal', { value: { Now: {} } })</script>`+w.snippet(false))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Early'); mtag('consent', true)`)
	w.want("PageView", "Early")
	w.wait("a warning", func() bool { return tab.warned("timeZoneId") })
}

func TestEventsWaitForConsent(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	tab := w.visit("/")
	tab.do(`mtag('event', 'Early')`)
	tab.wantNoTrace()
	tab.do(`mtag('consent', true); mtag('event', 'Late')`)
	events := w.want("PageView", "Early", "Late")
	for _, e := range events {
		if e.MUID != w.muidCookie().Value {
			t.Errorf("%s is of %s, want the cookie's muid", e.EventName, e.MUID)
		}
	}
}

// Many pages ask for consent at each load. The visitor stays the same.
func TestConsentThatIsAskedForAtEachLoad(t *testing.T) {
	w := newWorld(t)
	w.page("/", w.snippet(false))
	tab := w.visit("/")
	tab.do(`mtag('consent', true)`)
	first := w.want("PageView")[0].MUID
	tab.goTo(w.gate.url(shopHost) + "/")
	tab.do(`mtag('consent', true)`)
	if second := w.want("PageView", "PageView")[1].MUID; second != first {
		t.Errorf("muids %s and %s, want the same one", first, second)
	}
}

func TestConsentThatIsWithdrawn(t *testing.T) {
	w := newWorld(t)
	tab := w.visit("/")
	first := w.want("PageView")[0].MUID
	tab.wantNothingStored()
	tab.do(`mtag('consent', false); mtag('event', 'WithoutConsent')`)
	tab.wantNoTrace()
	sent := len(w.gate.seen())
	tab.do(`history.pushState({}, '', '/next')`)
	tab.wantNoTrace()
	if now := len(w.gate.seen()); now != sent {
		t.Errorf("%d requests after consent was withdrawn", now-sent)
	}
	tab.do(`mtag('consent', true)`)
	events := w.want("PageView", "PageView", "WithoutConsent")
	if second := events[1].MUID; second == first || second != w.muidCookie().Value {
		t.Errorf("the visitor is %s, want a new muid, that of the cookie", second)
	}
}

// Withdrawal aborts the requests that are under way. Their events wait for consent, with those that were never sent.
func TestConsentThatIsWithdrawnWhileEventsAreOnTheirWay(t *testing.T) {
	w := newWorld(t)
	gone := make(chan struct{})
	w.gate.setFault(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		<-r.Context().Done()
		close(gone)
	})
	tab := w.visit("/")
	w.wait("the request", func() bool { return len(w.gate.seen()) == 1 })
	tab.do(`mtag('event', 'Waiting'); mtag('consent', false)`)
	<-gone
	w.gate.setFault(nil)
	tab.wantNoTrace()
	if got := len(w.gate.seen()); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
	tab.do(`mtag('consent', true)`)
	w.want("PageView", "Waiting")
}
