package sdk_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// at returns the events of the pages at a path, without page views unless views is set.
func (w *world) at(path string, views bool) (events []event) {
	w.Helper()
	for _, e := range w.events() {
		page, err := url.Parse(fmt.Sprint(e.RawData["pageUrl"]))
		if err != nil {
			w.Fatal(err)
		}
		if page.Path == path && (views || e.EventName != "PageView") {
			events = append(events, e)
		}
	}
	return events
}

// The pages of these tests have broken what the tag needs. One profile visits all.
func TestPagesThatBreakTheTagsTools(t *testing.T) {
	const events = 50
	w := newWorld(t)
	tab := w.tab()
	for i, tt := range []struct {
		name    string
		firefox bool // it leads to other calls of the browser
		before  string
	}{
		{"fetch throws", false, `window.fetch = () => { throw new Error('blocked') }`},
		{"fetch and AbortController are gone", false, `delete window.fetch; window.fetch = window.AbortController = undefined`},
		{"fetch answers no Response", false, `window.fetch = async () => ({ ok: true })`},
		{"fetch rejects", false, `window.fetch = () => Promise.reject(new TypeError('blocked'))`},
		{"sendBeacon throws", false, `navigator.sendBeacon = () => { throw new Error('blocked') }`},
		{"setTimeout does nothing", true, `window.setTimeout = () => {}`},
		{"setTimeout throws", false, `window.setTimeout = () => { throw new Error('on purpose') }`},
		{"setTimeout calls at once", false, `window.setTimeout = (f) => f()`},
		{"Array.prototype is frozen", false, `Object.freeze(Array.prototype)`},
		{"Math.random is constant", false, `Math.random = () => 0.5`},
		{"Object.prototype is frozen", false, `Object.freeze(Object.prototype)`},
		{"Object.prototype has more", false, `Object.prototype.more = { toString() { return 'more' } }; Array.prototype.last = function () {}`},
		{"document.cookie throws", true, `Object.defineProperty(document, 'cookie', { get() { throw new Error('on purpose') }, set() { throw new Error('on purpose') } })`},
		{"document.cookie is a page's own", false, `Object.defineProperty(document, 'cookie', { get: () => 'theirs=1', set() {} })`},
		{"localStorage throws", true, `Object.defineProperty(window, 'localStorage', { get() { throw new Error('on purpose') } })`},
		{"localStorage is null", false, `Object.defineProperty(window, 'localStorage', { value: null })`},
		{"localStorage.setItem throws", false, `Storage.prototype.setItem = () => { throw new Error('on purpose') }`},
		{"Promise is the page's", false, `Promise.resolve = ((resolve) => (value) => resolve.call(Promise, value))(Promise.resolve)`},
		{"the dataLayer is huge", false, `window.dataLayer = Array.from({ length: 50000 }, (_, i) => ({ event: 'gtm.' + i }))`},
		{"the page blocks for half a second", true, `setTimeout(() => { for (const end = performance.now() + 500; performance.now() < end; ); })`},
		{"a form is called title", false, `document.documentElement.append(document.createElement('form')); Object.assign(document.forms[0], { name: 'title', own: document.forms[0] })`},
		{"crypto is gone", true, `Object.defineProperty(window, 'crypto', { value: undefined })`},
		{"the script is there three times", true, `for (let i = 0; i < 2; i++) document.write('<script ' + ['defer', 'type=module'][i] + ' src=SCRIPT></' + 'script>')`},
	} {
		if !tt.firefox && browserOf(t) == inFirefox {
			continue
		}
		path := fmt.Sprint("/broken", i)
		w.page(path, "<script>"+strings.ReplaceAll(tt.before, "SCRIPT", w.loader())+"</script>"+w.snippet(true))
		tab.goTo(w.gate.url(shopHost) + path)
		tab.do(`for (let i = 0; i < %d; i++) mtag('event', 'Broken', { n: i })`, events)
		recorded := map[any]bool{}
		w.wait(tt.name, func() bool {
			for _, e := range w.at(path, false) {
				recorded[e.RawData["n"]] = true
			}
			return len(recorded) == events
		})
		if n := len(w.at(path, true)); n != events+1 {
			t.Errorf("%s: %d events are recorded, want %d and a page view", tt.name, n, events)
		}
	}
	// An outage, and no timer that ends it: the next event does.
	w.page("/timer", "<script>window.setTimeout = () => {}</script>"+w.snippet(true))
	w.gate.setFault(refuse(503))
	before := len(w.gate.seen())
	tab.goTo(w.gate.url(shopHost) + "/timer")
	w.wait("a refusal", func() bool { return len(w.gate.seen()) > before && w.gate.seen()[before].status == 503 })
	w.gate.setFault(nil)
	w.wait("the page view", func() bool {
		tab.do(`mtag('event', 'Next')`)
		views := w.at("/timer", true)
		return len(views) > 1 && views[0].EventName == "PageView"
	})
}

// Two visitors call at the same time by the clock of their pages, which never moves, and with the same random number. The service
// records the same name and id once.
func TestEventsOfTwoVisitorsHaveDifferentIDs(t *testing.T) {
	w := newWorld(t)
	w.page("/", "<script>Math.random = () => 0.5; Date.now = () => 1e12</script>"+w.snippet(true))
	first, second := w.visit("/"), w.visit("/")
	w.want("PageView", "PageView")
	first.do(`mtag('event', 'Purchase')`)
	second.do(`mtag('event', 'Purchase')`)
	w.want("PageView", "PageView", "Purchase", "Purchase")
}

// Without XMLHttpRequest, events go out when the page closes. A page whose title throws loses them, with a line in the
// console.
func TestPagesWithoutWhatTheTagNeeds(t *testing.T) {
	w := newWorld(t)
	w.page("/next", "")
	w.page("/", "<script>window.XMLHttpRequest = undefined</script>"+w.snippet(true))
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 50; i++) mtag('event', 'Broken')`)
	tab.goTo(w.gate.url(shopHost) + "/next")
	w.want(append(repeat(50, "Broken"), "PageView")...)
	w.page("/title", `<script>Object.defineProperty(document, 'title', { get() { throw new Error('on purpose') } })</script>`+w.snippet(true))
	tab.goTo(w.gate.url(shopHost) + "/title")
	w.wait("a warning", func() bool { return tab.warned("on purpose") })
}

// A part loads on a page that has no head any more.
func TestAPageThatRemovesItsHead(t *testing.T) {
	w := newWorld(t)
	w.visit("/").do(`document.head.remove(); mtag('event', 'add_to_cart')`)
	w.want("AddToCart", "PageView")
}

// An unload handler runs after pagehide.
func TestAnUnloadHandler(t *testing.T) {
	w := newWorld(t)
	w.page("/next", "")
	w.page("/", w.snippet(true)+`<script>addEventListener('unload', () => mtag('event', 'Unloading'))</script>`)
	tab := w.visit("/")
	w.want("PageView")
	tab.wantNothingStored()
	tab.goTo(w.gate.url(shopHost) + "/next")
	if tab.get(stored) != "1" && names(w.events()) == "PageView" {
		t.Errorf("neither stored nor sent; console: %q", tab.lines())
	}
	w.want("PageView", "Unloading")
	seen := w.gate.seen()
	if mode := seen[len(seen)-1].header.Get("Sec-Fetch-Mode"); mode != "no-cors" {
		t.Errorf("the last request has the mode %s, and a beacon has not", mode)
	}
}

// The device's clock is put right while the tag host is away. An event's age is what has elapsed.
func TestAClockThatIsPutRightDuringAnOutage(t *testing.T) {
	w := newWorld(t)
	w.page("/", `<script>
		window.ahead = -10 * 864e5;
		Date.now = ((now) => () => now() + ahead)(Date.now);
	</script>`+w.snippet(true))
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	tab.do(`for (let i = 0; i < 5; i++) mtag('event', 'Early')`)
	w.wait("a refusal", func() bool { return len(w.gate.seen()) > 0 && w.gate.seen()[0].status == 503 })
	tab.do(`ahead = 0`)
	w.gate.setFault(nil)
	tab.do(`dispatchEvent(new Event('online'))`)
	w.want(append(repeat(5, "Early"), "PageView")...)
	tab.wantNothingStored()
}

// What identifies a person is in the requests, but never in clear on the device, whatever its field is called.
func TestEmailsUnderOtherNamesAreNotStored(t *testing.T) {
	w := newWorld(t)
	w.gate.setFault(refuse(503))
	tab := w.visit("/")
	for _, fields := range []string{
		`{ user_email: 'ann@example.com' }`, `{ Email: 'ann@example.com' }`, `{ eMail: 'ann@example.com' }`, `{ mailAddress: 'ann' }`,
		`{ note: 'write to\nann@example.com please' }`, `{ note: '"ann@example.com"' }`, `{ list: ['x', 'ann.b+c@mail.example.com'] }`,
		`{ link: '/thanks?to=ann%40example.com&x=1' }`, `{ customer: { contact: { phone_number: '+4312345' } } }`, `{ Telephone: 4312345 }`,
		`{ mobile: '4312345' }`, `{ phones: ['4312345'], long: 'x'.repeat(60000) }`, `{ traits: 'mailto:ann@example.com' }`,
	} {
		tab.do(`mtag('event', 'Personal', Object.assign(%s, { value: 89 }))`, fields)
	}
	tab.do(`history.pushState({}, '', '/account?email=ann@example.com&tab=2'); mtag('event', 'Last', { value: 89 })`)
	kept := ""
	w.wait("what is stored", func() bool {
		kept = tab.get(`JSON.stringify(localStorage)`)
		return strings.Count(kept, `\"value\":89`) == 14
	})
	if strings.Contains(kept, "ann") || strings.Contains(kept, "12345") || !strings.Contains(kept, "please") {
		t.Errorf("stored: %s", kept)
	}
	w.gate.setFault(nil)
	tab.do(`dispatchEvent(new Event('online'))`)
	tab.wantNothingStored()
	all := ""
	for _, e := range w.want(append(repeat(13, "Personal"), "PageView", "PageView", "Last")...) {
		all += fmt.Sprint(e.RawData)
	}
	if strings.Count(all, "ann") < 10 || strings.Count(all, "12345") != 4 {
		t.Errorf("recorded: %s", all)
	}
}
